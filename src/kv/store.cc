#include "kv/store.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace infinigen {
namespace {

float Storable(float number) { return std::isnan(number) ? 0.0f : std::clamp(number, -kLargestStored, kLargestStored); }

void StoreGroupCodes(StoreType type, std::span<const float> numbers, std::byte* header, std::byte* codes) {
  float low = kLargestStored, high = -kLargestStored;
  for (const float number : numbers) {
    low = std::min(low, Storable(number));
    high = std::max(high, Storable(number));
  }
  const int32_t largest = LargestCode(type);
  const GroupHeader fitted = FitGroup(low, high, largest);
  std::memcpy(header, &fitted, sizeof(fitted));
  const float scale = ToFloat(fitted.scale), minimum = ToFloat(fitted.minimum);
  if (type == StoreType::kInt4) std::fill_n(codes, (numbers.size() + 1) / 2, std::byte{0});
  for (size_t i = 0; i < numbers.size(); ++i) {
    // To nearest, halves to even. A scale of zero means that all numbers equal the minimum.
    const float steps = scale > 0 ? std::nearbyint((Storable(numbers[i]) - minimum) / scale) : 0.0f;
    const auto code = static_cast<uint32_t>(std::clamp(steps, 0.0f, static_cast<float>(largest)));
    if (type == StoreType::kInt8)
      codes[i] = static_cast<std::byte>(code);
    else
      codes[i / 2] |= static_cast<std::byte>(code << (i % 2 * 4));
  }
}

void LoadGroupCodes(StoreType type, const std::byte* header, const std::byte* codes, std::span<float> numbers) {
  GroupHeader stored;
  std::memcpy(&stored, header, sizeof(stored));
  for (size_t i = 0; i < numbers.size(); ++i) {
    const uint32_t code = type == StoreType::kInt8 ? std::to_integer<uint32_t>(codes[i])
                                                   : std::to_integer<uint32_t>(codes[i / 2]) >> (i % 2 * 4) & 15;
    numbers[i] = std::fma(static_cast<float>(code), ToFloat(stored.scale), ToFloat(stored.minimum));
  }
}

// Calls f(numbers, header, codes) for every group of the quantised row at `row`.
template <class Number, class Byte, class F>
void ForGroups(StoreType type, std::span<Number> numbers, Byte* row, F&& f) {
  const auto dim = static_cast<int64_t>(numbers.size());
  Byte* codes = row + StoreHeaderBytes(dim);
  for (int64_t first = 0; first < dim; first += kStoreGroup, row += sizeof(GroupHeader)) {
    const int64_t count = std::min(kStoreGroup, dim - first);
    f(numbers.subspan(static_cast<size_t>(first), static_cast<size_t>(count)), row,
      codes + (type == StoreType::kInt8 ? first : first / 2));
  }
}

// One number at a time, because rows have no alignment.
template <class T>
void Put(std::byte* out, size_t i, T stored) {
  std::memcpy(out + i * sizeof(T), &stored, sizeof(T));
}
template <class T>
T Get(const std::byte* in, size_t i) {
  T stored;
  std::memcpy(&stored, in + i * sizeof(T), sizeof(T));
  return stored;
}

}  // namespace

void StoreRow(StoreType type, std::span<const float> row, std::byte* out) {
  if (IsQuantised(type)) {
    ForGroups(type, row, out, [&](std::span<const float> numbers, std::byte* header, std::byte* codes) {
      StoreGroupCodes(type, numbers, header, codes);
    });
    return;
  }
  for (size_t i = 0; i < row.size(); ++i) {
    if (type == StoreType::kF32)
      Put(out, i, row[i]);
    else if (type == StoreType::kF16)
      Put(out, i, ToF16(row[i]));
    else
      Put(out, i, ToBF16(row[i]));
  }
}

void LoadRow(StoreType type, const std::byte* in, std::span<float> row) {
  if (IsQuantised(type)) {
    ForGroups(type, row, in, [&](std::span<float> numbers, const std::byte* header, const std::byte* codes) {
      LoadGroupCodes(type, header, codes, numbers);
    });
    return;
  }
  for (size_t i = 0; i < row.size(); ++i)
    row[i] = type == StoreType::kF32   ? Get<float>(in, i)
             : type == StoreType::kF16 ? ToFloat(Get<F16>(in, i))
                                       : ToFloat(Get<BF16>(in, i));
}

}  // namespace infinigen
