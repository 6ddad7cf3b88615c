// The parameters of a model: their roles, and the shapes that the configuration implies. Pure functions, any thread.
// VisitParameters (model/parameter_walk.h) visits all of them.
#pragma once

#include <cstdint>
#include <string_view>

#include "model/config.h"

namespace infinigen {

// In the order of VisitParameters. Random weights are drawn in this order, so a new role must not change the numbers of
// models without it.
enum class WeightRole : uint8_t {
  kEmbedding,
  kPositions,   // learned positions
  kProjectIn,   // only if embed_dim ≠ hidden
  kProjectOut,  // only if embed_dim ≠ hidden
  // One for each layer.
  kAttentionNorm,
  kMlpNorm,
  kQuery,
  kKey,
  kValue,
  kOutput,
  kQueryNorm,  // only with LayerSpec::qk_norm
  kKeyNorm,    // only with LayerSpec::qk_norm
  kGate,       // only in gated MLPs
  kUp,
  kDown,
  // One for the model.
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
  int64_t layer = 0;  // 0 unless IsPerLayer(role)

  // Matrices keep their stored type; vectors (norms and biases) are f32.
  constexpr bool is_matrix() const { return part == WeightPart::kWeight && !IsNorm(role); }
};

struct ParameterShape {
  int64_t rows = 0;  // 0: the model has no such parameter; vectors have one row
  int64_t cols = 0;
  // The model's files must contain it. False for norms without parameters, which get ones and zeros, and for a tied
  // output matrix, which is the embedding.
  bool stored = true;
  std::string_view meaning = {};  // formula of the shape, for messages: "ffn × hidden"

  explicit operator bool() const { return rows > 0; }
  int64_t count() const { return rows * cols; }
};

ParameterShape ExpectedShape(const ModelConfig& config, const Parameter& parameter);

}  // namespace infinigen
