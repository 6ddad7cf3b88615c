// The parameters of a model: what each one is called (role, layer, weight or bias) and which shape the configuration
// implies. Pure functions; any thread may call them. VisitParameters (model/weights.h) walks over all of them.
#pragma once

#include <cstdint>
#include <string_view>

#include "loader/weight_map.h"
#include "model/config.h"

namespace infinigen {

constexpr bool IsNorm(WeightRole role) {
  return role == WeightRole::kAttentionNorm || role == WeightRole::kMlpNorm || role == WeightRole::kFinalNorm;
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
