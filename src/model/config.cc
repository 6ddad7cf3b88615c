#include "model/config.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace infinigen {
namespace {

// The first field of a layer that no backend supports, with the reason; empty if there is none.
std::string UnsupportedField(const ModelConfig& config, const LayerSpec& spec) {
  if (spec.window != 0) return fmt::format("window {}: no backend computes sliding-window attention", spec.window);
  if (spec.attention_soft_cap != 0)
    return fmt::format("attention_soft_cap {}: no backend computes soft-capped attention scores",
                       spec.attention_soft_cap);
  if (spec.qk_norm == QkNorm::kWhole) return "qk_norm whole: no backend computes norms of q and k over all heads";
  if (spec.norm_placement == NormPlacement::kBothSides)
    return "norm_placement both sides: no backend computes norms on the output of attention and MLP";
  if (spec.norm_placement != config.specs.front().norm_placement)
    return "norm_placement unlike layer 0: no backend computes norms placed differently from layer to layer";
  if (spec.mlp.activation == Activation::kGeluTanh) return "mlp.activation gelu-tanh: no backend computes it";
  if (spec.mlp.gated != (spec.mlp.activation == Activation::kSilu))
    return spec.mlp.gated ? "mlp.gated: no backend computes a gate of another activation than silu"
                          : "mlp.activation silu: no backend computes it without a gate";
  if (spec.rope == LayerSpec::kNoRope) return {};
  const RopeConfig& rope = config.ropes[static_cast<size_t>(spec.rope)];
  const int64_t dims = rope.dims(config.head_dim), divisors = std::ssize(rope.frequency_divisors);
  if (dims <= 0 || dims > config.head_dim || dims % 2 != 0)
    return fmt::format("rope.rotary_dims {}: expected an even number up to head_dim {}", dims, config.head_dim);
  if (divisors != 0 && divisors != dims / 2)
    return fmt::format("rope has {} frequency divisors for {} planes", divisors, dims / 2);
  return {};
}

float ScaledFrequency(const RopeConfig& rope, float frequency) {
  const auto factor = static_cast<float>(rope.factor);
  if (rope.scaling == RopeScaling::kNone) return frequency;
  if (rope.scaling == RopeScaling::kLinear) return frequency / factor;
  // kLlama3: long wavelengths are stretched by `factor`, short ones are unchanged, those between are interpolated.
  const auto context = static_cast<double>(rope.original_max_positions);
  const auto low_wavelength = static_cast<float>(context / rope.low_freq_factor);
  const auto high_wavelength = static_cast<float>(context / rope.high_freq_factor);
  const float wavelength = static_cast<float>(2.0 * M_PI) / frequency;
  if (wavelength > low_wavelength) return frequency / factor;
  if (wavelength < high_wavelength) return frequency;
  const float smooth = (static_cast<float>(context) / wavelength - static_cast<float>(rope.low_freq_factor)) /
                       static_cast<float>(rope.high_freq_factor - rope.low_freq_factor);
  return (1.0f - smooth) * frequency / factor + smooth * frequency;
}

}  // namespace

bool ModelConfig::rotates() const {
  return std::any_of(specs.begin(), specs.end(), [](const LayerSpec& spec) { return spec.rope != LayerSpec::kNoRope; });
}

bool ModelConfig::has_gate() const {
  return std::any_of(specs.begin(), specs.end(), [](const LayerSpec& spec) { return spec.mlp.gated; });
}

LayerSpec PlainLayer(int64_t head_dim) {
  CHECK(head_dim > 0);
  return {.attention_scale = 1.0f / std::sqrt(static_cast<float>(head_dim))};
}

OwnedHeads AllHeads(const ModelConfig& config) {
  return {.first_kv_head = 0, .kv_heads = config.kv_heads, .heads = config.heads};
}

Status CheckSupported(const ModelConfig& config) {
  CHECK(config.layers > 0 && std::ssize(config.specs) == config.layers);
  if (config.embedding_scale != 1)
    return Unsupported("embedding_scale {}: no backend computes scaled embeddings", config.embedding_scale);
  if (config.logit_soft_cap != 0)
    return Unsupported("logit_soft_cap {}: no backend computes soft-capped logits", config.logit_soft_cap);
  for (size_t layer = 0; layer < config.specs.size(); ++layer) {
    const LayerSpec& spec = config.specs[layer];
    CHECK(spec.attention_scale > 0 && spec.rope >= LayerSpec::kNoRope && spec.rope < std::ssize(config.ropes));
    const std::string field = UnsupportedField(config, spec);
    if (!field.empty()) return Unsupported("layer {}: {}", layer, field);
  }
  return Ok();
}

std::vector<float> RopeInverseFrequencies(const RopeConfig& rope, int64_t head_dim) {
  const int64_t dims = rope.dims(head_dim);
  CHECK(dims > 0 && dims % 2 == 0 && dims <= head_dim);
  CHECK(rope.frequency_divisors.empty() || std::ssize(rope.frequency_divisors) == dims / 2);
  const auto base = static_cast<float>(rope.base);
  std::vector<float> result(static_cast<size_t>(dims / 2));
  for (size_t i = 0; i < result.size(); ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(dims);
    result[i] = ScaledFrequency(rope, 1.0f / std::pow(base, exponent));
    if (!rope.frequency_divisors.empty()) result[i] /= rope.frequency_divisors[i];
  }
  return result;
}

}  // namespace infinigen
