// What each parameter of a model is called in its files. Called while weights are loaded.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "loader/hf_config.h"

namespace infinigen {

// In the order of the walk. Random weights draw their numbers in this order, so a new role must not come between two
// roles that existed before it unless models without it skip it.
enum class WeightRole : uint8_t {
  kEmbedding,
  kPositions,   // learned positions
  kProjectIn,   // narrow embeddings only
  kProjectOut,  // likewise
  // One per layer.
  kAttentionNorm,
  kMlpNorm,
  kQuery,
  kKey,
  kValue,
  kOutput,
  kGate,  // gated MLPs only
  kUp,
  kDown,
  // One per model again.
  kFinalNorm,
  kLmHead,
};
enum class WeightPart : uint8_t { kWeight, kBias };

constexpr bool IsPerLayer(WeightRole role) { return role >= WeightRole::kAttentionNorm && role <= WeightRole::kDown; }
// Ways in which exporters begin the names of everything but the output matrix, the usual one first.
std::span<const std::string_view> NamePrefixes(Architecture architecture);

// The tensor's name; `layer` counts only for roles that exist once per layer. The architecture must have the role.
std::string TensorName(Architecture architecture, std::string_view prefix, WeightRole role, WeightPart part,
                       int64_t layer = 0);

// Tensors that some exporters write although they carry no parameter: rotary frequencies, which follow from the config,
// and a format version. Any other tensor without a role means that the model is not what its config says.
bool IsHarmlessTensor(Architecture architecture, std::string_view prefix, std::string_view name);

}  // namespace infinigen
