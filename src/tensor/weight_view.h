// WeightView: a weight matrix in its stored form, either a plain type or blocks of quantised numbers. It owns nothing
// and does not record whether its memory is on the host or the device. Small parameter vectors (norms, biases) are f32
// and use ConstTensor.
//
// To add a stored type, add a row to kWeightFormats, from which all sizes are computed, and a case to UnpackBlock
// (tensor/block_formats.h), which defines what the bytes mean. docs/quantised-weights.md describes the formats.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "base/check.h"
#include "base/result.h"
#include "tensor/dtype.h"
#include "tensor/view.h"

namespace infinigen {

// The numeric values are part of a model's identity (model/calibrate.h): append, never renumber.
enum class WeightType : uint8_t {
  kF32,
  kF16,
  kBF16,
  kQ8_0,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ2_K,
  kQ3_K,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kIq4Nl,
  kIq4Xs,
  kMxfp4,
};

struct WeightFormat {
  std::string_view name;
  int64_t block_numbers;  // numbers in a block; a row consists of whole blocks
  int64_t block_bytes;
};
// [WeightType]. Names are those of GGUF in lower case.
inline constexpr std::array<WeightFormat, 16> kWeightFormats = {{
    {"f32", 1, 4},
    {"f16", 1, 2},
    {"bf16", 1, 2},
    {"q8_0", 32, 34},
    {"q4_0", 32, 18},
    {"q4_1", 32, 20},
    {"q5_0", 32, 22},
    {"q5_1", 32, 24},
    {"q2_k", 256, 84},
    {"q3_k", 256, 110},
    {"q4_k", 256, 144},
    {"q5_k", 256, 176},
    {"q6_k", 256, 210},
    {"iq4_nl", 32, 18},
    {"iq4_xs", 256, 136},
    {"mxfp4", 32, 17},
}};

constexpr const WeightFormat& FormatOf(WeightType type) { return kWeightFormats[static_cast<size_t>(type)]; }
constexpr std::string_view Name(WeightType type) { return FormatOf(type).name; }
// The type with this name, in lower case.
constexpr std::optional<WeightType> WeightTypeNamed(std::string_view name) {
  for (size_t i = 0; i < kWeightFormats.size(); ++i)
    if (kWeightFormats[i].name == name) return static_cast<WeightType>(i);
  return std::nullopt;
}
// The type that files use instead of `type` in rows of `cols` numbers: `type` itself if they are whole blocks of it,
// otherwise one with blocks of 32 and at least as many bits, otherwise f16.
constexpr WeightType FittingType(WeightType type, int64_t cols) {
  if (cols % FormatOf(type).block_numbers == 0) return type;
  if (cols % 32 != 0) return WeightType::kF16;
  switch (type) {
    case WeightType::kQ4_K:
      return WeightType::kQ5_0;
    case WeightType::kQ5_K:
      return WeightType::kQ5_1;
    case WeightType::kQ6_K:
      return WeightType::kQ8_0;
    default:
      return WeightType::kIq4Nl;
  }
}
// True when every number is stored by itself, so that as<T> and DispatchPlain apply.
constexpr bool IsPlain(WeightType type) { return FormatOf(type).block_numbers == 1; }
// Alignment that a matrix needs: a number's size for plain types. Blocks consist of f16 fields and bytes, so they need
// two bytes, or one where the block size is odd.
constexpr size_t AlignmentOf(WeightType type) {
  const auto bytes = static_cast<size_t>(FormatOf(type).block_bytes);
  return IsPlain(type) ? bytes : 2 - bytes % 2;
}

constexpr WeightType WeightTypeOf(DType type) { return static_cast<WeightType>(type); }
static_assert(WeightTypeOf(DType::kF32) == WeightType::kF32 && WeightTypeOf(DType::kF16) == WeightType::kF16 &&
              WeightTypeOf(DType::kBF16) == WeightType::kBF16);
// Type of activations and KV entries for weights of `type`: the same type when it is plain, otherwise the type of the
// block scales.
constexpr DType PlainTypeOf(WeightType type) { return IsPlain(type) ? static_cast<DType>(type) : DType::kF16; }

// A row-major matrix [rows][cols].
struct WeightView {
  const std::byte* data = nullptr;
  WeightType type = WeightType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;       // numbers in a row, a multiple of the block size
  int64_t row_bytes = 0;  // distance from one row to the next

  WeightView() = default;
  // Rows without gaps. For shapes that are known to be valid; aborts otherwise.
  WeightView(const std::byte* d, WeightType t, int64_t r, int64_t c) : WeightView(Make(d, t, r, c).value()) {}
  // Views the same bytes, gaps between rows included.
  explicit WeightView(const ConstTensor& matrix)
      : data(matrix.data),
        type(WeightTypeOf(matrix.type)),
        rows(matrix.rows),
        cols(matrix.cols),
        row_bytes(matrix.stride * static_cast<int64_t>(SizeOf(matrix.type))) {}
  // Rows without gaps, for shapes that come from a file: kInvalid when a row is not whole blocks or the size overflows.
  static Result<WeightView> Make(const std::byte* data, WeightType type, int64_t rows, int64_t cols);

  explicit operator bool() const { return data != nullptr; }
  const std::byte* row(int64_t r) const { return data + r * row_bytes; }
  int64_t bytes() const { return rows * row_bytes; }
  // True when there are no gaps between rows.
  bool is_packed() const { return row_bytes * FormatOf(type).block_numbers == cols * FormatOf(type).block_bytes; }
  template <class T>
  const T* as(int64_t r = 0) const {
    DCHECK(IsPlain(type) && static_cast<int64_t>(sizeof(T)) == FormatOf(type).block_bytes);
    return reinterpret_cast<const T*>(row(r));
  }
};

// Writes the numbers of one row to out [cols], for any stored type. The weight is in host memory, of any alignment.
// This is the definition of every stored type, and the oracle for matrix products and embeddings.
void DecodeRow(const WeightView& weight, int64_t row, std::span<float> out);

// Dispatch for a plain WeightType.
template <class F>
decltype(auto) DispatchPlain(WeightType type, F&& f) {
  CHECK(IsPlain(type));
  return Dispatch(PlainTypeOf(type), f);
}

}  // namespace infinigen
