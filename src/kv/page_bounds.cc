#include "kv/page_bounds.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/check.h"

namespace infinigen {

BF16 RoundUpToBF16(float number) {
  // As bits, positive numbers grow with their magnitude and negative ones shrink.
  const uint32_t bits = std::bit_cast<uint32_t>(number);
  const uint32_t up = std::signbit(number) ? bits >> 16 : (bits + 0xffffu) >> 16;
  constexpr uint32_t kInfinity = 0x7f80;
  return {static_cast<uint16_t>(up == kInfinity ? kInfinity - 1 : up)};
}

BF16 RoundDownToBF16(float number) {
  const BF16 up = RoundUpToBF16(-number);
  return {static_cast<uint16_t>(up.bits ^ 0x8000u)};
}

void AddToBounds(std::span<BF16> bounds, int64_t row, std::span<const float> key) {
  const size_t d = key.size();
  CHECK(bounds.size() == 2 * d);
  for (size_t i = 0; i < d; ++i) {
    const float number = std::isfinite(key[i]) ? key[i] : 0.0f;
    const BF16 down = RoundDownToBF16(number), up = RoundUpToBF16(number);
    const bool starts = row % kPageRows == 0;
    if (starts || ToFloat(down) < ToFloat(bounds[i])) bounds[i] = down;
    if (starts || ToFloat(up) > ToFloat(bounds[d + i])) bounds[d + i] = up;
  }
}

float PageScore(std::span<const BF16> bounds, std::span<const float> query) {
  const size_t d = query.size();
  CHECK(bounds.size() == 2 * d);
  float score = 0;
  for (size_t i = 0; i < d; ++i) score += query[i] * ToFloat(query[i] > 0 ? bounds[d + i] : bounds[i]);
  return score;
}

}  // namespace infinigen
