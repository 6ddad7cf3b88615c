#include "kv/index.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "tensor/dtype.h"

namespace infinigen {
namespace {

float LargestMagnitude(std::span<const float> numbers) {
  float largest = 0;
  for (const float number : numbers)
    if (std::isfinite(number)) largest = std::max(largest, std::fabs(number));
  return largest;
}

// The smallest bf16 ≥ `value`. Precondition: value ≥ 0.
BF16 RoundUp(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  bits = (bits + 0xffff) & 0xffff0000u;
  float rounded;
  std::memcpy(&rounded, &bits, sizeof(bits));
  return ToBF16(std::isfinite(rounded) ? rounded : value);
}

// The numbers of one kind of sketch, of keys or of values, in a block: arrays of units and of scales.
struct Numbers {
  SketchType type;
  int64_t count;         // per row
  int64_t group;         // numbers that share a scale
  size_t units, scales;  // offsets in the block

  static Numbers OfKeys(const SketchLayout& layout) {
    return {layout.type, layout.dims, layout.group_dims(), 0, layout.scales_offset()};
  }
  static Numbers OfValues(const SketchLayout& layout) {
    return {SketchType::kInt4, layout.value_dims, layout.value_dims, layout.values_offset(),
            layout.value_scales_offset()};
  }

  int64_t per_unit() const { return type == SketchType::kBF16 ? 2 : type == SketchType::kInt8 ? 4 : 8; }
  template <class Byte>
  Byte* Unit(Byte* block, int64_t row, int64_t number) const {
    return block + units + (number / per_unit() * kSketchBlock + row) * kSketchUnitBytes;
  }
  size_t Scale(int64_t row, int64_t number) const {
    return scales + static_cast<size_t>(number / group * kSketchBlock + row) * sizeof(BF16);
  }

  int32_t LoadValue(const std::byte* block, int64_t row, int64_t number) const {
    const std::byte* unit = Unit(block, row, number);
    const int64_t within = number % per_unit();
    if (type == SketchType::kInt8) return std::to_integer<int32_t>(unit[within]) - 128;
    const int32_t byte = std::to_integer<int32_t>(unit[within % 4]);
    return (within < 4 ? byte & 15 : byte >> 4) - 8;
  }
  void StoreValue(std::byte* block, int64_t row, int64_t number, int32_t value) const {
    std::byte* unit = Unit(block, row, number);
    const int64_t within = number % per_unit();
    if (type == SketchType::kInt8) {
      unit[within] = static_cast<std::byte>(value + 128);
      return;
    }
    std::byte& byte = unit[within % 4];
    const int32_t nibble = value + 8;
    byte = within < 4 ? (byte & std::byte{0xf0}) | static_cast<std::byte>(nibble)
                      : (byte & std::byte{0x0f}) | static_cast<std::byte>(nibble << 4);
  }
  float LoadScale(const std::byte* block, int64_t row, int64_t number) const {
    BF16 scale;
    std::memcpy(&scale, block + Scale(row, number), sizeof(BF16));
    return ToFloat(scale);
  }
  float Load(const std::byte* block, int64_t row, int64_t number) const {
    if (type != SketchType::kBF16)
      return static_cast<float>(LoadValue(block, row, number)) * LoadScale(block, row, number);
    BF16 stored;
    std::memcpy(&stored, Unit(block, row, number) + number % 2 * static_cast<int64_t>(sizeof(BF16)), sizeof(BF16));
    return ToFloat(stored);
  }
};

void StoreNumbers(const Numbers& to, std::byte* block, int64_t row, std::span<const float> numbers) {
  CHECK(static_cast<int64_t>(numbers.size()) == to.count && row >= 0 && row < kSketchBlock);
  const auto finite = [](float number) { return std::isfinite(number) ? number : 0.0f; };
  if (to.type == SketchType::kBF16) {
    for (int64_t i = 0; i < to.count; ++i) {
      const BF16 stored = ToBF16(finite(numbers[static_cast<size_t>(i)]));
      std::memcpy(to.Unit(block, row, i) + i % 2 * static_cast<int64_t>(sizeof(BF16)), &stored, sizeof(BF16));
    }
    return;
  }
  const float most = to.type == SketchType::kInt8 ? 127.0f : static_cast<float>(SketchLayout::kLargestInt4);
  for (int64_t first = 0; first < to.count; first += to.group) {
    const int64_t end = std::min(first + to.group, to.count);
    const BF16 scale =
        RoundUp(LargestMagnitude(numbers.subspan(static_cast<size_t>(first), static_cast<size_t>(end - first))) / most);
    std::memcpy(block + to.Scale(row, first), &scale, sizeof(BF16));
    // The inverse of a tiny scale overflows; such numbers are stored as zero.
    const float wanted = 1.0f / ToFloat(scale), inverse = std::isfinite(wanted) ? wanted : 0.0f;
    for (int64_t i = first; i < end; ++i) {
      const float value = std::nearbyint(finite(numbers[static_cast<size_t>(i)]) * inverse);
      to.StoreValue(block, row, i, static_cast<int32_t>(std::clamp(value, -most, most)));
    }
  }
}

std::vector<float> LoadNumbers(const Numbers& from, const std::byte* block, int64_t row) {
  std::vector<float> numbers;
  for (int64_t i = 0; i < from.count; ++i) numbers.push_back(from.Load(block, row, i));
  return numbers;
}

}  // namespace

void StoreSketch(const SketchLayout& layout, std::byte* block, int64_t row, std::span<const float> numbers) {
  StoreNumbers(Numbers::OfKeys(layout), block, row, numbers);
}
void StoreValueSketch(const SketchLayout& layout, std::byte* block, int64_t row, std::span<const float> numbers) {
  StoreNumbers(Numbers::OfValues(layout), block, row, numbers);
}
std::vector<float> LoadSketch(const SketchLayout& layout, const std::byte* block, int64_t row) {
  return LoadNumbers(Numbers::OfKeys(layout), block, row);
}
std::vector<float> LoadValueSketch(const SketchLayout& layout, const std::byte* block, int64_t row) {
  return LoadNumbers(Numbers::OfValues(layout), block, row);
}

void StoreBlockMean(const SketchLayout& layout, std::byte* block, std::span<const float> values,
                    std::span<const float> value_mean) {
  CHECK(layout.has_means() && values.size() == static_cast<size_t>(kSketchBlock * layout.mean_dims));
  std::vector<float> mean(static_cast<size_t>(layout.mean_dims));
  for (size_t i = 0; i < mean.size(); ++i) {
    for (size_t row = 0; row < kSketchBlock; ++row) mean[i] += values[row * mean.size() + i];
    mean[i] = mean[i] * (1.0f / kSketchBlock) - value_mean[i];
  }
  const float most = static_cast<float>(SketchLayout::kLargestMean);
  const BF16 scale = RoundUp(LargestMagnitude(mean) / most);
  std::memcpy(block + layout.mean_scale_offset(), &scale, sizeof(BF16));
  const float wanted = 1.0f / ToFloat(scale), inverse = std::isfinite(wanted) ? wanted : 0.0f;
  for (size_t i = 0; i < mean.size(); ++i) {
    const float value = std::isfinite(mean[i]) ? std::nearbyint(mean[i] * inverse) : 0.0f;
    block[layout.means_offset() + i] = static_cast<std::byte>(static_cast<int8_t>(std::clamp(value, -most, most)));
  }
}

std::vector<float> LoadBlockMean(const SketchLayout& layout, const std::byte* block) {
  CHECK(layout.has_means());
  BF16 scale;
  std::memcpy(&scale, block + layout.mean_scale_offset(), sizeof(BF16));
  std::vector<float> mean;
  for (int64_t i = 0; i < layout.mean_dims; ++i)
    mean.push_back(static_cast<float>(static_cast<int8_t>(block[layout.means_offset() + static_cast<size_t>(i)])) *
                   ToFloat(scale));
  return mean;
}

QuantisedQuery QuantiseQuery(std::span<const float> numbers) {
  QuantisedQuery query{.values = std::vector<int32_t>(numbers.size()),
                       .scale = LargestMagnitude(numbers) / static_cast<float>(kLargestQueryValue)};
  if (!(query.scale > 0)) return query;
  const float most = static_cast<float>(kLargestQueryValue), inverse = 1.0f / query.scale;
  if (!std::isfinite(inverse)) return query;  // so small that every score is zero
  for (size_t i = 0; i < numbers.size(); ++i)
    if (std::isfinite(numbers[i]))
      query.values[i] = static_cast<int32_t>(std::clamp(std::nearbyint(numbers[i] * inverse), -most, most));
  return query;
}

std::vector<float> ScoreSketches(const SketchLayout& layout, const std::byte* head, int64_t rows,
                                 std::span<const float> query) {
  CHECK(static_cast<int64_t>(query.size()) == layout.dims);
  const QuantisedQuery quantised = QuantiseQuery(query);
  const Numbers keys = Numbers::OfKeys(layout);
  std::vector<float> scores(static_cast<size_t>(rows));
  for (int64_t row = 0; row < rows; ++row) {
    const std::byte* block = head + static_cast<size_t>(row / kSketchBlock) * layout.block_bytes();
    const int64_t within = row % kSketchBlock;
    float& score = scores[static_cast<size_t>(row)];
    if (!layout.has_scales()) {
      for (int64_t i = 0; i < layout.dims; ++i)
        score = std::fma(query[static_cast<size_t>(i)], keys.Load(block, within, i), score);
      continue;
    }
    for (int64_t first = 0; first < layout.dims; first += keys.group) {
      int32_t sum = 0;
      for (int64_t i = first; i < std::min(first + keys.group, layout.dims); ++i)
        sum += quantised.values[static_cast<size_t>(i)] * keys.LoadValue(block, within, i);
      const float part = static_cast<float>(sum) * quantised.scale * keys.LoadScale(block, within, first);
      score = first == 0 ? part : score + part;
    }
  }
  return scores;
}

// ---- page bounds ----

BF16 RoundUpToBF16(float number) {
  // Rounding up raises the magnitude of a positive number and truncates that of a negative one.
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
