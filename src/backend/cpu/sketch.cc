// AppendSketches and SketchQueries: small products with a basis, and the quantisation of key sketches into their
// blocks.
//
// Both compute x · matrix, with matrix [head_dim][dims]: columns are in lanes, and each output is one chain of fused
// multiply-adds over head_dim, ascending. So a sketch depends on its own row and the basis only.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "backend/cpu/cpu_backend.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/sketch.cc"
#include <hwy/foreach_target.h>
// After foreach_target.
#include <hwy/highway.h>

#include "backend/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace infinigen::HWY_NAMESPACE {

// ---- out = x · matrix.                        x [rows][inner], matrix [inner][cols], cols a multiple of 8

// Uses kRows x 2 vectors of accumulators; the counts give the columns of each that exist.
template <int kRows>
HWY_NOINLINE void ProjectTile(const float* x, int64_t x_stride, const float* matrix, int64_t inner, int64_t cols,
                              int64_t first_count, int64_t second_count, float* out, int64_t out_stride) {
  const DF d;
  const auto first = hn::FirstN(d, static_cast<size_t>(first_count));
  const auto second = hn::FirstN(d, static_cast<size_t>(second_count));
  VF sums[kRows][2];
  INFINIGEN_UNROLL for (int r = 0; r < kRows; ++r) sums[r][0] = sums[r][1] = hn::Zero(d);
  for (int64_t i = 0; i < inner; ++i) {
    const float* row = matrix + i * cols;
    const VF a = hn::MaskedLoad(first, d, row), b = hn::MaskedLoad(second, d, row + kLanes);
    INFINIGEN_UNROLL for (int r = 0; r < kRows; ++r) {
      const VF factor = hn::Set(d, x[r * x_stride + i]);
      sums[r][0] = hn::MulAdd(factor, a, sums[r][0]);
      sums[r][1] = hn::MulAdd(factor, b, sums[r][1]);
    }
  }
  INFINIGEN_UNROLL for (int r = 0; r < kRows; ++r) {
    hn::BlendedStore(sums[r][0], first, d, out + r * out_stride);
    hn::BlendedStore(sums[r][1], second, d, out + r * out_stride + kLanes);
  }
}

HWY_INLINE void Project(int64_t rows, const float* x, int64_t x_stride, const float* matrix, int64_t inner,
                        int64_t cols, float* out, int64_t out_stride) {
  for (int64_t r = 0; r < rows;) {
    const int64_t height = std::min<int64_t>(4, rows - r);
    for (int64_t c = 0; c < cols; c += 2 * kLanes) {
      const int64_t first = std::min(kLanes, cols - c), second = std::clamp<int64_t>(cols - c - kLanes, 0, kLanes);
      const float* rows_x = x + r * x_stride;
      float* rows_out = out + r * out_stride + c;
      switch (height) {
        case 4:
          ProjectTile<4>(rows_x, x_stride, matrix + c, inner, cols, first, second, rows_out, out_stride);
          break;
        case 3:
          ProjectTile<3>(rows_x, x_stride, matrix + c, inner, cols, first, second, rows_out, out_stride);
          break;
        case 2:
          ProjectTile<2>(rows_x, x_stride, matrix + c, inner, cols, first, second, rows_out, out_stride);
          break;
        default:
          ProjectTile<1>(rows_x, x_stride, matrix + c, inner, cols, first, second, rows_out, out_stride);
      }
    }
    r += height;
  }
}

// ---- Quantising a sketch into its block, as kv/index.h defines

// The smallest bf16 ≥ `value` ≥ 0, as f32; the largest finite one if there is none.
inline float RoundUpToBf16(float value) {
  const float rounded = std::bit_cast<float>((std::bit_cast<uint32_t>(value) + 0xffffu) & 0xffff0000u);
  return std::isfinite(rounded) ? rounded : ToFloat(ToBF16(value));
}

inline float Finite(float number) { return std::isfinite(number) ? number : 0.0f; }

// Stores `count` numbers of one row, a multiple of 8 that share a scale, in int8 or int4: units[0], units[64], …
inline void StoreGroup(bool int8, const float* numbers, int64_t count, uint32_t* units, uint16_t* stored_scale) {
  float largest = 0;
  for (int64_t i = 0; i < count; ++i) largest = std::max(largest, std::fabs(Finite(numbers[i])));
  const float most = int8 ? 127.0f : static_cast<float>(SketchLayout::kLargestInt4);
  const float scale = RoundUpToBf16(largest / most);
  *stored_scale = static_cast<uint16_t>(std::bit_cast<uint32_t>(scale) >> 16);
  float inverse = scale > 0 ? 1.0f / scale : 0.0f;
  if (!std::isfinite(inverse)) inverse = 0.0f;
  const auto stored = [&](int64_t i, int32_t bias) {
    // Adding and subtracting 1.5 · 2^23 rounds to an integer, halves to even.
    const float value = std::clamp(Finite(numbers[i]) * inverse, -most, most) + 12582912.0f - 12582912.0f;
    return static_cast<uint32_t>(static_cast<int32_t>(value) + bias);
  };
  for (int64_t u = 0; u < count / (int8 ? 4 : 8); ++u) {
    uint32_t bits = 0;
    for (int64_t b = 0; b < 4; ++b) {
      const uint32_t byte = int8 ? stored(4 * u + b, 128) : stored(8 * u + b, 8) | stored(8 * u + 4 + b, 8) << 4;
      bits |= byte << (8 * b);
    }
    units[u * kSketchBlock] = bits;
  }
}

// Stores the sketch of one row's key. numbers [dims], dims a multiple of 8.
inline void StoreKey(const SketchLayout& layout, const float* numbers, std::byte* block, int64_t row) {
  uint32_t* unit = reinterpret_cast<uint32_t*>(block) + row;
  if (layout.type == SketchType::kBF16) {
    for (int64_t u = 0; u < layout.units(); ++u)
      unit[u * kSketchBlock] =
          ToBF16(Finite(numbers[2 * u])).bits | static_cast<uint32_t>(ToBF16(Finite(numbers[2 * u + 1])).bits) << 16;
    return;
  }
  uint16_t* scale = reinterpret_cast<uint16_t*>(block + layout.scales_offset()) + row;
  for (int64_t first = 0; first < layout.dims; first += layout.group_dims(), scale += kSketchBlock)
    StoreGroup(layout.type == SketchType::kInt8, numbers + first, std::min(layout.group_dims(), layout.dims - first),
               unit + first / layout.per_unit() * kSketchBlock, scale);
}

// Stores the sketch of one row's value. numbers [value_dims].
inline void StoreValue(const SketchLayout& layout, const float* numbers, std::byte* block, int64_t row) {
  StoreGroup(false, numbers, layout.value_dims, reinterpret_cast<uint32_t*>(block + layout.values_offset()) + row,
             reinterpret_cast<uint16_t*>(block + layout.value_scales_offset()) + row);
}

// Projects rows of tokens [first, first + count) for one KV head, x · matrix − offset, and stores their sketches.
template <class Store>
HWY_INLINE void SketchRows(const TokenBatch& batch, const ConstTensor& x, const float* matrix, const float* offset,
                           int64_t head_dim, int64_t dims, const LayerSketches& sketches, int64_t first, int64_t count,
                           int64_t head, const Store& store) {
  constexpr int64_t kTokens = 4;
  HWY_ALIGN float numbers[kTokens * kMaxHeadDim];
  for (int64_t t = first; t < first + count; t += kTokens) {
    const int64_t tokens = std::min(kTokens, first + count - t);
    Project(tokens, x.as<float>(t) + head * head_dim, x.stride, matrix, head_dim, dims, numbers, dims);
    for (int64_t i = 0; i < tokens; ++i) {
      float* row_numbers = numbers + i * dims;
      for (int64_t c = 0; c < dims; ++c) row_numbers[c] -= offset[c];
      const int64_t row = batch.OwnRow(t + i, head);
      store(row_numbers, sketches.Block(batch.slots[t + i], head, row / kSketchBlock), row % kSketchBlock);
    }
  }
}

// Sketches the keys of tokens [first, first + count), which share a basis, for one KV head.
void SketchKeys(const TokenBatch& batch, const ConstTensor& keys, const SketchBasis& basis,
                const LayerSketches& sketches, int64_t first, int64_t count, int64_t head) {
  const int64_t slot = batch.slots[first];
  SketchRows(batch, keys, basis.Key(slot, head), basis.KeyOffset(slot, head), basis.head_dim, basis.dims, sketches,
             first, count, head, [&](const float* numbers, std::byte* block, int64_t row) {
               StoreKey(sketches.layout, numbers, block, row);
             });
}

void SketchValues(const TokenBatch& batch, const ConstTensor& values, const TailBasis& basis,
                  const LayerSketches& sketches, int64_t first, int64_t count, int64_t head) {
  SketchRows(batch, values, basis.Value(head), basis.ValueOffset(head), basis.head_dim, basis.value_dims, sketches,
             first, count, head, [&](const float* numbers, std::byte* block, int64_t row) {
               StoreValue(sketches.layout, numbers, block, row);
             });
}

// level of one query head: query · key_mean · scale.
float QueryLevel(const float* query, const float* key_mean, int64_t head_dim, float scale) {
  const DF d;
  VF sum = hn::Zero(d);
  int64_t i = 0;
  for (; i + kLanes <= head_dim; i += kLanes)
    sum = hn::MulAdd(hn::LoadU(d, query + i), hn::LoadU(d, key_mean + i), sum);
  float level = hn::GetLane(hn::SumOfLanes(d, sum));
  for (; i < head_dim; ++i) level += query[i] * key_mean[i];
  return level * scale;
}

// Sketches the query heads of one token and KV head.
void SketchQueryGroup(const float* queries, const float* basis, int64_t group, int64_t head_dim, int64_t dims,
                      float scale, float* out) {
  Project(group, queries, head_dim, basis, head_dim, dims, out, dims);
  for (int64_t i = 0; i < group * dims; ++i) out[i] *= scale;
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace infinigen::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace infinigen {
namespace {

HWY_EXPORT(SketchKeys);
HWY_EXPORT(SketchQueryGroup);
HWY_EXPORT(SketchValues);
HWY_EXPORT(QueryLevel);

}  // namespace

// Calls body(first, count, head) for parts of the tokens of every head. A part has several tokens, so that rows of a
// basis are loaded once for all of them.
template <class Body>
void CpuBackend::ForTokensOfHeads(int64_t tokens, int64_t heads, int64_t token_work, Body&& body) {
  if (tokens * heads * token_work <= 4 * kSerialWork || threads() == 1) {
    for (int64_t head = 0; head < heads; ++head) body(int64_t{0}, tokens, head);
    return;
  }
  constexpr int64_t kTaskTokens = 32;
  const int64_t stretches = (tokens + kTaskTokens - 1) / kTaskTokens;
  pool_.Run(stretches * heads, [&](int64_t task, int) {
    const int64_t first = task / heads * kTaskTokens;
    body(first, std::min(kTaskTokens, tokens - first), task % heads);
  });
}

void CpuBackend::AppendSketches(Queue, const TokenBatch& batch, const ConstTensor& keys, const SketchBasis& basis,
                                const LayerSketches& sketches) {
  const int64_t heads = sketches.layout.kv_heads;
  CHECK(basis.kv_heads == heads && basis.dims == sketches.layout.dims && basis.head_dim <= kMaxHeadDim);
  CHECK(basis.dims % kSketchDimStep == 0 && basis.dims <= kMaxHeadDim);
  CHECK(keys.type == DType::kF32 && keys.cols == heads * basis.head_dim && keys.rows >= batch.count);
  ForTokensOfHeads(batch.count, heads, basis.head_dim * basis.dims, [&](int64_t first, int64_t count, int64_t head) {
    while (count > 0) {
      int64_t same = 1;
      while (same < count && (!basis.per_slot || batch.slots[first + same] == batch.slots[first])) ++same;
      HWY_DYNAMIC_DISPATCH(SketchKeys)(batch, keys, basis, sketches, first, same, head);
      first += same;
      count -= same;
    }
  });
}

void CpuBackend::AppendValueSketches(Queue, const TokenBatch& batch, const ConstTensor& values, const TailBasis& basis,
                                     const LayerSketches& sketches) {
  const int64_t heads = sketches.layout.kv_heads;
  CHECK(basis.kv_heads == heads && basis.value_dims == sketches.layout.value_dims && basis.head_dim <= kMaxHeadDim);
  CHECK(values.type == DType::kF32 && values.cols == heads * basis.head_dim && values.rows >= batch.count);
  ForTokensOfHeads(batch.count, heads, basis.head_dim * basis.value_dims,
                   [&](int64_t first, int64_t count, int64_t head) {
                     HWY_DYNAMIC_DISPATCH(SketchValues)(batch, values, basis, sketches, first, count, head);
                   });
}

void CpuBackend::QueryLevels(Queue, const ConstTensor& queries, const TokenBatch& batch, const AttentionShape& shape,
                             const TailView& tail) {
  const TailBasis& basis = tail.basis;
  CHECK(queries.type == DType::kF32 && queries.cols == shape.heads * basis.head_dim && shape.heads == tail.heads);
  const int64_t group = shape.heads / basis.kv_heads;
  for (int64_t token = 0; token < batch.count; ++token)
    for (int64_t head = 0; head < shape.heads; ++head)
      tail.Levels(token)[head] = HWY_DYNAMIC_DISPATCH(QueryLevel)(
          queries.as<float>(token) + head * basis.head_dim, basis.KeyMean(head / group), basis.head_dim, shape.scale);
}

void CpuBackend::SketchQueries(Queue, const ConstTensor& queries, const TokenBatch& batch, const AttentionShape& shape,
                               const SketchBasis& basis, const Tensor& out) {
  CHECK(shape.heads % basis.kv_heads == 0 && basis.dims % kSketchDimStep == 0);
  CHECK(queries.type == DType::kF32 && queries.cols == shape.heads * basis.head_dim && queries.rows >= batch.count);
  CHECK(out.type == DType::kF32 && out.cols == shape.heads * basis.dims && out.rows >= batch.count);
  const int64_t group = shape.heads / basis.kv_heads;
  ForRows(batch.count * basis.kv_heads, group * basis.head_dim * basis.dims / 8, [&](int64_t first, int64_t count) {
    for (int64_t i = first; i < first + count; ++i) {
      const int64_t token = i / basis.kv_heads, head = i % basis.kv_heads;
      HWY_DYNAMIC_DISPATCH(SketchQueryGroup)
      (queries.as<float>(token) + head * group * basis.head_dim, basis.Query(batch.slots[token], head), group,
       basis.head_dim, basis.dims, shape.scale, out.as<float>(token) + head * group * basis.dims);
    }
  });
}

}  // namespace infinigen
#endif  // HWY_ONCE
