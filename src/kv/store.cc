#include "kv/store.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace infinigen {
namespace {

float Storable(float number) { return std::isnan(number) ? 0.0f : std::clamp(number, -kLargestStored, kLargestStored); }

// `first` is the group's first number, `codes` the row's codes.
void StoreGroupCodes(StoreType type, std::span<const float> numbers, int64_t first, std::byte* header, std::byte* codes,
                     std::byte* high_bits) {
  float low = kLargestStored, high = -kLargestStored;
  for (const float number : numbers) {
    low = std::min(low, Storable(number));
    high = std::max(high, Storable(number));
  }
  const int32_t largest = LargestCode(type);
  const GroupHeader fitted = FitGroup(low, high, largest);
  std::memcpy(header, &fitted, sizeof(fitted));
  const float scale = ToFloat(fitted.scale), minimum = ToFloat(fitted.minimum);
  for (size_t i = 0; i < numbers.size(); ++i) {
    // To nearest, halves to even. A scale of zero means that all numbers equal the minimum.
    const float steps = scale > 0 ? std::nearbyint((Storable(numbers[i]) - minimum) / scale) : 0.0f;
    const auto code = static_cast<uint32_t>(std::clamp(steps, 0.0f, static_cast<float>(largest)));
    const int64_t at = first + static_cast<int64_t>(i);
    if (type == StoreType::kInt8)
      codes[at] = static_cast<std::byte>(code);
    else
      codes[at / 2] |= static_cast<std::byte>((code & 15) << (at % 2 * 4));
    if (type == StoreType::kInt6) high_bits[HighByte(at)] |= static_cast<std::byte>(code >> 4 << (at % 4 * 2));
  }
}

void LoadGroupCodes(StoreType type, const std::byte* header, const std::byte* codes, const std::byte* high_bits,
                    int64_t first, std::span<float> numbers) {
  GroupHeader stored;
  std::memcpy(&stored, header, sizeof(stored));
  for (size_t i = 0; i < numbers.size(); ++i) {
    const int64_t at = first + static_cast<int64_t>(i);
    uint32_t code = type == StoreType::kInt8 ? std::to_integer<uint32_t>(codes[at])
                                             : std::to_integer<uint32_t>(codes[at / 2]) >> (at % 2 * 4) & 15;
    if (type == StoreType::kInt6) code |= (std::to_integer<uint32_t>(high_bits[HighByte(at)]) >> (at % 4 * 2) & 3) << 4;
    numbers[i] = std::fma(static_cast<float>(code), ToFloat(stored.scale), ToFloat(stored.minimum));
  }
}

// Calls f(numbers, first number, header) for every group of the quantised row at `row`.
template <class Number, class Byte, class F>
void ForGroups(std::span<Number> numbers, Byte* row, F&& f) {
  const auto dim = static_cast<int64_t>(numbers.size());
  for (int64_t first = 0; first < dim; first += kStoreGroup, row += sizeof(GroupHeader)) {
    const int64_t count = std::min(kStoreGroup, dim - first);
    f(numbers.subspan(static_cast<size_t>(first), static_cast<size_t>(count)), first, row);
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
    const auto dim = static_cast<int64_t>(row.size());
    std::byte* codes = out + StoreHeaderBytes(dim);
    std::fill(codes, out + StoredBytes(type, dim), std::byte{0});
    ForGroups(row, out, [&](std::span<const float> numbers, int64_t first, std::byte* header) {
      StoreGroupCodes(type, numbers, first, header, codes, codes + LowBytes(dim));
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
    const auto dim = static_cast<int64_t>(row.size());
    const std::byte* codes = in + StoreHeaderBytes(dim);
    ForGroups(row, in, [&](std::span<float> numbers, int64_t first, const std::byte* header) {
      LoadGroupCodes(type, header, codes, codes + LowBytes(dim), first, numbers);
    });
    return;
  }
  for (size_t i = 0; i < row.size(); ++i)
    row[i] = type == StoreType::kF32   ? Get<float>(in, i)
             : type == StoreType::kF16 ? ToFloat(Get<F16>(in, i))
                                       : ToFloat(Get<BF16>(in, i));
}

}  // namespace infinigen
