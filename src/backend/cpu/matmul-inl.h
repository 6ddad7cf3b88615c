// MatMul kernels, compiled once per SIMD target.
//
// Weights are rows [n][k], so an output is a dot product along k. Every path sums an output in the same order: per
// block of kSumBlock elements one vector accumulator (lane i takes elements i, i + lanes, ... by fused multiply-add)
// and a tree over its lanes; then the blocks in ascending order. A register tile of activations x weights only changes
// how many of these sums are computed together.
//
// There are two paths. "Direct" (few rows, decode): weights go from memory to registers, each byte once. "Panel" (many
// rows, prefill): weights are widened to f32 into a panel that fits L2, block by block, and all rows are multiplied
// with it.
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

// Accumulators: rows x kTileOuts, out of 32 (AVX-512) or 16 vector registers. The emulated target has no vector
// registers to fill, and its kernels take the longest to compile.
inline constexpr int64_t kTileRows = HWY_TARGET == HWY_AVX3 ? 6 : HWY_TARGET == HWY_EMU128 ? 2 : 3;

// Division of m rows into tiles: as even as possible, none above kTileRows.
struct RowTiles {
  explicit RowTiles(int64_t m)
      : count((m + kTileRows - 1) / kTileRows), height(count == 0 ? 0 : (m + count - 1) / count), rows(m) {}
  int64_t First(int64_t tile) const { return tile * height; }
  int64_t Height(int64_t tile) const { return std::min(height, rows - tile * height); }
  int64_t count, height, rows;
};

// Weight sources of a tile: At() is the vector of weights of output o at a step of kLanes elements.
//
// Direct weights come from memory. The rows of a tile are at least the length of a page apart, which hardware
// prefetchers do not follow well (measured: half of the read bandwidth). So each step prefetches its share of the next
// tile's rows, in the linear order of memory and into L2: in L1, rows at a distance of a power of two would evict each
// other. At the end of a task this prefetches the next task's rows, or memory that is never read, which costs less than
// an unprefetched tile; a prefetch never faults.
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

template <int64_t kRows = kTileRows, class Weights>
HWY_INLINE void SumBlockRows(int64_t rows, const float* x, const Weights& weights, int64_t steps, bool first,
                             float* sums) {
  if constexpr (kRows > 1)
    if (rows < kRows) return SumBlockRows<kRows - 1>(rows, x, weights, steps, first, sums);
  HWY_DASSERT(rows == kRows);
  SumBlockTile<kRows>(x, weights, steps, first, sums);
}

// Writes out[row][n .. n + count) from finished sums; count <= kTileOuts.
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

// Packs tile `tile` of plan.x.
void PackTile(const CpuMatMulPlan& plan, int64_t tile) {
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

// The lane sums of one block of one output.
template <class T>
HWY_INLINE VF DotBlock(DF d, const float* x, const T* w, int64_t length) {
  VF sum = hn::Zero(d);
  int64_t i = 0;
  for (; i + 2 * kLanes <= length; i += 2 * kLanes) {
    sum = hn::MulAdd(hn::Load(d, x + i), LoadF32(d, w + i), sum);
    sum = hn::MulAdd(hn::Load(d, x + i + kLanes), LoadF32(d, w + i + kLanes), sum);
  }
  for (; i < length; i += kLanes) {
    const bool whole = i + kLanes <= length;
    sum = hn::MulAdd(hn::Load(d, x + i), whole ? LoadF32(d, w + i) : LoadTail(d, w + i, length - i), sum);
  }
  return sum;
}

// One short row of activations, which stays in L1 beside the stream of weights. Computing one output after the other
// reads memory once in ascending order, which the hardware prefetches best (measured: 0.98 of the read bandwidth, and
// 0.88 with additional software prefetches). The tree takes four blocks at a time.
template <class T>
HWY_NOINLINE void DirectOutsOfOneShortRow(const CpuMatMulPlan& plan, const Projection& p, int64_t begin, int64_t end) {
  const DF d;
  const int64_t k = plan.x.cols;
  HWY_ALIGN float blocks[4], out[kTileOuts];
  for (int64_t n = begin; n < end; ++n) {
    const T* row = p.weight.as<T>(n);
    float sum = 0;
    for (int64_t start = 0; start < k; start += 4 * kSumBlock) {
      VF lanes[4];
      INFINIGEN_UNROLL for (int64_t b = 0; b < 4; ++b) {
        const int64_t first = std::min(start + b * kSumBlock, k);
        lanes[b] = DotBlock(d, plan.packed + first, row + first, std::min(kSumBlock, k - first));
      }
      hn::Store(SumLanesOfFour(d, lanes[0], lanes[1], lanes[2], lanes[3]), D4(), blocks);
      for (int64_t b = 0; b < 4 && start + b * kSumBlock < k; ++b) sum = start + b == 0 ? blocks[0] : sum + blocks[b];
    }
    out[(n - begin) % kTileOuts] = sum;
    const int64_t done = (n - begin) % kTileOuts + 1;
    if (done == kTileOuts || n + 1 == end) Finish(p, 0, n + 1 - done, done, out);
  }
}

// One long row of activations: only weights are streamed. Each step reads whole cache lines of every row of the tile.
// It prefetches its share of the tile after the next into L2, in the order of memory, and the lines that it needs soon
// from L2 into L1.
template <class T>
HWY_NOINLINE void DirectOutsOfOneLongRow(const CpuMatMulPlan& plan, const Projection& p, int64_t begin, int64_t end) {
  const DF d;
  const D4 d4;
  constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof(T));  // elements
  constexpr int64_t kStep = std::max(kLine, 2 * kLanes);
  constexpr int64_t kAhead = 8 * kLine;
  const int64_t k = plan.x.cols;
  for (int64_t n = begin; n < end; n += kTileOuts) {
    const int64_t count = std::min(kTileOuts, end - n);
    const T* rows[kTileOuts];
    for (int64_t o = 0; o < kTileOuts; ++o) rows[o] = p.weight.as<T>(n + std::min(o, count - 1));
    const T* next = p.weight.as<T>(std::min(n + 2 * kTileOuts, p.weight.rows - 1));
    auto sums = hn::Zero(d4);
    for (int64_t start = 0; start < k; start += kSumBlock) {
      const int64_t stop = std::min(start + kSumBlock, k);
      VF lanes[kTileOuts], low[kTileOuts], high[kTileOuts];
      INFINIGEN_UNROLL for (int64_t o = 0; o < kTileOuts; ++o) lanes[o] = hn::Zero(d);
      int64_t i = start;
      for (; i + kStep <= stop; i += kStep, next += kTileOuts * kStep) {
        INFINIGEN_UNROLL for (int64_t line = 0; line < kTileOuts * kStep; line += kLine) PrefetchL2(next + line);
        INFINIGEN_UNROLL for (int64_t o = 0; o < kTileOuts; ++o) {
          INFINIGEN_UNROLL for (int64_t j = 0; j < kStep; j += kLine) PrefetchL1(rows[o] + i + j + kAhead);
        }
        INFINIGEN_UNROLL for (int64_t j = 0; j < kStep; j += 2 * kLanes) {
          const VF x_low = hn::Load(d, plan.packed + i + j), x_high = hn::Load(d, plan.packed + i + j + kLanes);
          INFINIGEN_UNROLL for (int64_t o = 0; o < kTileOuts; ++o) LoadPair(d, rows[o] + i + j, low[o], high[o]);
          INFINIGEN_UNROLL for (int64_t o = 0; o < kTileOuts; ++o) lanes[o] = hn::MulAdd(x_low, low[o], lanes[o]);
          INFINIGEN_UNROLL for (int64_t o = 0; o < kTileOuts; ++o) lanes[o] = hn::MulAdd(x_high, high[o], lanes[o]);
        }
      }
      for (; i < stop; i += kLanes) {
        const VF x = hn::Load(d, plan.packed + i);
        const bool whole = i + kLanes <= stop;
        INFINIGEN_UNROLL for (int64_t o = 0; o < kTileOuts; ++o) {
          const VF w = whole ? LoadF32(d, rows[o] + i) : LoadTail(d, rows[o] + i, stop - i);
          lanes[o] = hn::MulAdd(x, w, lanes[o]);
        }
      }
      const auto block = SumLanesOfFour(d, lanes[0], lanes[1], lanes[2], lanes[3]);
      sums = start == 0 ? block : hn::Add(sums, block);
    }
    HWY_ALIGN float out[kTileOuts];
    hn::Store(sums, d4, out);
    Finish(p, 0, n, count, out);
  }
}

template <class T>
HWY_NOINLINE void DirectOuts(const CpuMatMulPlan& plan, const Projection& p, int64_t begin, int64_t end) {
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
      weights.next = p.weight.row(std::min(n + kTileOuts, p.weight.rows - 1)) +
                     start * kTileOuts * static_cast<int64_t>(sizeof(T));
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

// Weight rows [begin, begin + outs) x elements [start, start + length) as f32:
// [outs / kTileOuts][step][kTileOuts][kLanes].
template <class T>
HWY_NOINLINE void WidenPanel(const WeightView& weight, int64_t begin, int64_t outs, int64_t start, int64_t length,
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

// Multiplies one block of a panel with tiles [first, last); sums is [tile][quad][rows][kTileOuts].
HWY_NOINLINE void WalkPanel(const CpuMatMulPlan& plan, const Projection& p, int64_t begin, int64_t end, int64_t start,
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
void PanelOuts(const CpuMatMulPlan& plan, const Projection& p, int64_t begin, int64_t end, float* scratch) {
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
