// Attention kernels, compiled once per SIMD target. attention_plan.h defines the arithmetic; this file lays it out.
//
// For scores, entries are in lanes: keys are transposed, and a score is a chain of fused multiply-adds over head_dim
// without sums across lanes. For values, head_dim is in lanes: a chain over entries. With many query rows (prefill), a
// block is transposed and widened once into scratch, and both products use OuterTile: [rows][steps] times
// [steps][columns], the left factor broadcast. With few rows (decode), keys and values go from memory through registers
// to the multiply-adds.
#if defined(INFINIGEN_CPU_ATTENTION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef INFINIGEN_CPU_ATTENTION_INL_H_
#undef INFINIGEN_CPU_ATTENTION_INL_H_
#else
#define INFINIGEN_CPU_ATTENTION_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <limits>
#include <type_traits>

#include "backend/cpu/attention_plan.h"
#include "backend/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace infinigen::HWY_NAMESPACE {

// Accumulators: rows x vectors, out of 32 (AVX-512) or 16 vector registers. The emulated target has no vector registers
// to fill, and its kernels take the longest to compile.
inline constexpr int64_t kOuterRows = HWY_TARGET == HWY_EMU128 ? 2 : 6;
inline constexpr int64_t kOuterVectors = HWY_TARGET == HWY_AVX3 ? 4 : 2;
inline constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// The rows of a product's right factor, one per step: at a fixed stride, or at listed addresses.
template <class T>
struct StridedRows {
  using Element = T;
  const T* first;
  int64_t stride;  // elements from row to row
  HWY_INLINE const T* operator()(int64_t s) const { return first + s * stride; }
};
template <class T>
struct ListedRows {
  using Element = T;
  const T* const* at;
  int64_t offset;  // elements from the listed address
  HWY_INLINE const T* operator()(int64_t s) const { return at[s] + offset; }
};

// One block's keys and values in memory.
template <class E>
struct EntryBlock {
  using T = E;
  const T* const* at;  // addresses of the keys; the last repeats up to a whole number of vectors
  int64_t count;       // entries in the block, at most kAttentionBlock
  int64_t dim;
  HWY_INLINE ListedRows<T> Keys(int64_t j) const { return {at + j, 0}; }
  HWY_INLINE ListedRows<T> Values() const { return {at, dim}; }
};

// Vectors of a row of values that are loaded together. bf16 and int4 are loaded in pairs: the even and the odd columns
// of 2 · kLanes ("paired" order), which takes half the work of widening them in order. The order of columns does not
// affect the arithmetic; Finish restores it.
template <class T>
inline constexpr int64_t kTogether = std::is_same_v<T, BF16> || std::is_same_v<T, Int4> ? 2 : 1;

// ---- Transposed keys of a block: out[i][j] = key j, element i. Columns past `count` repeat the last key.

// Transposes four vectors: 128-bit block b of vector r holds four 32-bit units of key 4b + r; afterwards vector c holds
// unit c of consecutive keys.
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

// Block b of the result is 128 bits of key 4b + r, from `element` on. keys(e) is the address of key e.
template <class D, class Keys>
HWY_INLINE hn::Vec<D> GatherQuads(D d, const Keys& keys, int64_t r, int64_t element) {
  if constexpr (hn::MaxLanes(D()) == 4) {
    return hn::LoadU(d, reinterpret_cast<const uint32_t*>(keys(r) + element));
  } else {
    const hn::Half<D> half;
    constexpr int64_t kUpper = static_cast<int64_t>(hn::MaxLanes(half));
    return hn::Combine(d, GatherQuads(half, keys, r + kUpper, element), GatherQuads(half, keys, r, element));
  }
}

// Converts the units of a transposed vector to f32: one element of f32 keys, two of 16-bit keys (low half first).
using DU = hn::RebindToUnsigned<DF>;
using VU = hn::Vec<DU>;
template <class T>
inline constexpr int64_t kPerUnit = 4 / static_cast<int64_t>(sizeof(T));

HWY_INLINE void Widen(VU units, float, VF (&out)[1]) { out[0] = hn::BitCast(DF(), units); }
HWY_INLINE void Widen(VU units, BF16, VF (&out)[2]) {
  out[0] = hn::BitCast(DF(), hn::ShiftLeft<16>(units));
  out[1] = hn::BitCast(DF(), hn::And(units, hn::Set(DU(), 0xffff0000u)));
}
HWY_INLINE void Widen(VU units, F16, VF (&out)[2]) {
  const hn::Rebind<uint16_t, DU> d16;
  const hn::Rebind<hwy::float16_t, DU> dh;
  out[0] = hn::PromoteTo(DF(), hn::BitCast(dh, hn::TruncateTo(d16, units)));
  out[1] = hn::PromoteTo(DF(), hn::BitCast(dh, hn::TruncateTo(d16, hn::ShiftRight<16>(units))));
}

// Loads elements [element, element + kUnits · kPerUnit) of kLanes keys: unit c of every key in out[c].
template <class Keys>
HWY_INLINE void LoadKeysTransposed(const Keys& keys, int64_t element, VU (&out)[4]) {
  INFINIGEN_UNROLL for (int64_t r = 0; r < 4; ++r) out[r] = GatherQuads(DU(), keys, r, element);
  TransposeQuads(DU(), out);
}
template <class T, class Keys>
HWY_INLINE void LoadKeysTransposed(const Keys& keys, int64_t element, VU (&out)[8]) {
#if HWY_TARGET == HWY_AVX3
  // Loads half vectors: half as many loads as with quads, and one shuffle instead of two inserts.
  const hn::Half<DU> half;
  const auto pair = [&](int64_t e) HWY_ATTR {
    const auto load = [&](int64_t key)
                          HWY_ATTR { return hn::LoadU(half, reinterpret_cast<const uint32_t*>(keys(key) + element)); };
    return hn::Combine(DU(), load(e + 4), load(e));
  };
  VU a[4], b[4];
  INFINIGEN_UNROLL for (int64_t r = 0; r < 4; ++r) a[r] = pair(r);
  TransposeQuads(DU(), a);
  INFINIGEN_UNROLL for (int64_t r = 0; r < 4; ++r) b[r] = pair(8 + r);
  TransposeQuads(DU(), b);
  // Blocks of a[c]: units c and 4 + c of keys 0 to 3, then of keys 4 to 7; b[c] has keys 8 to 15.
  INFINIGEN_UNROLL for (int64_t c = 0; c < 4; ++c) {
    out[c] = VU{_mm512_shuffle_i32x4(a[c].raw, b[c].raw, 0x88)};
    out[4 + c] = VU{_mm512_shuffle_i32x4(a[c].raw, b[c].raw, 0xdd)};
  }
#else
  for (int64_t part = 0; part < 2; ++part) {
    VU units[4];
    LoadKeysTransposed(keys, element + part * 4 * kPerUnit<T>, units);
    for (int64_t c = 0; c < 4; ++c) out[part * 4 + c] = units[c];
  }
#endif
}
// One element of kLanes keys, for the rest of a head_dim that is not a multiple of the above.
template <class Keys>
HWY_INLINE VF GatherElement(const Keys& keys, int64_t element) {
  HWY_ALIGN float lanes[kLanes];
  for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] = ToFloat(keys(lane)[element]);
  return hn::Load(DF(), lanes);
}

template <class Block>
HWY_INLINE void TransposeKeys(const Block& block, float* out) {
  using T = typename Block::T;
  const DF d;
  constexpr int64_t kStep = 4 * kPerUnit<T>;
  for (int64_t j = 0; j < block.count; j += kLanes) {
    const ListedRows<T> keys = block.Keys(j);
    int64_t i = 0;
    for (; i + kStep <= block.dim; i += kStep) {
      VU units[4];
      LoadKeysTransposed(keys, i, units);
      for (int64_t c = 0; c < 4; ++c) {
        VF columns[kPerUnit<T>];
        Widen(units[c], T{}, columns);
        for (int64_t h = 0; h < kPerUnit<T>; ++h)
          hn::Store(columns[h], d, out + (i + c * kPerUnit<T> + h) * kAttentionBlock + j);
      }
    }
    for (; i < block.dim; ++i) hn::Store(GatherElement(keys, i), d, out + i * kAttentionBlock + j);
  }
}

// Values as f32 rows [count][padded_dim], zero-padded.
template <class Block>
HWY_INLINE void WidenValues(const Block& block, int64_t padded_dim, float* out) {
  const DF d;
  const auto values = block.Values();
  for (int64_t j = 0; j < block.count; ++j) {
    const auto* value = values(j);
    float* row = out + j * padded_dim;
    int64_t i = 0;
    for (; i + kLanes <= block.dim; i += kLanes) hn::Store(LoadF32(d, value + i), d, row + i);
    for (; i < padded_dim; i += kLanes)
      hn::Store(LoadTail(d, value + i, std::max<int64_t>(0, block.dim - i)), d, row + i);
  }
}

// Prefetch of the entries that are read next, a few cache lines at a time, spread over the current work.
struct NoPrefetch {
  HWY_INLINE void Prefetch(int64_t) {}
};
struct EntryPrefetch {
  // Lines still to be prefetched: a contiguous range of entries ...
  const std::byte* data = nullptr;
  const std::byte* end = nullptr;
  // ... or listed entries, each as a whole.
  const std::byte* const* at = nullptr;
  const std::byte* const* at_end = nullptr;
  int64_t entry_lines = 0;
  int64_t owed = 0;
  HWY_INLINE void Prefetch(int64_t lines) {
    if (data < end) {
      for (int64_t line = 0; line < lines; ++line) PrefetchL2(data + line * 64);
      data += lines * 64;
    } else {
      for (owed += lines; owed >= entry_lines && at < at_end; owed -= entry_lines, ++at)
        for (int64_t line = 0; line < entry_lines; ++line) PrefetchL2(*at + line * 64);
    }
  }
};

// ---- A small matrix product. left [rows][steps] f32 at left_stride; right(s) is the row [columns] of step s.

// Sinks for the sums of a tile.
struct StoreSums {
  float* out;  // [rows] at stride
  int64_t stride;
  HWY_INLINE void operator()(DF d, int row, int64_t column, VF sum) const {
    hn::Store(sum, d, out + row * stride + column);
  }
};
// value = value · keep + sum · add: merges a block into a row's state. Adding +0 first makes a zero sum positive,
// whether or not entries of weight zero took part.
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

// Loads one step's vectors of the right factor; bf16 in paired order.
template <int kVectors, class T>
HWY_INLINE void LoadStep(DF d, const T* right, VF (&b)[kVectors]) {
  for (int v = 0; v < kVectors; ++v) b[v] = LoadF32(d, right + v * kLanes);
}
template <int kVectors>
HWY_INLINE void LoadStep(DF, const BF16* right, VF (&b)[kVectors]) {
  static_assert(kVectors % 2 == 0);
  for (int v = 0; v < kVectors; v += 2) {
    VF pair[2];
    Widen(hn::LoadU(DU(), reinterpret_cast<const uint32_t*>(right + v * kLanes)), BF16{}, pair);
    b[v] = pair[0];
    b[v + 1] = pair[1];
  }
}

template <int kRows, int kVectors, class Right, class Next, class Sink>
HWY_INLINE void OuterTile(const float* left, int64_t left_stride, const Right& right, int64_t steps, int64_t column,
                          Next& next, const Sink& sink) {
  const DF d;
  VF sums[kRows][kVectors];
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kVectors; ++v) sums[r][v] = hn::Zero(d);
  for (int64_t s = 0; s < steps; ++s) {
    next.Prefetch(kVectors * kLanes * static_cast<int64_t>(sizeof(typename Right::Element)) / 64);
    VF b[kVectors];
    LoadStep(d, right(s) + column, b);
    for (int r = 0; r < kRows; ++r) {
      const VF a = hn::Set(d, left[r * left_stride + s]);
      for (int v = 0; v < kVectors; ++v) sums[r][v] = hn::MulAdd(a, b[v], sums[r][v]);
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kVectors; ++v) sink(d, r, column + v * kLanes, sums[r][v]);
}

template <int kRows, class Right, class Next, class Sink>
HWY_NOINLINE Next OuterRows(const float* left, int64_t left_stride, Right right, int64_t steps, int64_t columns,
                            Next next, const Sink& sink) {
  constexpr int64_t kNarrow = kTogether<typename Right::Element>;
  int64_t c = 0;
  for (; c + kOuterVectors * kLanes <= columns; c += kOuterVectors * kLanes)
    OuterTile<kRows, kOuterVectors>(left, left_stride, right, steps, c, next, sink);
  for (; c < columns; c += kNarrow * kLanes) OuterTile<kRows, kNarrow>(left, left_stride, right, steps, c, next, sink);
  return next;
}

// Returns the rest of the prefetch.
template <int64_t kRows = kOuterRows, class Right, class Next, class Sink>
HWY_INLINE Next Outer(int64_t rows, const float* left, int64_t left_stride, const Right& right, int64_t steps,
                      int64_t columns, Next next, const Sink& sink) {
  if constexpr (kRows > 1)
    if (rows < kRows) return Outer<kRows - 1>(rows, left, left_stride, right, steps, columns, next, sink);
  HWY_DASSERT(rows == kRows);
  return OuterRows<kRows>(left, left_stride, right, steps, columns, next, sink);
}

// ---- Scores of few rows, read directly from memory: scores [kRows][kAttentionBlock].

// Adds kUnits units of kLanes keys to the sums of kRows queries, in ascending order.
template <int kRows, class T, int kUnits>
HWY_INLINE void AddUnits(const VU (&units)[kUnits], const float* queries, int64_t query_stride, VF (&sums)[kRows]) {
  INFINIGEN_UNROLL for (int64_t c = 0; c < kUnits; ++c) {
    VF columns[kPerUnit<T>];
    Widen(units[c], T{}, columns);
    INFINIGEN_UNROLL for (int64_t h = 0; h < kPerUnit<T>; ++h) INFINIGEN_UNROLL for (int64_t r = 0; r < kRows; ++r)
        sums[r] = hn::MulAdd(hn::Set(DF(), queries[r * query_stride + c * kPerUnit<T> + h]), columns[h], sums[r]);
  }
}

// Scores of kLanes keys. Every step prefetches as many bytes as it reads.
template <int kRows, class T, class Keys, class Next>
HWY_INLINE void ScoreKeys(const Keys& keys, int64_t dim, const float* queries, int64_t query_stride, Next& next,
                          float* scores) {
  constexpr int64_t kQuad = 4 * kPerUnit<T>, kLines = kLanes * kQuad * static_cast<int64_t>(sizeof(T)) / 64;
  VF sums[kRows];
  INFINIGEN_UNROLL for (int64_t r = 0; r < kRows; ++r) sums[r] = hn::Zero(DF());
  int64_t i = 0;
  for (; i + 2 * kQuad <= dim; i += 2 * kQuad) {
    next.Prefetch(2 * kLines);
    VU units[8];
    LoadKeysTransposed<T>(keys, i, units);
    AddUnits<kRows, T>(units, queries + i, query_stride, sums);
  }
  if (i + kQuad <= dim) {
    next.Prefetch(kLines);
    VU units[4];
    LoadKeysTransposed(keys, i, units);
    AddUnits<kRows, T>(units, queries + i, query_stride, sums);
    i += kQuad;
  }
  for (; i < dim; ++i) {
    const VF column = GatherElement(keys, i);
    INFINIGEN_UNROLL for (int64_t r = 0; r < kRows; ++r) sums[r] =
        hn::MulAdd(hn::Set(DF(), queries[r * query_stride + i]), column, sums[r]);
  }
  INFINIGEN_UNROLL for (int64_t r = 0; r < kRows; ++r) hn::Store(sums[r], DF(), scores + r * kAttentionBlock);
}

template <int kRows, class Block, class Next>
HWY_NOINLINE Next ScoreRows(const Block& block, const float* queries, int64_t query_stride, Next next, float* scores) {
  for (int64_t j = 0; j < block.count; j += kLanes)
    ScoreKeys<kRows, typename Block::T>(block.Keys(j), block.dim, queries, query_stride, next, scores + j);
  return next;
}

template <int64_t kRows = kOuterRows, class Block, class Next>
HWY_INLINE Next Score(int64_t rows, const Block& block, const float* queries, int64_t query_stride, Next next,
                      float* scores) {
  if constexpr (kRows > 1)
    if (rows < kRows) return Score<kRows - 1>(rows, block, queries, query_stride, next, scores);
  HWY_DASSERT(rows == kRows);
  return ScoreRows<kRows>(block, queries, query_stride, next, scores);
}

// ---- The running softmax

HWY_INLINE void ResetState(float* state, int64_t padded_dim) {
  state[0] = kMinusInfinity;
  state[1] = 0.0f;
  std::fill_n(state + kStateHead, padded_dim, 0.0f);
}

// One number per row of a tile, padded to whole vectors.
struct TileNumbers {
  HWY_ALIGN float at[8] = {};
};
static_assert(kOuterRows <= 8 && 8 % std::min<int64_t>(kLanes, 8) == 0);
using DT = hn::CappedTag<float, 8>;  // vectors over TileNumbers

// The soft cap of a plan, in base 2, on the scores of one row and block.
HWY_INLINE void CapScores(float* scores, float soft_cap) {
  const DF d;
  for (int64_t v = 0; v < kAttentionBlock; v += kLanes)
    hn::Store(SoftCapped(d, hn::Load(d, scores + v), soft_cap), d, scores + v);
}

// The largest score of each lane, for one row. Scores before `hidden` and past `visible` become −inf.
HWY_INLINE VF LaneMaxima(float* scores, int64_t hidden, int64_t visible) {
  const DF d;
  if (HWY_UNLIKELY(hidden > 0)) std::fill(scores, scores + hidden, kMinusInfinity);
  if (HWY_UNLIKELY(visible < kAttentionBlock)) std::fill(scores + visible, scores + kAttentionBlock, kMinusInfinity);
  VF largest = hn::Load(d, scores);
  for (int64_t v = kLanes; v < kAttentionBlock; v += kLanes) largest = hn::Max(largest, hn::Load(d, scores + v));
  return largest;
}
// Turns the scores of one row into weights in place. Returns their sum per lane.
HWY_INLINE VF WeighRow(float* scores, float maximum) {
  const DF d;
  const VF largest = hn::Set(d, maximum);
  VF total = hn::Zero(d);
  INFINIGEN_UNROLL for (int64_t v = 0; v < kAttentionBlock; v += kLanes) {
    const VF weight = Exp2NonPositive(d, hn::Sub(hn::Load(d, scores + v), largest));
    hn::Store(weight, d, scores + v);
    total = hn::Add(total, weight);
  }
  return total;
}

// Merges new partial results {maxima, sums} of `rows` rows into the rows' states. Sets keep and add, the factors of the
// old and the new weighted values.
HWY_INLINE void MergeHeads(int64_t rows, float* states, int64_t stride, const TileNumbers& maxima,
                           const TileNumbers& sums, TileNumbers* keep, TileNumbers* add) {
  const DT d;
  TileNumbers old_maxima, old_sums, joint_sums;
  for (int64_t r = 0; r < rows; ++r) {
    old_maxima.at[r] = states[r * stride];
    old_sums.at[r] = states[r * stride + 1];
  }
  for (int64_t r = 0; r < rows; r += static_cast<int64_t>(hn::Lanes(d))) {
    const auto before = hn::Load(d, old_maxima.at + r), part = hn::Load(d, maxima.at + r);
    const auto joint = hn::Max(before, part);
    const auto k = Exp2NonPositive(d, hn::Sub(before, joint)), a = Exp2NonPositive(d, hn::Sub(part, joint));
    hn::Store(joint, d, old_maxima.at + r);
    hn::Store(hn::MulAdd(hn::Load(d, old_sums.at + r), k, hn::Mul(hn::Load(d, sums.at + r), a)), d, joint_sums.at + r);
    hn::Store(k, d, keep->at + r);
    hn::Store(a, d, add->at + r);
  }
  for (int64_t r = 0; r < rows; ++r) {
    states[r * stride] = old_maxima.at[r];
    states[r * stride + 1] = joint_sums.at[r];
  }
}

// Merges one row's partial result of a chunk into its state.
HWY_INLINE void MergeState(float* state, const float* part, int64_t padded_dim) {
  const DF d;
  TileNumbers maximum, sum, keep, add;
  maximum.at[0] = part[0];
  sum.at[0] = part[1];
  MergeHeads(1, state, 0, maximum, sum, &keep, &add);
  const MergeSums merge{state + kStateHead, 0, keep.at, add.at};
  for (int64_t i = 0; i < padded_dim; i += kLanes) merge(d, 0, i, hn::Load(d, part + kStateHead + i));
}

HWY_INLINE void Finish(const float* state, int64_t dim, bool paired, float* out) {
  const DF d;
  const float factor = 1.0f / state[1];
  const float* value = state + kStateHead;
  if (paired) {
    for (int64_t first = 0; first < dim; first += 2 * kLanes, value += 2 * kLanes)
      for (int64_t i = 0; i < 2 * kLanes; ++i) out[first + i] = value[i % 2 * kLanes + i / 2] * factor;
    return;
  }
  const VF scale = hn::Set(d, factor);
  int64_t i = 0;
  for (; i + kLanes <= dim; i += kLanes) hn::StoreU(hn::Mul(hn::Load(d, value + i), scale), d, out + i);
  if (i < dim) StoreTail(d, hn::Mul(hn::Load(d, value + i), scale), out + i, dim - i);
}

inline constexpr float kLog2E = 1.44269504089f;  // weights are powers of two
HWY_INLINE void ScaleQuery(const float* query, int64_t dim, float scale, float* out) {
  for (int64_t i = 0; i < dim; ++i) out[i] = query[i] * (scale * kLog2E);
}

// Query rows of one KV head. Row r belongs to token r / group, which attends to entries [0, first_length + token).
struct QueryRows {
  const float* queries;  // [rows][padded_dim], scaled
  float* states;         // [rows][state_floats]
  int64_t rows;
  int64_t group;
  int64_t first_length;
  int64_t window = 0;  // 0: none
  int64_t Length(int64_t row) const { return first_length + row / group; }
  // First entry that a row attends to.
  int64_t First(int64_t row) const { return window > 0 ? std::max<int64_t>(0, Length(row) - window) : 0; }
  // Number of entries of the block at `start` that each of `count` rows attends to.
  void Visible(int64_t first, int64_t count, int64_t start, int64_t* visible) const {
    int64_t token = first / group, within = first % group;
    for (int64_t r = 0; r < count; ++r) {
      visible[r] = std::min(kAttentionBlock, first_length + token - start);
      if (++within == group) ++token, within = 0;
    }
  }
};

// Turns scores [rows][kAttentionBlock] into weights and merges the weighted values into the rows' states, for one tile
// of rows and one block whose first entry is `start`. Every row attends to at least one entry of the block.
template <class Values, class Next>
HWY_INLINE void JoinTile(const AttentionPlan& plan, const QueryRows& q, int64_t first, int64_t rows, int64_t start,
                         float* scores, const Values& values, Next next) {
  constexpr int64_t kLinesPerRow = 8;  // prefetched meanwhile, to keep memory busy
  TileNumbers maxima, sums, keep, add;
  int64_t visible[kOuterRows];
  q.Visible(first, rows, start, visible);
  VF lanes[8];
  for (int64_t r = 0; r < 8; ++r) lanes[r] = hn::Zero(DF());
  for (int64_t r = 0; r < rows; ++r) {
    float* row = scores + r * kAttentionBlock;
    if (plan.soft_cap > 0) CapScores(row, plan.soft_cap * kLog2E);
    lanes[r] = LaneMaxima(row, std::max<int64_t>(0, q.First(first + r) - start), visible[r]);
  }
  for (int64_t r = 0; r < rows; r += 4)
    hn::Store(MaxLanesOfFour(DF(), lanes[r], lanes[r + 1], lanes[r + 2], lanes[r + 3]), D4(), maxima.at + r);
  for (int64_t r = 0; r < rows; ++r) {
    next.Prefetch(kLinesPerRow);
    lanes[r] = WeighRow(scores + r * kAttentionBlock, maxima.at[r]);
  }
  for (int64_t r = 0; r < rows; r += 4)
    hn::Store(SumLanesOfFour(DF(), lanes[r], lanes[r + 1], lanes[r + 2], lanes[r + 3]), D4(), sums.at + r);
  MergeHeads(rows, q.states + first * plan.state_floats(), plan.state_floats(), maxima, sums, &keep, &add);
  // Rows with the same number of visible entries go together; no row reads a value that it may not attend to.
  for (int64_t r = 0; r < rows;) {
    int64_t end = r + 1;
    while (end < rows && visible[end] == visible[r]) ++end;
    const MergeSums merge{q.states + (first + r) * plan.state_floats() + kStateHead, plan.state_floats(), keep.at + r,
                          add.at + r};
    next =
        Outer(end - r, scores + r * kAttentionBlock, kAttentionBlock, values, visible[r], plan.padded_dim, next, merge);
    r = end;
  }
}

// The emulated target always uses scratch (the same arithmetic), because its kernels take the longest to compile.
inline constexpr bool kMayReadInPlace = HWY_TARGET != HWY_EMU128;
// Whether decode reads values in place: no load may cross the end of an entry, and one tile must hold all rows.
template <class T>
HWY_INLINE bool ReadsInPlace(const AttentionPlan& plan) {
  return kMayReadInPlace && plan.group <= kOuterRows && plan.dim == plan.padded_dim &&
         plan.dim % (kTogether<T> * kLanes) == 0;
}

// Whether the rows of a chunk end in paired order (see LoadStep).
HWY_INLINE bool IsPaired(const AttentionPlan& plan, int64_t rows) {
  const StoreType type = plan.entries.layout.type;
  const bool paired =
      (type == StoreType::kBF16 && ReadsInPlace<BF16>(plan)) || (type == StoreType::kInt4 && ReadsInPlace<Int4>(plan));
  return paired && rows == plan.group;
}

// One block for the query heads of one token, all of which attend to all of it. Entries are read once, directly from
// memory.
template <class Block, class Next>
HWY_INLINE void AttendBlockInPlace(const AttentionPlan& plan, const QueryRows& q, const Block& block, Next next,
                                   int64_t start) {
  HWY_ALIGN float scores[kOuterRows * kAttentionBlock];
  next = Score(q.rows, block, q.queries, plan.padded_dim, next, scores);
  JoinTile(plan, q, 0, q.rows, start, scores, block.Values(), next);
}

// One block for all rows that attend to any of it, through scratch: keys [padded_dim][64], values [64][padded_dim].
template <class Block>
HWY_INLINE void AttendBlock(const AttentionPlan& plan, const QueryRows& q, const Block& block, int64_t start,
                            float* keys, float* values) {
  HWY_ALIGN float scores[kOuterRows * kAttentionBlock];
  const int64_t begin = std::max<int64_t>(0, start + 1 - q.first_length) * q.group;
  // The windows of later rows begin after the block.
  const int64_t end =
      q.window == 0
          ? q.rows
          : std::min(q.rows, std::max<int64_t>(0, start + kAttentionBlock + q.window - q.first_length) * q.group);
  if (begin >= end) return;
  TransposeKeys(block, keys);
  WidenValues(block, plan.padded_dim, values);
  const int64_t tiles = (end - begin + kOuterRows - 1) / kOuterRows;
  const int64_t height = (end - begin + tiles - 1) / tiles;
  for (int64_t first = begin; first < end; first += height) {
    const int64_t rows = std::min(height, end - first);
    Outer(rows, q.queries + first * plan.padded_dim, plan.padded_dim, StridedRows<float>{keys, kAttentionBlock},
          plan.dim, kAttentionBlock, NoPrefetch{}, StoreSums{scores, kAttentionBlock});
    JoinTile(plan, q, first, rows, start, scores, StridedRows<float>{values, plan.padded_dim}, NoPrefetch{});
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace infinigen::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
