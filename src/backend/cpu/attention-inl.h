// The kernels of attention, once per SIMD target. attention_plan.h states the arithmetic; here is how it is laid out.
//
// Scores put entries in lanes: a block's keys are transposed into [dim][64] f32, and a score is a chain of fused
// multiply-adds over dim with no sum across lanes. Values put dim in lanes: a chain over entries. Both are the same
// small matrix product, OuterTile: rows x steps times steps x columns, the left factor broadcast.
#if defined(INFINIGEN_CPU_ATTENTION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef INFINIGEN_CPU_ATTENTION_INL_H_
#undef INFINIGEN_CPU_ATTENTION_INL_H_
#else
#define INFINIGEN_CPU_ATTENTION_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <limits>

#include "backend/cpu/attention_plan.h"
#include "backend/cpu/math-inl.h"
#include "backend/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace infinigen::HWY_NAMESPACE {

// Accumulators: rows x vectors of 32 (AVX-512) or 16 vector registers.
inline constexpr int64_t kOuterRows = 6;
inline constexpr int64_t kOuterVectors = HWY_TARGET == HWY_AVX3 ? 4 : 2;
inline constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// One block's keys and values in memory.
template <class T>
struct EntryBlock {
  const T* first;  // the key of its first entry
  int64_t stride;  // elements from entry to entry
  int64_t count;   // entries that exist, at most kAttentionBlock
  int64_t dim;
  const T* Key(int64_t j) const { return first + std::min(j, count - 1) * stride; }
  const T* Value(int64_t j) const { return first + j * stride + dim; }
};

// ---- Keys of a block, transposed: out[i][j] = key j, element i. Columns past `count` repeat the last key.

// Four vectors whose 128-bit blocks b hold four 32-bit units of key (4b + r), turned so that vector c holds unit c of
// consecutive keys.
template <class D>
HWY_INLINE void TransposeQuads(D d, hn::Vec<D> (&v)[4]) {
  const hn::Repartition<uint64_t, D> d64;
  const auto a = hn::InterleaveLower(d, v[0], v[1]), b = hn::InterleaveUpper(d, v[0], v[1]);
  const auto c = hn::InterleaveLower(d, v[2], v[3]), e = hn::InterleaveUpper(d, v[2], v[3]);
  v[0] = hn::BitCast(d, hn::InterleaveLower(d64, hn::BitCast(d64, a), hn::BitCast(d64, c)));
  v[1] = hn::BitCast(d, hn::InterleaveUpper(d64, hn::BitCast(d64, a), hn::BitCast(d64, c)));
  v[2] = hn::BitCast(d, hn::InterleaveLower(d64, hn::BitCast(d64, b), hn::BitCast(d64, e)));
  v[3] = hn::BitCast(d, hn::InterleaveUpper(d64, hn::BitCast(d64, b), hn::BitCast(d64, e)));
}

// Block b of the result is 128 bits at p(first + 4b).
template <class D, class T>
HWY_INLINE hn::Vec<D> GatherQuads(D d, const EntryBlock<T>& block, int64_t first, int64_t element) {
  if constexpr (hn::MaxLanes(D()) == 4) {
    return hn::LoadU(d, reinterpret_cast<const uint32_t*>(block.Key(first) + element));
  } else {
    const hn::Half<D> half;
    constexpr int64_t kUpper = static_cast<int64_t>(hn::MaxLanes(half));
    return hn::Combine(d, GatherQuads(half, block, first + kUpper, element), GatherQuads(half, block, first, element));
  }
}

// The units of a transposed vector as f32: one element of f32 keys, two of 16-bit keys (low half first).
template <class DU>
HWY_INLINE void StoreUnits(DU, hn::Vec<DU> units, float, float* out) {
  hn::Store(hn::BitCast(DF(), units), DF(), out);
}
template <class DU>
HWY_INLINE void StoreUnits(DU du, hn::Vec<DU> units, BF16, float* out) {
  hn::Store(hn::BitCast(DF(), hn::ShiftLeft<16>(units)), DF(), out);
  hn::Store(hn::BitCast(DF(), hn::And(units, hn::Set(du, 0xffff0000u))), DF(), out + kAttentionBlock);
}
template <class DU>
HWY_INLINE void StoreUnits(DU, hn::Vec<DU> units, F16, float* out) {
  const hn::Rebind<uint16_t, DU> d16;
  const hn::Rebind<hwy::float16_t, DU> dh;
  hn::Store(hn::PromoteTo(DF(), hn::BitCast(dh, hn::TruncateTo(d16, units))), DF(), out);
  hn::Store(hn::PromoteTo(DF(), hn::BitCast(dh, hn::TruncateTo(d16, hn::ShiftRight<16>(units)))), DF(),
            out + kAttentionBlock);
}

template <class T>
HWY_INLINE void TransposeKeys(const EntryBlock<T>& block, float* out) {
  const hn::RebindToUnsigned<DF> du;
  constexpr int64_t kPerUnit = 4 / static_cast<int64_t>(sizeof(T));
  const int64_t whole = block.dim / (4 * kPerUnit) * (4 * kPerUnit);
  for (int64_t j = 0; j < block.count; j += kLanes) {
    for (int64_t i = 0; i < whole; i += 4 * kPerUnit) {
      hn::Vec<decltype(du)> v[4];
      for (int64_t r = 0; r < 4; ++r) v[r] = GatherQuads(du, block, j + r, i);
      TransposeQuads(du, v);
      for (int64_t c = 0; c < 4; ++c) StoreUnits(du, v[c], T{}, out + (i + c * kPerUnit) * kAttentionBlock + j);
    }
    for (int64_t i = whole; i < block.dim; ++i)
      for (int64_t lane = 0; lane < kLanes; ++lane)
        out[i * kAttentionBlock + j + lane] = ToFloat(block.Key(j + lane)[i]);
  }
}

// Values as f32 rows [count][padded_dim], zero-padded.
template <class T>
HWY_INLINE void WidenValues(const EntryBlock<T>& block, int64_t padded_dim, float* out) {
  const DF d;
  for (int64_t j = 0; j < block.count; ++j) {
    const T* value = block.Value(j);
    float* row = out + j * padded_dim;
    int64_t i = 0;
    for (; i + kLanes <= block.dim; i += kLanes) hn::Store(LoadF32(d, value + i), d, row + i);
    for (; i < padded_dim; i += kLanes)
      hn::Store(LoadTail(d, value + i, std::max<int64_t>(0, block.dim - i)), d, row + i);
  }
}

// ---- The small matrix product. left [rows][steps] f32 at left_stride, right [steps][columns] of T at right_stride.

// What becomes of a tile's sums.
struct StoreSums {
  float* out;  // [rows] at stride
  int64_t stride;
  HWY_INLINE void operator()(DF d, int row, int64_t column, VF sum) const {
    hn::Store(sum, d, out + row * stride + column);
  }
};
// value = value · keep + sum · add: the merge of a block into a row's state. Adding +0 first makes a zero sum positive,
// whether or not entries of weight zero took part in it.
struct MergeSums {
  float* out;
  int64_t stride;
  const float* keep;  // [rows]
  const float* add;   // [rows]
  HWY_INLINE void operator()(DF d, int row, int64_t column, VF sum) const {
    float* value = out + row * stride + column;
    const VF part = hn::Mul(hn::Add(sum, hn::Zero(d)), hn::Set(d, add[row]));
    hn::Store(hn::MulAdd(hn::Load(d, value), hn::Set(d, keep[row]), part), d, value);
  }
};

template <int kRows, int kVectors, class T, class Sink>
HWY_INLINE void OuterTile(const float* left, int64_t left_stride, const T* right, int64_t right_stride, int64_t steps,
                          int64_t column, const Sink& sink) {
  const DF d;
  VF sums[kRows][kVectors];
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kVectors; ++v) sums[r][v] = hn::Zero(d);
  for (int64_t s = 0; s < steps; ++s) {
    VF b[kVectors];
    for (int v = 0; v < kVectors; ++v) b[v] = LoadF32(d, right + s * right_stride + column + v * kLanes);
    for (int r = 0; r < kRows; ++r) {
      const VF a = hn::Set(d, left[r * left_stride + s]);
      for (int v = 0; v < kVectors; ++v) sums[r][v] = hn::MulAdd(a, b[v], sums[r][v]);
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kVectors; ++v) sink(d, r, column + v * kLanes, sums[r][v]);
}

template <int kRows, class T, class Sink>
HWY_NOINLINE void OuterRows(const float* left, int64_t left_stride, const T* right, int64_t right_stride, int64_t steps,
                            int64_t columns, const Sink& sink) {
  int64_t c = 0;
  for (; c + kOuterVectors * kLanes <= columns; c += kOuterVectors * kLanes)
    OuterTile<kRows, kOuterVectors>(left, left_stride, right, right_stride, steps, c, sink);
  for (; c < columns; c += kLanes) OuterTile<kRows, 1>(left, left_stride, right, right_stride, steps, c, sink);
}

template <class T, class Sink>
HWY_INLINE void Outer(int64_t rows, const float* left, int64_t left_stride, const T* right, int64_t right_stride,
                      int64_t steps, int64_t columns, const Sink& sink) {
  switch (rows) {
    case 1:
      return OuterRows<1>(left, left_stride, right, right_stride, steps, columns, sink);
    case 2:
      return OuterRows<2>(left, left_stride, right, right_stride, steps, columns, sink);
    case 3:
      return OuterRows<3>(left, left_stride, right, right_stride, steps, columns, sink);
    case 4:
      return OuterRows<4>(left, left_stride, right, right_stride, steps, columns, sink);
    case 5:
      return OuterRows<5>(left, left_stride, right, right_stride, steps, columns, sink);
    case 6:
      return OuterRows<6>(left, left_stride, right, right_stride, steps, columns, sink);
    default:
      HWY_DASSERT(false);
  }
}

// ---- The running softmax.

HWY_INLINE void ResetState(float* state, int64_t padded_dim) {
  state[0] = kMinusInfinity;
  state[1] = 0.0f;
  std::fill_n(state + kStateHead, padded_dim, 0.0f);
}

// Scores of one row, `visible` of them real, become weights in place. Returns the maximum; *sum gets Σ weights.
HWY_INLINE float Weigh(float* scores, int64_t visible, float* sum) {
  const DF d;
  constexpr int64_t kVectors = kAttentionBlock / kLanes;
  if (visible < kAttentionBlock) std::fill(scores + visible, scores + kAttentionBlock, kMinusInfinity);
  VF largest = hn::Load(d, scores);
  for (int64_t v = 1; v < kVectors; ++v) largest = hn::Max(largest, hn::Load(d, scores + v * kLanes));
  largest = hn::MaxOfLanes(d, largest);
  VF total = hn::Zero(d);
  for (int64_t v = 0; v < kVectors; ++v) {
    const VF weight = Exp2NonPositive(d, hn::Sub(hn::Load(d, scores + v * kLanes), largest));
    hn::Store(weight, d, scores + v * kLanes);
    total = hn::Add(total, weight);
  }
  *sum = hn::GetLane(hn::SumOfLanes(d, total));
  return hn::GetLane(largest);
}

// Joins {maximum, sum} into a state's head; *keep and *add are the factors of the old and the new part.
HWY_INLINE void MergeHead(float* state, float maximum, float sum, float* keep, float* add) {
  const DF d;
  const float joint = std::max(state[0], maximum);
  *keep = hn::GetLane(Exp2NonPositive(d, hn::Set(d, state[0] - joint)));
  *add = hn::GetLane(Exp2NonPositive(d, hn::Set(d, maximum - joint)));
  state[0] = joint;
  state[1] = state[1] * *keep + sum * *add;
}

HWY_INLINE void MergeState(float* state, const float* part, int64_t padded_dim) {
  const DF d;
  float keep, add;
  MergeHead(state, part[0], part[1], &keep, &add);
  const MergeSums merge{state + kStateHead, 0, &keep, &add};
  for (int64_t i = 0; i < padded_dim; i += kLanes) merge(d, 0, i, hn::Load(d, part + kStateHead + i));
}

HWY_INLINE void Finish(const float* state, int64_t dim, float* out) {
  const DF d;
  const VF scale = hn::Set(d, 1.0f / state[1]);
  int64_t i = 0;
  for (; i + kLanes <= dim; i += kLanes) hn::StoreU(hn::Mul(hn::Load(d, state + kStateHead + i), scale), d, out + i);
  if (i < dim) StoreTail(d, hn::Mul(hn::Load(d, state + kStateHead + i), scale), out + i, dim - i);
}

HWY_INLINE void ScaleQuery(const float* query, int64_t dim, float scale, float* out) {
  constexpr float kLog2E = 1.44269504089f;  // weights are powers of two
  for (int64_t i = 0; i < dim; ++i) out[i] = query[i] * (scale * kLog2E);
}

// A set of query rows of one KV head. Row r belongs to token r / group and sees entries [0, first_length + token).
struct QueryRows {
  const float* queries;  // [rows][padded_dim], scaled
  float* states;         // [rows][state_floats]
  int64_t rows;
  int64_t group;
  int64_t first_length;
  int64_t Length(int64_t row) const { return first_length + row / group; }
};

// One tile of rows against one block whose first entry is `start`; every row sees at least one entry of it.
template <class V>
HWY_INLINE void AttendTile(const AttentionPlan& plan, const QueryRows& q, int64_t first, int64_t rows, int64_t start,
                           const float* keys, const V* values, int64_t value_stride) {
  HWY_ALIGN float weights[kOuterRows * kAttentionBlock];
  float keep[kOuterRows], add[kOuterRows];
  Outer(rows, q.queries + first * plan.padded_dim, plan.padded_dim, keys, kAttentionBlock, plan.dim, kAttentionBlock,
        StoreSums{weights, kAttentionBlock});
  for (int64_t r = 0; r < rows; ++r) {
    float sum;
    const int64_t visible = std::min(kAttentionBlock, q.Length(first + r) - start);
    const float maximum = Weigh(weights + r * kAttentionBlock, visible, &sum);
    MergeHead(q.states + (first + r) * plan.state_floats(), maximum, sum, &keep[r], &add[r]);
  }
  // Rows that see equally far go together; no row touches a value it may not see.
  for (int64_t r = 0; r < rows;) {
    const int64_t visible = std::min(kAttentionBlock, q.Length(first + r) - start);
    int64_t end = r + 1;
    while (end < rows && std::min(kAttentionBlock, q.Length(first + end) - start) == visible) ++end;
    const MergeSums merge{q.states + (first + r) * plan.state_floats() + kStateHead, plan.state_floats(), keep + r,
                          add + r};
    Outer(end - r, weights + r * kAttentionBlock, kAttentionBlock, values, value_stride, visible, plan.padded_dim,
          merge);
    r = end;
  }
}

// All rows that see any of the block. `keys` and `values` are scratch of [padded_dim][64] and [64][padded_dim].
template <class T>
HWY_INLINE void AttendBlock(const AttentionPlan& plan, const QueryRows& q, int64_t slot, int64_t head, int64_t start,
                            float* keys, float* values) {
  const EntryBlock<T> block{reinterpret_cast<const T*>(plan.entries.Entry(slot, head, start)), 2 * plan.dim,
                            std::min(kAttentionBlock, q.Length(q.rows - 1) - start), plan.dim};
  TransposeKeys(block, keys);
  // Few rows (decode): widen values in registers. Needs whole vectors, for no load may cross the end of an extent.
  const bool in_place = q.rows <= kOuterRows && plan.dim == plan.padded_dim;
  if (!in_place) WidenValues(block, plan.padded_dim, values);
  const int64_t begin = std::max<int64_t>(0, start + 1 - q.first_length) * q.group;
  const int64_t tiles = (q.rows - begin + kOuterRows - 1) / kOuterRows;
  const int64_t height = (q.rows - begin + tiles - 1) / tiles;
  for (int64_t first = begin; first < q.rows; first += height) {
    const int64_t rows = std::min(height, q.rows - first);
    if (in_place)
      AttendTile(plan, q, first, rows, start, keys, block.Value(0), block.stride);
    else
      AttendTile(plan, q, first, rows, start, keys, values, plan.padded_dim);
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace infinigen::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
