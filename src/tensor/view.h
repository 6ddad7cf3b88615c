// Views of activations and parameter vectors: pointer, type, shape. A view owns nothing and does not record whether its
// memory is on the host or the device; the code that makes it knows. Weight matrices use WeightView
// (tensor/weight_view.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "tensor/dtype.h"

namespace infinigen {

// A row-major matrix [rows][cols]; there may be gaps between rows. A vector is a matrix of one row.
struct Tensor {
  std::byte* data = nullptr;
  DType type = DType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;  // elements from one row to the next, >= cols

  explicit operator bool() const { return data != nullptr; }
  std::byte* row(int64_t r) const { return data + static_cast<size_t>(r * stride) * SizeOf(type); }
  // Rows [first, first + count).
  Tensor Rows(int64_t first, int64_t count) const {
    DCHECK(first >= 0 && count >= 0 && first + count <= rows);
    return {row(first), type, count, cols, stride};
  }
  template <class T>
  T* as(int64_t r = 0) const {
    DCHECK(sizeof(T) == SizeOf(type));
    return reinterpret_cast<T*>(row(r));
  }
};

// Read-only Tensor.
struct ConstTensor {
  const std::byte* data = nullptr;
  DType type = DType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;

  ConstTensor() = default;
  ConstTensor(const std::byte* d, DType t, int64_t r, int64_t c) : data(d), type(t), rows(r), cols(c), stride(c) {}
  ConstTensor(const Tensor& t)
      : data(t.data), type(t.type), rows(t.rows), cols(t.cols), stride(t.stride) {}  // NOLINT: widening

  explicit operator bool() const { return data != nullptr; }
  const std::byte* row(int64_t r) const { return data + static_cast<size_t>(r * stride) * SizeOf(type); }
  int64_t bytes() const { return rows * stride * static_cast<int64_t>(SizeOf(type)); }
  template <class T>
  const T* as(int64_t r = 0) const {
    DCHECK(sizeof(T) == SizeOf(type));
    return reinterpret_cast<const T*>(row(r));
  }
};

}  // namespace infinigen
