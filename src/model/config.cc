#include "model/config.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace infinigen {
namespace {

// The first field of a layer that no backend supports, with the reason; empty if there is none.
std::string UnsupportedField(const ModelConfig& config, const LayerSpec& spec) {
  const int64_t window = config.window();
  if (spec.window != 0 && spec.window != window)
    return fmt::format("window {}: another layer has a window of {}, and all windows must be the same", spec.window,
                       window);
  if (spec.qk_norm == QkNorm::kWhole) return "qk_norm whole: no backend computes norms of q and k over all heads";
  if (spec.norm_placement != config.specs.front().norm_placement)
    return "norm_placement unlike layer 0: no backend computes norms placed differently from layer to layer";
  if (spec.mlp.gated == (spec.mlp.activation == Activation::kRelu))
    return spec.mlp.gated ? "mlp.gated: no backend computes a gate with relu"
                          : "mlp.activation: no backend computes silu or gelu-tanh without a gate";
  if (spec.rope == LayerSpec::kNoRope) return {};
  const RopeConfig& rope = config.ropes[static_cast<size_t>(spec.rope)];
  const int64_t dims = rope.dims(config.head_dim);
  if (dims <= 0 || dims > config.head_dim || dims % 2 != 0)
    return fmt::format("rope.rotary_dims {}: expected an even number up to head_dim {}", dims, config.head_dim);
  for (const std::vector<float>* divisors : {&rope.frequency_divisors, &rope.long_divisors})
    if (!divisors->empty() && std::ssize(*divisors) != dims / 2)
      return fmt::format("rope has {} frequency divisors for {} planes", divisors->size(), dims / 2);
  return {};
}

// The plane, as a fraction of `dims`/2 planes, that turns `turns` times over the original positions.
double PlaneOfTurns(const RopeConfig& rope, int64_t dims, double turns) {
  const auto context = static_cast<double>(rope.original_max_positions);
  return static_cast<double>(dims) * std::log(context / (turns * 2 * M_PI)) / (2 * std::log(rope.base));
}

// Frequency of plane i of dims/2; `wave` is base^(2i/dims).
float YarnFrequency(const RopeConfig& rope, int64_t dims, size_t i, float wave) {
  double first = PlaneOfTurns(rope, dims, rope.high_freq_factor), last = PlaneOfTurns(rope, dims, rope.low_freq_factor);
  if (rope.truncate) {
    first = std::floor(first);
    last = std::ceil(last);
  }
  first = std::max(first, 0.0);
  last = std::min(last, static_cast<double>(dims - 1));
  if (first == last) last += 0.001;
  const auto ramp = static_cast<float>(std::clamp((static_cast<double>(i) - first) / (last - first), 0.0, 1.0));
  const float keep = 1.0f - ramp;
  return 1.0f / (static_cast<float>(rope.factor) * wave) * (1.0f - keep) + 1.0f / wave * keep;
}

float Llama3Frequency(const RopeConfig& rope, float frequency) {
  const auto factor = static_cast<float>(rope.factor);
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

float FrequencyOf(const RopeConfig& rope, int64_t dims, size_t i) {
  const float exponent = static_cast<float>(2 * i) / static_cast<float>(dims);
  const float wave = std::pow(static_cast<float>(rope.base), exponent);
  switch (rope.scaling) {
    case RopeScaling::kNone:
      return 1.0f / wave;
    case RopeScaling::kLinear:
      return 1.0f / wave / static_cast<float>(rope.factor);
    case RopeScaling::kLlama3:
      return Llama3Frequency(rope, 1.0f / wave);
    case RopeScaling::kYarn:
      return YarnFrequency(rope, dims, i, wave);
  }
  CHECK(false);
}

}  // namespace

bool ModelConfig::rotates() const {
  return std::any_of(specs.begin(), specs.end(), [](const LayerSpec& spec) { return spec.rope != LayerSpec::kNoRope; });
}

int64_t ModelConfig::window() const {
  for (const LayerSpec& spec : specs)
    if (spec.window != 0) return spec.window;
  return 0;
}

bool ModelConfig::norms_outputs() const { return specs.front().norm_placement == NormPlacement::kBothSides; }

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
  for (size_t layer = 0; layer < config.specs.size(); ++layer) {
    const LayerSpec& spec = config.specs[layer];
    CHECK(spec.attention_scale > 0 && spec.attention_soft_cap >= 0 && spec.window >= 0 &&
          spec.rope >= LayerSpec::kNoRope && spec.rope < std::ssize(config.ropes));
    const std::string field = UnsupportedField(config, spec);
    if (!field.empty()) return Unsupported("layer {}: {}", layer, field);
  }
  return Ok();
}

std::vector<float> RopeInverseFrequencies(const RopeConfig& rope, int64_t head_dim, int64_t context) {
  const int64_t dims = rope.dims(head_dim);
  CHECK(dims > 0 && dims % 2 == 0 && dims <= head_dim);
  const bool far = !rope.long_divisors.empty() && context > rope.original_max_positions;
  const std::vector<float>& divisors = far ? rope.long_divisors : rope.frequency_divisors;
  CHECK(divisors.empty() || std::ssize(divisors) == dims / 2);
  std::vector<float> result(static_cast<size_t>(dims / 2));
  for (size_t i = 0; i < result.size(); ++i) {
    result[i] = FrequencyOf(rope, dims, i);
    if (!divisors.empty()) result[i] /= divisors[i];
  }
  return result;
}

}  // namespace infinigen
