// The parameters of a model: what each one is called (role, layer, weight or bias) and which shape the configuration
// implies. Pure functions; any thread may call them. VisitParameters (model/weights.h) walks over all of them.
#pragma once

#include <cstdint>
#include <string_view>

#include "model/config.h"

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
  kQueryNorm,  // layers that norm queries and keys only
  kKeyNorm,    // likewise
  kGate,       // gated MLPs only
  kUp,
  kDown,
  // One per model again.
  kFinalNorm,
  kLmHead,
};
enum class WeightPart : uint8_t { kWeight, kBias };

constexpr bool IsPerLayer(WeightRole role) { return role >= WeightRole::kAttentionNorm && role <= WeightRole::kDown; }
constexpr bool IsNorm(WeightRole role) {
  return role == WeightRole::kAttentionNorm || role == WeightRole::kMlpNorm || role == WeightRole::kQueryNorm ||
         role == WeightRole::kKeyNorm || role == WeightRole::kFinalNorm;
}

struct Parameter {
  WeightRole role = WeightRole::kEmbedding;
  WeightPart part = WeightPart::kWeight;
  int64_t layer = 0;  // of roles that exist once per layer

  // A matrix keeps its stored type; a vector (norm or bias) is f32.
  constexpr bool is_matrix() const { return part == WeightPart::kWeight && !IsNorm(role); }
};

struct ParameterShape {
  int64_t rows = 0;  // 0: the model has no such parameter; vectors have one row
  int64_t cols = 0;
  // The model's files must hold it. False for norms without parameters, whose ones and zeros are made here, and for a
  // tied output matrix, which is the embedding.
  bool stored = true;
  std::string_view meaning = {};  // what the extents follow from, for messages: "ffn × hidden"

  explicit operator bool() const { return rows > 0; }
  int64_t count() const { return rows * cols; }
};

ParameterShape ExpectedShape(const ModelConfig& config, const Parameter& parameter);

}  // namespace infinigen
