// The parameters of a model: their roles, the shapes that the configuration implies, and VisitParameters, which calls a
// visitor for every parameter. VisitParameters has the only list of the members of Weights and LayerWeights; loading,
// counting, placing, streaming, hashing and random weights all use it. Any thread.
#pragma once

#include <cstdint>
#include <string_view>
#include <type_traits>
#include <utility>

#include "base/result.h"
#include "model/config.h"
#include "model/weights.h"

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
  kAttentionOutNorm,  // only with NormPlacement::kBothSides
  kMlpOutNorm,        // only with NormPlacement::kBothSides
  kQueryNorm,         // only with LayerSpec::qk_norm
  kKeyNorm,           // only with LayerSpec::qk_norm
  kGate,              // only in gated MLPs
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
         role == WeightRole::kKeyNorm || role == WeightRole::kFinalNorm || role == WeightRole::kAttentionOutNorm ||
         role == WeightRole::kMlpOutNorm;
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

// The visitor of the functions below is called as visit(parameter, view) in the order of WeightRole, weight before
// bias; the view of a parameter that the model does not have is null. It returns nothing, or a Status: its first error
// ends the walk and is returned. Views are const if the weights are.
template <class Visit>
class ParameterWalk {
 public:
  static constexpr bool kFails = !std::is_void_v<std::invoke_result_t<Visit&, const Parameter&, ConstTensor&>>;

  explicit ParameterWalk(Visit& visit) : visit_(visit) {}

  // Parameters before the layers.
  template <class W>
  Status Begin(W& w) {
    RETURN_IF_ERROR(One(WeightRole::kEmbedding, WeightPart::kWeight, 0, w.embedding));
    RETURN_IF_ERROR(One(WeightRole::kPositions, WeightPart::kWeight, 0, w.positions));
    RETURN_IF_ERROR(Both(WeightRole::kProjectIn, 0, w.project_in));
    return Both(WeightRole::kProjectOut, 0, w.project_out);
  }
  template <class L>
  Status Layer(int64_t layer, L& w) {
    RETURN_IF_ERROR(Both(WeightRole::kAttentionNorm, layer, w.attention_norm));
    RETURN_IF_ERROR(Both(WeightRole::kMlpNorm, layer, w.mlp_norm));
    RETURN_IF_ERROR(Both(WeightRole::kQuery, layer, w.q));
    RETURN_IF_ERROR(Both(WeightRole::kKey, layer, w.k));
    RETURN_IF_ERROR(Both(WeightRole::kValue, layer, w.v));
    RETURN_IF_ERROR(Both(WeightRole::kOutput, layer, w.o));
    RETURN_IF_ERROR(Both(WeightRole::kAttentionOutNorm, layer, w.attention_out_norm));
    RETURN_IF_ERROR(Both(WeightRole::kMlpOutNorm, layer, w.mlp_out_norm));
    RETURN_IF_ERROR(Both(WeightRole::kQueryNorm, layer, w.q_norm));
    RETURN_IF_ERROR(Both(WeightRole::kKeyNorm, layer, w.k_norm));
    RETURN_IF_ERROR(Both(WeightRole::kGate, layer, w.gate));
    RETURN_IF_ERROR(Both(WeightRole::kUp, layer, w.up));
    return Both(WeightRole::kDown, layer, w.down);
  }
  // Parameters after the layers.
  template <class W>
  Status End(W& w) {
    RETURN_IF_ERROR(Both(WeightRole::kFinalNorm, 0, w.final_norm));
    return Both(WeightRole::kLmHead, 0, w.lm_head);
  }

 private:
  template <class View>
  Status One(WeightRole role, WeightPart part, int64_t layer, View& view) {
    const Parameter parameter{role, part, layer};
    if constexpr (kFails) {
      return visit_(parameter, view);
    } else {
      visit_(parameter, view);
      return Ok();
    }
  }
  // `pair` is a Linear or NormWeights.
  template <class Pair>
  Status Both(WeightRole role, int64_t layer, Pair& pair) {
    RETURN_IF_ERROR(One(role, WeightPart::kWeight, layer, pair.weight));
    return One(role, WeightPart::kBias, layer, pair.bias);
  }

  Visit& visit_;
};

// `weights` is a WeightViews, const or not.
template <class W, class Visit>
std::conditional_t<ParameterWalk<Visit>::kFails, Status, void> VisitParameters(W& weights, Visit&& visit) {
  ParameterWalk<Visit> walk(visit);
  const auto all = [&]() -> Status {
    RETURN_IF_ERROR(walk.Begin(weights));
    int64_t layer = 0;
    for (auto& of : weights.layers) RETURN_IF_ERROR(walk.Layer(layer++, of));
    return walk.End(weights);
  };
  Status status = all();
  if constexpr (ParameterWalk<Visit>::kFails) return status;
}

// Visits the parameters of one layer.
template <class L, class Visit>
std::conditional_t<ParameterWalk<Visit>::kFails, Status, void> VisitLayer(int64_t layer, L& weights, Visit&& visit) {
  Status status = ParameterWalk<Visit>(visit).Layer(layer, weights);
  if constexpr (ParameterWalk<Visit>::kFails) return status;
}

// Calls visit(parameter, shape) for every parameter that a model of this configuration has: first those of the model,
// then layer by layer.
template <class Visit>
void VisitShapes(const ModelConfig& config, Visit&& visit) {
  const auto show = [&](const Parameter& parameter, const auto&) {
    if (const ParameterShape shape = ExpectedShape(config, parameter)) visit(parameter, shape);
  };
  const WeightViews without_layers;
  const LayerWeights layer_weights;
  VisitParameters(without_layers, show);
  for (int64_t layer = 0; layer < config.layers; ++layer) VisitLayer(layer, layer_weights, show);
}

}  // namespace infinigen
