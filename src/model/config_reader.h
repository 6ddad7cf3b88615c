// config.json of a Hugging Face model directory → ModelConfig. This file reads what every family has; the family
// (model/family.h) reads the rest. Called once while a model is opened, from any thread.
//
// Every field of the file is either used, known not to change what is computed (harmless_fields.cc), or refused
// by name: an unknown field may be one whose absence would make the result wrong. Absent fields take the defaults of
// transformers; the sizes have none and must be there.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/config.h"

namespace infinigen {

// Far above any model, and small enough that layers · hidden · heads · head_dim, the largest product anywhere, stays
// below 2^60.
inline constexpr int64_t kMaxVocab = int64_t{1} << 24;
inline constexpr int64_t kMaxHidden = int64_t{1} << 20;
inline constexpr int64_t kMaxFfn = int64_t{1} << 22;
inline constexpr int64_t kMaxLayers = int64_t{1} << 12;
inline constexpr int64_t kMaxHeads = int64_t{1} << 14;
inline constexpr int64_t kMaxPositions = int64_t{1} << 30;
// The widest head that the backends' attention takes; the widest published one is 256.
inline constexpr int64_t kHeadDimLimit = 512;

// `text` is the file's content; `path` is used in messages only. The name stays empty.
Result<ModelConfig> ParseModelConfig(std::string_view text, const std::string& path);

// The end-of-text ids of a generation_config.json (an id or a list of ids); empty when it names none. Everything else
// in that file is a sampling preference, which is the user's to state, and is not looked at.
Result<std::vector<int64_t>> ParseGenerationEosIds(std::string_view text, const std::string& path);

// Training settings, bookkeeping and sampling defaults, as transformers 4.x and 5.x write them.
bool IsHarmlessConfigField(std::string_view name);

}  // namespace infinigen
