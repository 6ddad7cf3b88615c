// The kernels of MatMul, once per SIMD target.
//
// Weights are rows [n][k], so one output is a dot product along k. Every output, on every path, is summed alike: per
// block of kSumBlock elements one vector accumulator (lane i takes elements i, i + lanes, ... by fused multiply-add), a
// tree over its lanes, then the blocks in ascending order. A register tile of activations x weights only changes how
// many such sums run side by side.
//
// Two paths. "Direct" (few rows, decode): weights go from memory to registers, each byte once. "Panel" (many rows,
// prefill): weights are widened to f32 into an L2-resident panel, block by block, and all rows walk over it.
#if defined(INFINIGEN_CPU_MATMUL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef INFINIGEN_CPU_MATMUL_INL_H_
#undef INFINIGEN_CPU_MATMUL_INL_H_
#else
#define INFINIGEN_CPU_MATMUL_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>

#include "backend/cpu/matmul_plan.h"
#include "backend/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace infinigen::HWY_NAMESPACE {

// Accumulators: rows x kTileOuts of 32 (AVX-512) or 16 vector registers.
inline constexpr int64_t kTileRows = HWY_TARGET == HWY_AVX3 ? 6 : 3;

// How m rows are cut into tiles: as even as possible, none above kTileRows.
struct RowTiles {
  explicit RowTiles(int64_t m)
      : count((m + kTileRows - 1) / kTileRows), height(count == 0 ? 0 : (m + count - 1) / count), rows(m) {}
  int64_t First(int64_t tile) const { return tile * height; }
  int64_t Height(int64_t tile) const { return std::min(height, rows - tile * height); }
  int64_t count, height, rows;
};

// Weight sources of a tile: a vector of weights of output o at a step of kLanes elements.
//
// Direct weights come from memory. The rows of a tile are the length of a page apart or more, which no hardware
// prefetcher follows well (measured: half of the read bandwidth), so each step asks for its share of the next tile's
// rows, in the linear order of memory and into L2: rows whose distance is a power of two would evict each other from
// L1.
template <class T>
struct DirectWeights {
  const T* rows[kTileOuts];
  int64_t tail;           // elements after the last whole vector
  const std::byte* next;  // the next tile's share of this block, or null
  HWY_INLINE VF At(DF d, int64_t step, int64_t o) const { return LoadF32(d, rows[o] + step * kLanes); }
  HWY_INLINE VF Tail(DF d, int64_t step, int64_t o) const { return LoadTail(d, rows[o] + step * kLanes, tail); }
  HWY_INLINE void Prefetch(int64_t step) const {
    constexpr int64_t kStepBytes = kTileOuts * kLanes * static_cast<int64_t>(sizeof(T));
    if (next == nullptr) return;
    for (int64_t line = 0; line < kStepBytes; line += 64) PrefetchL2(next + step * kStepBytes + line);
  }
};
struct PanelWeights {
  const float* panel;  // [step][kTileOuts][kLanes]
  static constexpr int64_t tail = 0;
  HWY_INLINE VF At(DF d, int64_t step, int64_t o) const { return hn::Load(d, panel + (step * kTileOuts + o) * kLanes); }
  HWY_INLINE VF Tail(DF d, int64_t, int64_t) const { return hn::Zero(d); }
  HWY_INLINE void Prefetch(int64_t) const {}
};

template <int kRows>
HWY_INLINE void Accumulate(DF d, const float* x, const VF (&w)[kTileOuts], VF (&sums)[kRows][kTileOuts]) {
  for (int r = 0; r < kRows; ++r) {
    const VF v = hn::Load(d, x + r * kLanes);
    for (int o = 0; o < kTileOuts; ++o) sums[r][o] = hn::MulAdd(v, w[o], sums[r][o]);
  }
}

// sums[r][o] = (first block: 0, else sums[r][o]) + Σ over one block. x is the packed tile at this block.
template <int kRows, class Weights>
HWY_INLINE void SumBlockTile(const float* x, const Weights& weights, int64_t steps, bool first, float* sums) {
  const DF d;
  const D4 d4;
  VF lanes[kRows][kTileOuts];
  for (int r = 0; r < kRows; ++r)
    for (int o = 0; o < kTileOuts; ++o) lanes[r][o] = hn::Zero(d);
  VF w[kTileOuts];
  for (int64_t step = 0; step < steps; ++step) {
    weights.Prefetch(step);
    for (int o = 0; o < kTileOuts; ++o) w[o] = weights.At(d, step, o);
    Accumulate<kRows>(d, x + step * kRows * kLanes, w, lanes);
  }
  if (weights.tail != 0) {
    for (int o = 0; o < kTileOuts; ++o) w[o] = weights.Tail(d, steps, o);
    Accumulate<kRows>(d, x + steps * kRows * kLanes, w, lanes);
  }
  for (int r = 0; r < kRows; ++r) {
    auto sum = SumLanesOfFour(d, lanes[r][0], lanes[r][1], lanes[r][2], lanes[r][3]);
    if (!first) sum = hn::Add(hn::LoadU(d4, sums + r * kTileOuts), sum);
    hn::StoreU(sum, d4, sums + r * kTileOuts);
  }
}

template <class Weights>
HWY_INLINE void SumBlockRows(int64_t rows, const float* x, const Weights& weights, int64_t steps, bool first,
                             float* sums) {
  switch (rows) {
    case 1:
      return SumBlockTile<1>(x, weights, steps, first, sums);
    case 2:
      return SumBlockTile<2>(x, weights, steps, first, sums);
    case 3:
      return SumBlockTile<3>(x, weights, steps, first, sums);
#if HWY_TARGET == HWY_AVX3
    case 4:
      return SumBlockTile<4>(x, weights, steps, first, sums);
    case 5:
      return SumBlockTile<5>(x, weights, steps, first, sums);
    case 6:
      return SumBlockTile<6>(x, weights, steps, first, sums);
#endif
    default:
      HWY_DASSERT(false);
  }
}

// out[row][n .. n + count) from finished sums, count <= kTileOuts.
HWY_INLINE void Finish(const Projection& p, int64_t row, int64_t n, int64_t count, const float* sums) {
  const D4 d;
  float* out = p.out.as<float>(row) + n;
  if (count == kTileOuts) {
    auto v = hn::LoadU(d, sums);
    if (p.bias) v = hn::Add(v, hn::LoadU(d, p.bias.as<float>() + n));
    if (p.epilogue == Epilogue::kAdd) v = hn::Add(hn::LoadU(d, out), v);
    if (p.epilogue == Epilogue::kRelu) v = hn::Max(hn::Zero(d), v) /* NaN stays NaN */;
    hn::StoreU(v, d, out);
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    const float v = p.bias ? sums[i] + p.bias.as<float>()[n + i] : sums[i];
    if (p.epilogue == Epilogue::kStore) out[i] = v;
    if (p.epilogue == Epilogue::kAdd) out[i] += v;
    if (p.epilogue == Epilogue::kRelu) out[i] = std::max(v, 0.0f);
  }
}

// Tile `tile` of plan.x into its packed form.
void PackTile(const MatMulPlan& plan, int64_t tile) {
  const DF d;
  const RowTiles tiles(plan.x.rows);
  const int64_t k = plan.x.cols, height = tiles.Height(tile);
  float* packed = plan.packed + tiles.First(tile) * plan.padded_k;
  for (int64_t r = 0; r < height; ++r) {
    const float* row = plan.x.as<float>(tiles.First(tile) + r);
    float* out = packed + r * kLanes;
    int64_t i = 0;
    for (; i + kLanes <= k; i += kLanes, out += height * kLanes) hn::Store(hn::LoadU(d, row + i), d, out);
    if (i < k) hn::Store(LoadTail(d, row + i, k - i), d, out);
  }
}
int64_t RowTileCount(int64_t m) { return RowTiles(m).count; }

// One row of activations: two outputs at a time, so that both hardware and software prefetch keep up with memory.
template <class T>
HWY_NOINLINE void DirectOutsOfOneRow(const MatMulPlan& plan, const Projection& p, int64_t begin, int64_t end) {
  const DF d;
  const D4 d4;
  constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof(T));  // elements; whole vectors on every target
  constexpr int64_t kAhead = 8 * kLine;                            // from L2 into L1
  const int64_t k = plan.x.cols;
  for (int64_t n = begin; n < end; n += 2) {
    const int64_t count = std::min<int64_t>(2, end - n);
    const T* a = p.weight.as<T>(n);
    const T* b = p.weight.as<T>(n + count - 1);
    // Two pairs ahead in the order of memory, into L2. Past the last row this asks for memory that is not read; a
    // prefetch never faults.
    const T* next = p.weight.as<T>(std::min(n + 4, p.weight.rows - 1));
    auto sums = hn::Zero(d4);
    for (int64_t start = 0; start < k; start += kSumBlock) {
      const int64_t stop = std::min(start + kSumBlock, k);
      VF sum_a = hn::Zero(d), sum_b = hn::Zero(d);
      int64_t i = start;
      for (; i + kLine <= stop; i += kLine, next += 2 * kLine) {
        PrefetchL2(next);
        PrefetchL2(next + kLine);
        PrefetchL1(a + i + kAhead);
        PrefetchL1(b + i + kAhead);
        INFINIGEN_UNROLL for (int64_t j = 0; j < kLine; j += kLanes) {
          const VF x = hn::Load(d, plan.packed + i + j);
          sum_a = hn::MulAdd(x, LoadF32(d, a + i + j), sum_a);
          sum_b = hn::MulAdd(x, LoadF32(d, b + i + j), sum_b);
        }
      }
      for (; i < stop; i += kLanes) {
        const VF x = hn::Load(d, plan.packed + i);
        const bool whole = i + kLanes <= stop;
        sum_a = hn::MulAdd(x, whole ? LoadF32(d, a + i) : LoadTail(d, a + i, stop - i), sum_a);
        sum_b = hn::MulAdd(x, whole ? LoadF32(d, b + i) : LoadTail(d, b + i, stop - i), sum_b);
      }
      const auto block = SumLanesOfFour(d, sum_a, sum_b, sum_a, sum_b);
      sums = start == 0 ? block : hn::Add(sums, block);
    }
    HWY_ALIGN float out[4];
    hn::Store(sums, d4, out);
    Finish(p, 0, n, count, out);
  }
}

template <class T>
HWY_NOINLINE void DirectOuts(const MatMulPlan& plan, const Projection& p, int64_t begin, int64_t end) {
  const int64_t k = plan.x.cols;
  const RowTiles tiles(plan.x.rows);
  HWY_ALIGN float sums[kDirectRows * kTileOuts];
  for (int64_t n = begin; n < end; n += kTileOuts) {
    const int64_t count = std::min(kTileOuts, end - n);
    for (int64_t start = 0; start < k; start += kSumBlock) {
      const int64_t length = std::min(kSumBlock, k - start);
      DirectWeights<T> weights;
      for (int64_t o = 0; o < kTileOuts; ++o) weights.rows[o] = p.weight.as<T>(n + std::min(o, count - 1)) + start;
      weights.tail = length % kLanes;
      weights.next = n + 2 * kTileOuts <= end ? p.weight.row(n + kTileOuts) + start * kTileOuts * sizeof(T) : nullptr;
      for (int64_t tile = 0; tile < tiles.count; ++tile) {
        const int64_t height = tiles.Height(tile);
        const float* x = plan.packed + tiles.First(tile) * plan.padded_k + start * height;
        SumBlockRows(height, x, weights, length / kLanes, start == 0, sums + tiles.First(tile) * kTileOuts);
        weights.next = nullptr;
      }
    }
    for (int64_t r = 0; r < plan.x.rows; ++r) Finish(p, r, n, count, sums + r * kTileOuts);
  }
}

// Weight rows [begin, begin + outs) x elements [start, start + length) as f32: [outs /
// kTileOuts][step][kTileOuts][kLanes].
template <class T>
HWY_NOINLINE void WidenPanel(const ConstTensor& weight, int64_t begin, int64_t outs, int64_t start, int64_t length,
                             float* panel) {
  const DF d;
  const int64_t steps = (length + kLanes - 1) / kLanes;
  for (int64_t n = 0; n < outs; ++n) {
    const T* row = weight.as<T>(std::min(begin + n, weight.rows - 1)) + start;
    float* out = panel + (n / kTileOuts * steps * kTileOuts + n % kTileOuts) * kLanes;
    int64_t i = 0;
    for (; i + kLanes <= length; i += kLanes, out += kTileOuts * kLanes) hn::Store(LoadF32(d, row + i), d, out);
    if (i < length) hn::Store(LoadTail(d, row + i, length - i), d, out);
  }
}

// One block of one panel over the tiles [first, last): sums is [tile][quad][rows][kTileOuts].
HWY_NOINLINE void WalkPanel(const MatMulPlan& plan, const Projection& p, int64_t begin, int64_t end, int64_t start,
                            const float* panel, int64_t first, int64_t last, float* sums) {
  const RowTiles tiles(plan.x.rows);
  const int64_t k = plan.x.cols, length = std::min(kSumBlock, k - start);
  const int64_t steps = (length + kLanes - 1) / kLanes;
  const bool done = start + length == k;
  for (int64_t tile = first; tile < last; ++tile) {
    const int64_t height = tiles.Height(tile);
    const float* x = plan.packed + tiles.First(tile) * plan.padded_k + start * height;
    float* tile_sums = sums + (tile - first) * tiles.height * kPanelOuts;
    const float* quad = panel;
    for (int64_t n = begin; n < end;
         n += kTileOuts, quad += steps * kTileOuts * kLanes, tile_sums += height * kTileOuts) {
      SumBlockRows(height, x, PanelWeights{quad}, steps, start == 0, tile_sums);
      if (!done) continue;
      for (int64_t r = 0; r < height; ++r)
        Finish(p, tiles.First(tile) + r, n, std::min(kTileOuts, end - n), tile_sums + r * kTileOuts);
    }
  }
}

template <class T>
void PanelOuts(const MatMulPlan& plan, const Projection& p, int64_t begin, int64_t end, float* scratch) {
  const RowTiles tiles(plan.x.rows);
  const int64_t k = plan.x.cols;
  const int64_t outs = (end - begin + kTileOuts - 1) / kTileOuts * kTileOuts;
  const int64_t tiles_per_walk = kPanelRows / tiles.height;
  for (int64_t first = 0; first < tiles.count; first += tiles_per_walk) {
    const int64_t last = std::min(tiles.count, first + tiles_per_walk);
    for (int64_t start = 0; start < k; start += kSumBlock) {
      WidenPanel<T>(p.weight, begin, outs, start, std::min(kSumBlock, k - start), scratch);
      WalkPanel(plan, p, begin, end, start, scratch, first, last, scratch + kPanelFloats);
    }
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace infinigen::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
