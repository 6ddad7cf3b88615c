#include "backend/reference/block_product.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "backend/block_arithmetic.h"
#include "tensor/block_formats.h"

namespace infinigen {
namespace {

struct QuantisedGroup {
  float scale = 0;
  std::array<int, kGroupNumbers> codes = {};
};

QuantisedGroup Quantise(std::span<const float> numbers) {
  QuantisedGroup group;
  float largest = 0;
  for (const float number : numbers) {
    if (!std::isfinite(number)) {
      group.scale = std::numeric_limits<float>::quiet_NaN();
      return group;
    }
    largest = std::max(largest, std::fabs(number));
  }
  if (largest < kSmallestMagnitude) return group;
  group.scale = largest / kLargestCode;
  const float inverse = kLargestCode / largest;
  for (size_t i = 0; i < numbers.size(); ++i) group.codes[i] = static_cast<int>(std::nearbyint(numbers[i] * inverse));
  return group;
}

// The term of group `index` of a block.
float Term(const UnpackedBlock& block, size_t index, bool offsets, const QuantisedGroup& x) {
  int sum = 0, offset_sum = 0;
  for (size_t i = 0; i < kGroupNumbers; ++i) {
    const size_t at = index * kGroupNumbers + i, half = at / kHalfNumbers;
    sum += block.multiplier[half] * block.codes[at] * x.codes[i];
    offset_sum += block.offset_multiplier[half] * x.codes[i];
  }
  const float scaled = x.scale * static_cast<float>(sum);
  if (!offsets) return block.scale[index] * scaled;
  return std::fma(block.scale[index], scaled, block.offset[index] * (x.scale * static_cast<float>(offset_sum)));
}

}  // namespace

float BlockProduct(const WeightView& weight, int64_t row, std::span<const float> x) {
  const WeightFormat& format = FormatOf(weight.type);
  std::array<float, kBlockLanes> lanes = {};
  UnpackedBlock block;
  for (int64_t first = 0; first < weight.cols; first += kGroupNumbers) {
    const int64_t group = first / kGroupNumbers, inside = first % format.block_numbers;
    if (inside == 0)
      UnpackBlock(weight.type, weight.row(row) + first / format.block_numbers * format.block_bytes, block);
    const QuantisedGroup quantised = Quantise(x.subspan(static_cast<size_t>(first), kGroupNumbers));
    lanes[static_cast<size_t>(group % kBlockLanes)] +=
        Term(block, static_cast<size_t>(inside / kGroupNumbers), HasOffsets(weight.type), quantised);
  }
  return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
}

}  // namespace infinigen
