#include "tensor/weight_view.h"

#include <cstring>

#include "base/size.h"
#include "tensor/block_formats.h"

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

void DecodeBlocks(WeightType type, const std::byte* from, std::span<float> out) {
  const WeightFormat& format = FormatOf(type);
  const auto numbers = static_cast<size_t>(format.block_numbers);
  UnpackedBlock block;
  for (size_t first = 0; first < out.size(); first += numbers, from += format.block_bytes) {
    UnpackBlock(type, from, block);
    for (size_t i = 0; i < numbers; ++i) {
      const size_t group = i / kGroupNumbers, half = i / kHalfNumbers;
      const float number =
          block.scale[group] * static_cast<float>(block.multiplier[half]) * static_cast<float>(block.codes[i]);
      // Formats without offsets do not add zero, which would lose the sign of a zero.
      out[first + i] =
          HasOffsets(type) ? number + block.offset[group] * static_cast<float>(block.offset_multiplier[half]) : number;
    }
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
  if (IsPlain(weight.type)) return DecodePlain(weight.type, weight.row(row), out);
  DecodeBlocks(weight.type, weight.row(row), out);
}

}  // namespace infinigen
