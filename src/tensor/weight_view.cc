#include "tensor/weight_view.h"

#include <cstring>

#include "base/size.h"

namespace infinigen {
namespace {

template <class T>
T Read(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

void DecodePlain(WeightType type, const std::byte* from, std::span<float> out) {
  DispatchPlain(type, [&](auto tag) {
    for (float& number : out) {
      number = ToFloat(Read<decltype(tag)>(from));
      from += sizeof(tag);
    }
  });
}

void DecodeQ8_0(const std::byte* from, std::span<float> out) {
  constexpr WeightFormat format = FormatOf(WeightType::kQ8_0);
  for (size_t first = 0; first < out.size(); first += format.block_numbers, from += format.block_bytes) {
    const float scale = ToFloat(Read<F16>(from));
    for (size_t i = 0; i < static_cast<size_t>(format.block_numbers); ++i)
      out[first + i] = scale * static_cast<float>(Read<int8_t>(from + sizeof(F16) + i));
  }
}

}  // namespace

Result<WeightView> WeightView::Make(const std::byte* data, WeightType type, int64_t rows, int64_t cols) {
  const WeightFormat& format = FormatOf(type);
  if (rows < 0 || cols < 0) return Invalid("a matrix cannot have the shape {} x {}", rows, cols);
  if (cols % format.block_numbers != 0)
    return Invalid("a row of {} numbers is not a whole number of {} blocks (of {} numbers each)", cols, format.name,
                   format.block_numbers);
  const auto row_bytes =
      CheckedMul(static_cast<uint64_t>(cols / format.block_numbers), static_cast<uint64_t>(format.block_bytes));
  const auto bytes = row_bytes ? CheckedMul(static_cast<uint64_t>(rows), *row_bytes) : std::nullopt;
  if (!bytes || *bytes > static_cast<uint64_t>(INT64_MAX))
    return Invalid("the size of a {} x {} matrix of type {} overflows", rows, cols, format.name);
  WeightView view;
  view.data = data;
  view.type = type;
  view.rows = rows;
  view.cols = cols;
  view.row_bytes = static_cast<int64_t>(*row_bytes);
  return view;
}

void DecodeRow(const WeightView& weight, int64_t row, std::span<float> out) {
  CHECK(row >= 0 && row < weight.rows && std::ssize(out) == weight.cols);
  switch (weight.type) {
    case WeightType::kF32:
    case WeightType::kF16:
    case WeightType::kBF16:
      return DecodePlain(weight.type, weight.row(row), out);
    case WeightType::kQ8_0:
      return DecodeQ8_0(weight.row(row), out);
  }
  CHECK(false);
}

}  // namespace infinigen
