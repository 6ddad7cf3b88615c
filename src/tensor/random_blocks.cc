#include "tensor/random_blocks.h"

#include <cmath>
#include <cstring>

#include "base/check.h"

namespace infinigen {
namespace {

void StoreScale(float value, std::byte* to) {
  const F16 stored = ToF16(value);
  std::memcpy(to, &stored, sizeof(stored));
}
void Fill(std::byte* to, int value, size_t bytes) { std::memset(to, value, bytes); }

// Standard deviation of uniform integers 0 … count − 1.
float Spread(float count) { return std::sqrt((count * count - 1) / 12); }
// Standard deviations of the numbers in kIq4Numbers and kMxfp4Numbers.
constexpr float kIq4Spread = 67.2f, kMxfp4Spread = 5.85f;

// An f16 scale for `codes` uniform codes, and the minimum that centres them.
void PutScaleAndMinimum(float deviation, float codes, float sign, std::byte* to) {
  const float scale = deviation / Spread(codes);
  StoreScale(scale, to);
  StoreScale(sign * scale * (codes - 1) / 2, to + 2);
}

}  // namespace

void SetBlockScales(WeightType type, float deviation, std::byte* block) {
  switch (type) {
    case WeightType::kQ8_0:
      return StoreScale(deviation / Spread(256), block);
    case WeightType::kQ4_0:
      return StoreScale(deviation / Spread(16), block);
    case WeightType::kQ4_1:
      return PutScaleAndMinimum(deviation, 16, -1, block);
    case WeightType::kQ5_0:
      return StoreScale(deviation / Spread(32), block);
    case WeightType::kQ5_1:
      return PutScaleAndMinimum(deviation, 32, -1, block);
    case WeightType::kQ2_K:
      Fill(block, 0x88, 16);  // all multipliers are 8
      return PutScaleAndMinimum(deviation / 8, 4, 1, block + 80);
    case WeightType::kQ3_K:
      Fill(block + 96, 0x00, 8);  // all multipliers are 48 − 32
      Fill(block + 104, 0xff, 4);
      return StoreScale(deviation / 16 / Spread(8), block + 108);
    case WeightType::kQ4_K:
    case WeightType::kQ5_K:
      Fill(block + 4, 0xa0, 8);  // all scales and minima are 32
      Fill(block + 12, 0x00, 4);
      return PutScaleAndMinimum(deviation / 32, type == WeightType::kQ4_K ? 16.0f : 32.0f, 1, block);
    case WeightType::kQ6_K:
      Fill(block + 192, 32, 16);
      return StoreScale(deviation / 32 / Spread(64), block + 208);
    case WeightType::kIq4Nl:
      return StoreScale(deviation / kIq4Spread, block);
    case WeightType::kIq4Xs:
      Fill(block + 2, 0xff, 2);  // all scales are 48 − 32
      Fill(block + 4, 0x00, 4);
      return StoreScale(deviation / 16 / kIq4Spread, block);
    case WeightType::kMxfp4:
      // The scale is a power of two, so the deviation is met within a factor of √2.
      block[0] = static_cast<std::byte>(128 + std::lround(std::log2(deviation / kMxfp4Spread)));
      return;
    case WeightType::kF32:
    case WeightType::kF16:
    case WeightType::kBF16:
      break;
  }
  CHECK(false);
}

}  // namespace infinigen
