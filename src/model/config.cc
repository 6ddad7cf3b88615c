#include "model/config.h"

#include <cmath>

#include "base/check.h"

namespace infinigen {

std::vector<float> RopeInverseFrequencies(const RopeConfig& rope, int64_t head_dim) {
  CHECK(head_dim > 0 && head_dim % 2 == 0);
  const auto theta = static_cast<float>(rope.theta);
  const auto factor = static_cast<float>(rope.factor);
  std::vector<float> result(static_cast<size_t>(head_dim / 2));
  for (size_t i = 0; i < result.size(); ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(head_dim);
    const float frequency = 1.0f / std::pow(theta, exponent);
    result[i] = frequency;
    if (rope.scaling == RopeScaling::kLinear) result[i] = frequency / factor;
    if (rope.scaling != RopeScaling::kLlama3) continue;
    // Long wavelengths are stretched by `factor`, short ones stay, those between are mixed.
    const auto context = static_cast<double>(rope.original_max_positions);
    const auto low_wavelength = static_cast<float>(context / rope.low_freq_factor);
    const auto high_wavelength = static_cast<float>(context / rope.high_freq_factor);
    const float wavelength = static_cast<float>(2.0 * M_PI) / frequency;
    if (wavelength > low_wavelength) {
      result[i] = frequency / factor;
    } else if (wavelength >= high_wavelength) {
      const float smooth = (static_cast<float>(context) / wavelength - static_cast<float>(rope.low_freq_factor)) /
                           static_cast<float>(rope.high_freq_factor - rope.low_freq_factor);
      result[i] = (1.0f - smooth) * frequency / factor + smooth * frequency;
    }
  }
  return result;
}

}  // namespace infinigen
