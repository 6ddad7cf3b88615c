#include "tensor/finite.h"

#include <algorithm>
#include <cstring>
#include <limits>

namespace infinigen {
namespace {

// Numbers between two looks at the result: the inner loop has no exit, so that it is vectorised.
constexpr size_t kRun = 4096;

// `exponent`: the bits that are all set in NaN and infinities only.
template <class Bits>
std::optional<int64_t> FirstOf(std::span<const std::byte> bytes, Bits exponent) {
  const size_t count = bytes.size() / sizeof(Bits);
  const auto is_broken = [&](size_t i) -> bool {
    Bits bits;
    std::memcpy(&bits, bytes.data() + i * sizeof(Bits), sizeof(Bits));
    return (bits & exponent) == exponent;
  };
  for (size_t first = 0; first < count; first += kRun) {
    const size_t end = std::min(count, first + kRun);
    Bits broken = 0;
    for (size_t i = first; i < end; ++i) broken = static_cast<Bits>(broken | static_cast<Bits>(is_broken(i)));
    if (broken == 0) continue;
    for (size_t i = first; i < end; ++i)
      if (is_broken(i)) return static_cast<int64_t>(i);
  }
  return std::nullopt;
}

// Where the f16 scales of a block lie (block_formats.cc).
struct ScaleOffsets {
  size_t first = 0;
  size_t count = 1;
};
ScaleOffsets ScalesOf(WeightType type) {
  switch (type) {
    case WeightType::kQ4_1:
    case WeightType::kQ5_1:
    case WeightType::kQ4_K:
    case WeightType::kQ5_K:
      return {0, 2};
    case WeightType::kQ2_K:
      return {80, 2};
    case WeightType::kQ3_K:
      return {108, 1};
    case WeightType::kQ6_K:
      return {208, 1};
    default:
      return {0, 1};
  }
}

constexpr uint16_t kF16Exponent = 0x7C00;
constexpr std::byte kMxfp4Nan{0xFF};  // the exponent that the format reserves

}  // namespace

std::optional<int64_t> FirstNotFinite(WeightType type, std::span<const std::byte> bytes) {
  if (type == WeightType::kF32) return FirstOf<uint32_t>(bytes, 0x7F800000u);
  if (type == WeightType::kF16) return FirstOf<uint16_t>(bytes, kF16Exponent);
  if (type == WeightType::kBF16) return FirstOf<uint16_t>(bytes, 0x7F80);
  const WeightFormat& format = FormatOf(type);
  const auto block_bytes = static_cast<size_t>(format.block_bytes);
  const ScaleOffsets scales = ScalesOf(type);
  for (size_t block = 0; (block + 1) * block_bytes <= bytes.size(); ++block) {
    const std::span<const std::byte> of = bytes.subspan(block * block_bytes, block_bytes);
    const bool broken = type == WeightType::kMxfp4
                            ? of[0] == kMxfp4Nan
                            : FirstOf<uint16_t>(of.subspan(scales.first, 2 * scales.count), kF16Exponent).has_value();
    if (broken) return static_cast<int64_t>(block) * format.block_numbers;
  }
  return std::nullopt;
}

bool AllFinite(std::span<const float> numbers) {
  return !FirstOf<uint32_t>(std::as_bytes(numbers), 0x7F800000u).has_value();
}

}  // namespace infinigen
