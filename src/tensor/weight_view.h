// WeightView: a weight matrix as it is stored, in a plain type or in blocks of quantised numbers. It owns nothing and
// does not know where its memory is (host, device). Small parameter vectors (norms, biases) are f32 and a ConstTensor.
//
// A stored type is one row of kWeightFormats: with it sizes are right everywhere. DecodeRow says what the bytes mean;
// backends that have a product for the type are checked against it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/check.h"
#include "base/result.h"
#include "tensor/dtype.h"
#include "tensor/view.h"

namespace infinigen {

// The numbers take part in the identity of a model (model/identity.h): append, never renumber.
enum class WeightType : uint8_t {
  kF32,
  kF16,
  kBF16,
  kQ8_0,  // blocks of 32: an f16 scale, then 32 int8 codes; number = scale · code
};

struct WeightFormat {
  std::string_view name;
  int64_t block_numbers;  // a row is whole blocks
  int64_t block_bytes;
};
// By WeightType.
inline constexpr std::array<WeightFormat, 4> kWeightFormats = {{
    {"f32", 1, 4},
    {"f16", 1, 2},
    {"bf16", 1, 2},
    {"q8_0", 32, 34},
}};

constexpr const WeightFormat& FormatOf(WeightType type) { return kWeightFormats[static_cast<size_t>(type)]; }
constexpr std::string_view Name(WeightType type) { return FormatOf(type).name; }
// One number is one element: as<T> and DispatchPlain work.
constexpr bool IsPlain(WeightType type) { return FormatOf(type).block_numbers == 1; }
// The largest power of two that every block of an aligned matrix starts at a multiple of.
constexpr size_t AlignmentOf(WeightType type) {
  const auto bytes = static_cast<size_t>(FormatOf(type).block_bytes);
  return bytes & (~bytes + 1);
}

constexpr WeightType WeightTypeOf(DType type) { return static_cast<WeightType>(type); }
static_assert(WeightTypeOf(DType::kF32) == WeightType::kF32 && WeightTypeOf(DType::kF16) == WeightType::kF16 &&
              WeightTypeOf(DType::kBF16) == WeightType::kBF16);
// The type of activations and entries that suits weights of `type`: the type itself where it is plain, else that of
// the scales.
constexpr DType PlainTypeOf(WeightType type) { return IsPlain(type) ? static_cast<DType>(type) : DType::kF16; }

// A row-major matrix [rows][cols].
struct WeightView {
  const std::byte* data = nullptr;
  WeightType type = WeightType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;       // numbers in a row, whole blocks
  int64_t row_bytes = 0;  // from one row to the next

  WeightView() = default;
  // Rows back to back. For extents of our own; a bug when the matrix has no size.
  WeightView(const std::byte* d, WeightType t, int64_t r, int64_t c) : WeightView(Make(d, t, r, c).value()) {}
  // The same bytes.
  explicit WeightView(const ConstTensor& matrix)
      : data(matrix.data),
        type(WeightTypeOf(matrix.type)),
        rows(matrix.rows),
        cols(matrix.cols),
        row_bytes(matrix.stride * static_cast<int64_t>(SizeOf(matrix.type))) {}
  // Rows back to back, of extents from a file: kInvalid when rows are not whole blocks or the size overflows.
  static Result<WeightView> Make(const std::byte* data, WeightType type, int64_t rows, int64_t cols);

  explicit operator bool() const { return data != nullptr; }
  const std::byte* row(int64_t r) const { return data + r * row_bytes; }
  int64_t bytes() const { return rows * row_bytes; }
  // Rows follow each other without a gap.
  bool is_packed() const { return row_bytes * FormatOf(type).block_numbers == cols * FormatOf(type).block_bytes; }
  template <class T>
  const T* as(int64_t r = 0) const {
    DCHECK(IsPlain(type) && static_cast<int64_t>(sizeof(T)) == FormatOf(type).block_bytes);
    return reinterpret_cast<const T*>(row(r));
  }
};

// out [cols] = the numbers of one row, whatever the stored type. Host memory, of any alignment. The definition of every
// stored type, and the oracle of products and embeddings.
void DecodeRow(const WeightView& weight, int64_t row, std::span<float> out);

// Calls f with a value of the element type of a plain `type`, as Dispatch does.
template <class F>
decltype(auto) DispatchPlain(WeightType type, F&& f) {
  CHECK(IsPlain(type));
  return Dispatch(PlainTypeOf(type), f);
}

}  // namespace infinigen
