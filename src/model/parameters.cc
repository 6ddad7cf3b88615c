#include "model/parameters.h"

namespace infinigen {
namespace {

ParameterShape NormShape(const ModelConfig& config, const Parameter& parameter) {
  if (parameter.role == WeightRole::kFinalNorm && !config.final_norm) return {};
  if (parameter.part == WeightPart::kBias && config.norm != NormKind::kLayer) return {};
  return {.rows = 1, .cols = config.hidden, .stored = config.norm_affine, .meaning = "hidden"};
}

// Of the weight of a linear map or a table; rows are outputs.
ParameterShape MatrixShape(const ModelConfig& config, WeightRole role) {
  const int64_t hidden = config.hidden, ffn = config.ffn;
  const int64_t q_size = config.heads * config.head_dim, kv_size = config.kv_heads * config.head_dim;
  switch (role) {
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
      if (config.mlp != MlpKind::kGatedSilu) return {};
      return {ffn, hidden, true, "ffn × hidden"};
    case WeightRole::kUp:
      return {ffn, hidden, true, "ffn × hidden"};
    case WeightRole::kDown:
      return {hidden, ffn, true, "hidden × ffn"};
    case WeightRole::kAttentionNorm:
    case WeightRole::kMlpNorm:
    case WeightRole::kFinalNorm:
      break;
  }
  CHECK(false);
}

bool HasBias(const ModelConfig& config, WeightRole role) {
  switch (role) {
    case WeightRole::kQuery:
    case WeightRole::kKey:
    case WeightRole::kValue:
    case WeightRole::kOutput:
      return config.attention_bias;
    case WeightRole::kGate:
    case WeightRole::kUp:
    case WeightRole::kDown:
      return config.mlp_bias;
    default:
      return false;
  }
}

}  // namespace

ParameterShape ExpectedShape(const ModelConfig& config, const Parameter& parameter) {
  if (IsNorm(parameter.role)) return NormShape(config, parameter);
  const ParameterShape matrix = MatrixShape(config, parameter.role);
  if (parameter.part == WeightPart::kWeight) return matrix;
  if (!matrix || !HasBias(config, parameter.role)) return {};
  return {.rows = 1, .cols = matrix.rows, .meaning = "outputs of its matrix"};
}

}  // namespace infinigen
