#include "model/parameters.h"

#include <iterator>

#include "base/check.h"

namespace infinigen {
namespace {

const LayerSpec& SpecOf(const ModelConfig& config, const Parameter& parameter) {
  CHECK(parameter.layer >= 0 && parameter.layer < std::ssize(config.specs));
  return config.specs[static_cast<size_t>(parameter.layer)];
}

ParameterShape NormShape(const ModelConfig& config, const Parameter& parameter) {
  const bool bias = parameter.part == WeightPart::kBias;
  if (parameter.role == WeightRole::kQueryNorm || parameter.role == WeightRole::kKeyNorm) {
    if (bias || SpecOf(config, parameter).qk_norm == QkNorm::kNone) return {};
    return {.rows = 1, .cols = config.head_dim, .meaning = "head_dim"};
  }
  const bool out = parameter.role == WeightRole::kAttentionOutNorm || parameter.role == WeightRole::kMlpOutNorm;
  if (out && SpecOf(config, parameter).norm_placement != NormPlacement::kBothSides) return {};
  const bool final = parameter.role == WeightRole::kFinalNorm;
  if (final && !config.final_norm) return {};
  const NormSpec& norm = final ? *config.final_norm : SpecOf(config, parameter).norm;
  if (bias && norm.kind != NormKind::kLayer) return {};
  return {.rows = 1, .cols = config.hidden, .stored = norm.affine, .meaning = "hidden"};
}

// The shape of a linear map's weight (rows are outputs) or of a table.
ParameterShape MatrixShape(const ModelConfig& config, const Parameter& parameter) {
  const int64_t hidden = config.hidden, ffn = config.ffn;
  const int64_t q_size = config.heads * config.head_dim, kv_size = config.kv_heads * config.head_dim;
  switch (parameter.role) {
    case WeightRole::kEmbedding:
      return {config.vocab, config.embed_dim, true, "vocab × embedding width"};
    case WeightRole::kLmHead:
      return {config.vocab, config.embed_dim, !config.tied_embeddings, "vocab × embedding width"};
    case WeightRole::kPositions:
      if (config.positions != PositionKind::kLearned) return {};
      return {config.max_positions + config.position_offset, hidden, true, "positions + offset × hidden"};
    case WeightRole::kProjectIn:
      if (!config.has_projections()) return {};
      return {hidden, config.embed_dim, true, "hidden × embedding width"};
    case WeightRole::kProjectOut:
      if (!config.has_projections()) return {};
      return {config.embed_dim, hidden, true, "embedding width × hidden"};
    case WeightRole::kQuery:
      return {q_size, hidden, true, "heads·head_dim × hidden"};
    case WeightRole::kKey:
    case WeightRole::kValue:
      return {kv_size, hidden, true, "kv_heads·head_dim × hidden"};
    case WeightRole::kOutput:
      return {hidden, q_size, true, "hidden × heads·head_dim"};
    case WeightRole::kGate:
      if (!SpecOf(config, parameter).mlp.gated) return {};
      return {ffn, hidden, true, "ffn × hidden"};
    case WeightRole::kUp:
      return {ffn, hidden, true, "ffn × hidden"};
    case WeightRole::kDown:
      return {hidden, ffn, true, "hidden × ffn"};
    case WeightRole::kAttentionNorm:
    case WeightRole::kMlpNorm:
    case WeightRole::kAttentionOutNorm:
    case WeightRole::kMlpOutNorm:
    case WeightRole::kQueryNorm:
    case WeightRole::kKeyNorm:
    case WeightRole::kFinalNorm:
      break;
  }
  CHECK(false);
}

bool HasBias(const ModelConfig& config, const Parameter& parameter) {
  switch (parameter.role) {
    case WeightRole::kQuery:
    case WeightRole::kKey:
    case WeightRole::kValue:
      return SpecOf(config, parameter).qkv_bias;
    case WeightRole::kOutput:
      return SpecOf(config, parameter).o_bias;
    case WeightRole::kGate:
    case WeightRole::kUp:
    case WeightRole::kDown:
      return SpecOf(config, parameter).mlp.bias;
    default:
      return false;
  }
}

}  // namespace

ParameterShape ExpectedShape(const ModelConfig& config, const Parameter& parameter) {
  if (IsNorm(parameter.role)) return NormShape(config, parameter);
  const ParameterShape matrix = MatrixShape(config, parameter);
  if (parameter.part == WeightPart::kWeight) return matrix;
  if (!matrix || !HasBias(config, parameter)) return {};
  return {.rows = 1, .cols = matrix.rows, .meaning = "outputs of its matrix"};
}

}  // namespace infinigen
