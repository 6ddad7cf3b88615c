// Reads config.json of a Hugging Face model directory into a ModelConfig: here the fields that every family has, in
// model/family.h the others. Called once while a model is opened, from any thread.
//
// Every field of the file is used, or known not to change the computation (kHarmless), or rejected by name, because
// ignoring an unknown field could give wrong results. Absent fields take the defaults of transformers; sizes have no
// default and are required.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/config.h"

namespace infinigen {

// Far above any model, and small enough that the largest product, layers · hidden · heads · head_dim, is below 2^60.
inline constexpr int64_t kMaxVocab = int64_t{1} << 24;
inline constexpr int64_t kMaxHidden = int64_t{1} << 20;
inline constexpr int64_t kMaxFfn = int64_t{1} << 22;
inline constexpr int64_t kMaxLayers = int64_t{1} << 12;
inline constexpr int64_t kMaxHeads = int64_t{1} << 14;
inline constexpr int64_t kMaxPositions = int64_t{1} << 30;
// The largest head_dim that the backends' attention supports; the largest published one is 256.
inline constexpr int64_t kHeadDimLimit = 512;

// `text` is the content of the file; `path` is used in messages only. ModelConfig::name stays empty.
Result<ModelConfig> ParseModelConfig(std::string_view text, const std::string& path);

// The same for a parsed file. GGUF metadata is read through it too (model/gguf_config.h).
Result<ModelConfig> ModelConfigOf(const nlohmann::json& tree, const std::string& path);

// The end-of-text ids of a generation_config.json (one id or a list); empty if it has none. The other fields of that
// file are sampling preferences, which the user states, so they are ignored.
Result<std::vector<int64_t>> ParseGenerationEosIds(std::string_view text, const std::string& path);

}  // namespace infinigen
