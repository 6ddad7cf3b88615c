// Select: scores of sketches, and the choice of rows from scores of any kind.
//
//   1. Scores. A block scores 1,024 rows of one (token, KV head): a thread owns four neighbouring rows, which lie side
//      by side in every unit of a sketch block, so that a warp reads whole lines and no sum crosses lanes. Queries lie
//      in shared memory, quantised once per block as kv/sketch.h says; integer sums are exact, and the scores bit for
//      bit those of the host.
//   2. Keys. The relative score r ≤ 0 of an item becomes a key of 31 bits: larger r, larger key; 0 where r is not a
//      number. A threshold on r is one on keys.
//   3. The choice, one block per (token, KV head): count, cut off the largest by radix_select.cuh, then write the rows
//      that are attended in ascending order. A warp owns a run of rows: it counts, learns its place, and writes.
//
// Where the keys of a sequence fit into shared memory, 2 and 3 are one kernel. Otherwise (and for mean counts, where a
// head has to know the others') keys are made by many blocks and chosen from memory.
#include <type_traits>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/select.cuh"
#include "kv/sketch.h"

namespace infinigen {
namespace {

// ---- Scores of sketches.

constexpr int kScoreThreads = 256;
constexpr int kRowsPerThread = 4;  // 16 bytes of a unit
static_assert(kScoreThreads * kRowsPerThread == kScoreChunk);
constexpr int kUnitVectors = kSketchBlock / kRowsPerThread;  // from unit to unit

// What every query of the group is in shared memory, heads innermost and padded to a multiple of kHeads, so that a
// thread reads those it works on as one run.
struct IntQueries {
  const int2* quads;    // [dims / 4][heads] four values of 16 bits
  const float* scales;  // [heads]
  const int32_t* sums;  // [heads] of values
};

size_t QueryBytes(const SketchLayout& layout, int64_t heads) {
  if (!layout.has_scales()) return static_cast<size_t>(layout.dims * heads) * sizeof(float);
  return static_cast<size_t>(layout.dims * heads) * sizeof(int16_t) + static_cast<size_t>(heads) * 8;
}

__device__ bool IsFinite(float x) { return fabsf(x) <= 3.402823466e38f; }

// Rounds the queries of one KV head (kv/sketch.h: QuantiseQuery), a warp per query head.
__device__ IntQueries QuantiseQueries(const float* queries, int dims, int group, int heads, std::byte* shared) {
  auto* values = reinterpret_cast<int16_t*>(shared);
  auto* scales = reinterpret_cast<float*>(values + dims * heads);
  auto* sums = reinterpret_cast<int32_t*>(scales + heads);
  const float most = static_cast<float>(kLargestQueryValue);
  for (int h = Warp(); h < heads; h += Warps()) {
    float largest = 0;
    for (int i = Lane(); i < dims && h < group; i += 32) {
      const float number = queries[h * dims + i];
      if (IsFinite(number)) largest = fmaxf(largest, fabsf(number));
    }
    const float scale = __fdiv_rn(WarpMax(largest), most);
    float inverse = scale > 0 ? __fdiv_rn(1.0f, scale) : 0.0f;
    if (!IsFinite(inverse)) inverse = 0.0f;
    int32_t sum = 0;
    for (int i = Lane(); i < dims; i += 32) {
      const float number = h < group ? queries[h * dims + i] : 0.0f;
      const float rounded = IsFinite(number) ? rintf(__fmul_rn(number, inverse)) : 0.0f;
      const int32_t value = static_cast<int32_t>(fminf(fmaxf(rounded, -most), most));
      values[((i / 4) * heads + h) * 4 + i % 4] = static_cast<int16_t>(value);
      sum += value;
    }
    sum = __reduce_add_sync(kAllLanes, sum);
    if (Lane() == 0) {
      scales[h] = scale;
      sums[h] = sum;
    }
  }
  return {reinterpret_cast<const int2*>(values), scales, sums};
}

// Scores of four rows for kHeads query heads from `first` on. block: the rows' place in their sketch block.
template <SketchType kType, int kHeads>
__device__ void ScoreInts(const IntQueries& queries, int first, int heads, const uint4* block, const uint2* row_scales,
                          int units, float (&scores)[kHeads][kRowsPerThread]) {
  int32_t sums[kHeads][kRowsPerThread] = {};
#pragma unroll 4
  for (int u = 0; u < units; ++u) {
    const uint4 unit = __ldg(block + u * kUnitVectors);
    const uint32_t rows[kRowsPerThread] = {unit.x, unit.y, unit.z, unit.w};
    constexpr int kQuads = kType == SketchType::kInt8 ? 1 : 2;
#pragma unroll
    for (int half = 0; half < kQuads; ++half) {
      const int2* quads = queries.quads + (u * kQuads + half) * heads + first;
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        const int2 quad = quads[h];
#pragma unroll
        for (int r = 0; r < kRowsPerThread; ++r) {
          // Stored as value + 128, or as value + 8, which is taken off in the end.
          const int bytes = static_cast<int>(kType == SketchType::kInt8 ? rows[r] ^ 0x80808080u
                                                                        : rows[r] >> (4 * half) & 0x0f0f0f0fu);
          sums[h][r] = __dp2a_hi(quad.y, bytes, __dp2a_lo(quad.x, bytes, sums[h][r]));
        }
      }
    }
  }
  const uint2 scales = __ldg(row_scales);
  const uint32_t bits[kRowsPerThread] = {scales.x << 16, scales.x & 0xffff0000u, scales.y << 16,
                                         scales.y & 0xffff0000u};
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    const int32_t excess = kType == SketchType::kInt8 ? 0 : 8 * queries.sums[first + h];
    const float scale = queries.scales[first + h];
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r)
      scores[h][r] = __fmul_rn(__fmul_rn(static_cast<float>(sums[h][r] - excess), scale), __uint_as_float(bits[r]));
  }
}

// The same of bf16 sketches; queries [dims / 2][heads] pairs.
template <int kHeads>
__device__ void ScoreFloats(const float2* queries, int first, int heads, const uint4* block, int units,
                            float (&scores)[kHeads][kRowsPerThread]) {
#pragma unroll
  for (int h = 0; h < kHeads; ++h)
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) scores[h][r] = 0;
#pragma unroll 4
  for (int u = 0; u < units; ++u) {
    const uint4 unit = __ldg(block + u * kUnitVectors);
    const uint32_t rows[kRowsPerThread] = {unit.x, unit.y, unit.z, unit.w};
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      const float2 pair = queries[u * heads + first + h];
#pragma unroll
      for (int r = 0; r < kRowsPerThread; ++r) {
        scores[h][r] = __fmaf_rn(pair.x, __uint_as_float(rows[r] << 16), scores[h][r]);
        scores[h][r] = __fmaf_rn(pair.y, __uint_as_float(rows[r] & 0xffff0000u), scores[h][r]);
      }
    }
  }
}

// Grid (tasks, chunks). kHeads query heads meet a sketch at a time; more go over it again.
template <SketchType kType, int kHeads>
__global__ __launch_bounds__(kScoreThreads) void ScoreSketchesKernel(const float* queries, int64_t query_stride,
                                                                     TokenBatch batch, SelectCall call,
                                                                     LayerSketches sketches, ScoreTable table) {
  extern __shared__ __align__(16) std::byte shared[];
  __shared__ float warp_maxima[kScoreThreads / 32][kMaxGroup];
  const int64_t task = blockIdx.x, token = task / table.heads, head = task % table.heads;
  const int64_t visible = call.Visible(batch.rows[token]), start = blockIdx.y * kScoreChunk;
  if (start >= visible) return;
  const int dims = static_cast<int>(sketches.layout.dims), group = static_cast<int>(table.group);
  const int heads = (group + kHeads - 1) / kHeads * kHeads, units = static_cast<int>(sketches.layout.units());
  queries += token * query_stride + head * group * dims;
  IntQueries ints{};
  if constexpr (kType == SketchType::kBF16) {
    auto* numbers = reinterpret_cast<float*>(shared);
    for (int i = static_cast<int>(threadIdx.x); i < heads * dims; i += kScoreThreads) {
      const int h = i / dims, n = i % dims;
      numbers[((n / 2) * heads + h) * 2 + n % 2] = h < group ? queries[i] : 0.0f;
    }
  } else {
    ints = QuantiseQueries(queries, dims, group, heads, shared);
  }
  __syncthreads();

  const int64_t row = start + kRowsPerThread * static_cast<int64_t>(threadIdx.x);
  const bool active = row < visible;
  const std::byte* block = sketches.Block(batch.slots[token], head, row / kSketchBlock);
  const auto* units_at = reinterpret_cast<const uint4*>(block) + row % kSketchBlock / kRowsPerThread;
  for (int first = 0; first < heads; first += kHeads) {
    float scores[kHeads][kRowsPerThread];
    if (active) {
      if constexpr (kType == SketchType::kBF16) {
        ScoreFloats<kHeads>(reinterpret_cast<const float2*>(shared), first, heads, units_at, units, scores);
      } else {
        const auto* scales = reinterpret_cast<const uint2*>(block + sketches.layout.scales_offset());
        ScoreInts<kType, kHeads>(ints, first, heads, units_at, scales + row % kSketchBlock / kRowsPerThread, units,
                                 scores);
      }
    }
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      if (first + h >= group) break;
      float largest = -INFINITY;
      if (active) {
        *reinterpret_cast<float4*>(table.Scores(task, first + h) + row) =
            make_float4(scores[h][0], scores[h][1], scores[h][2], scores[h][3]);
#pragma unroll
        for (int r = 0; r < kRowsPerThread; ++r)
          if (row + r < visible) largest = fmaxf(largest, scores[h][r]);
      }
      largest = WarpMax(largest);
      if (Lane() == 0) warp_maxima[Warp()][first + h] = largest;
    }
  }
  __syncthreads();
  for (int g = static_cast<int>(threadIdx.x); g < group; g += kScoreThreads) {
    float largest = warp_maxima[0][g];
    for (int w = 1; w < kScoreThreads / 32; ++w) largest = fmaxf(largest, warp_maxima[w][g]);
    table.Maxima(task, g)[blockIdx.y] = largest;
  }
}

template <class F>
void DispatchScore(SketchType type, int64_t group, F&& f) {
  const auto with_type = [&](auto tag) {
    if (group == 1)
      f(ScoreSketchesKernel<decltype(tag)::value, 1>, 1);
    else
      f(ScoreSketchesKernel<decltype(tag)::value, 4>, 4);
  };
  if (type == SketchType::kBF16) return with_type(std::integral_constant<SketchType, SketchType::kBF16>());
  if (type == SketchType::kInt8) return with_type(std::integral_constant<SketchType, SketchType::kInt8>());
  with_type(std::integral_constant<SketchType, SketchType::kInt4>());
}

// ---- Keys of relative scores.

constexpr int kKeyBits = 31;
constexpr uint32_t kInfinityBits = 0x7f800000u;

// r ≤ 0, or not a number.
__device__ uint32_t KeyOf(float relative) {
  return relative != relative ? 0u : kInfinityBits + 1 - (__float_as_uint(relative) & 0x7fffffffu);
}
// The least key that passes r ≥ −alpha.
__device__ uint32_t LeastKey(float alpha) {
  return alpha >= 0 ? kInfinityBits + 1 - (__float_as_uint(alpha) & 0x7fffffffu) : 0xffffffffu;
}

__device__ int64_t ItemsOf(const SelectCall& call, int64_t current) {
  const int64_t visible = call.Visible(current);
  return call.page > 1 ? visible / call.page : visible;
}

// maxima [group] in shared memory; the block waits for them.
__device__ void LoadMaxima(const ScoreTable& table, int64_t task, int64_t items, float* maxima) {
  for (int g = Warp(); g < table.group; g += Warps()) {
    const float largest = HeadMaximum(table, task, g, items);
    if (Lane() == 0) maxima[g] = largest;
  }
  __syncthreads();
}
__device__ uint32_t MakeKey(const ScoreTable& table, int64_t task, int64_t item, const float* maxima) {
  float relative = __uint_as_float(0x7fc00000u);
  const float* scores = table.Scores(task, 0) + item;
  for (int g = 0; g < table.group; ++g) relative = fmaxf(relative, scores[g * table.stride] - maxima[g]);
  return KeyOf(relative);
}

// Grid (tasks, chunks).
__global__ __launch_bounds__(kScoreThreads) void MakeKeysKernel(TokenBatch batch, SelectCall call, ScoreTable table) {
  __shared__ float maxima[kMaxGroup];
  const int64_t task = blockIdx.x, items = ItemsOf(call, batch.rows[task / table.heads]);
  const int64_t start = blockIdx.y * kScoreChunk, end = min(start + kScoreChunk, items);
  if (start >= items) return;
  LoadMaxima(table, task, items, maxima);
  for (int64_t i = start + threadIdx.x; i < end; i += kScoreThreads)
    table.keys[task * table.stride + i] = MakeKey(table, task, i, maxima);
}

// Grid (tasks): passing[task] = rows that pass the threshold.
__global__ __launch_bounds__(1024) void CountPassingKernel(TokenBatch batch, SelectCall call, ScoreTable table) {
  __shared__ RadixScratch radix;
  const int64_t task = blockIdx.x, token = task / table.heads, items = ItemsOf(call, batch.rows[token]);
  const uint32_t least = LeastKey(call.rules[batch.slots[token]].alpha);
  uint32_t passing = 0;
  for (int64_t i = threadIdx.x; i < items; i += blockDim.x)
    passing += table.keys[task * table.stride + i] >= least ? 1 : 0;
  passing = BlockSum(passing, 0, radix).x;
  if (threadIdx.x == 0) table.passing[task] = static_cast<int32_t>(passing * call.page);
}

// ---- The choice.

// One (token, KV head).
struct Task {
  __device__ Task(const TokenBatch& batch, const SelectCall& call, const ScoreTable& table, int64_t index)
      : token(index / table.heads),
        head(index % table.heads),
        slot(batch.slots[token]),
        n(batch.rows[token] + 1),
        visible(call.Visible(n - 1)),
        items(ItemsOf(call, n - 1)),
        rule(call.RuleFor(slot, n - 1)),
        window(batch.Position(token) - rule.window),
        positions(call.retained ? call.retained.Positions(slot, head) : nullptr) {}

  __device__ int64_t PositionOf(int64_t row) const { return positions == nullptr ? row : positions[row]; }
  // Attended whatever its score.
  __device__ bool IsExtra(int64_t row) const {
    const int64_t position = PositionOf(row);
    return position < rule.sinks || position >= window;
  }

  int64_t token, head, slot;
  int64_t n;               // rows, the current one's included
  int64_t visible, items;  // those that have a score, as rows and as items
  SelectRule rule;
  int64_t window;  // extra from this position on
  const int32_t* positions;
};

// Rows that are chosen by threshold and cap (ChosenCount of kv/selection.h).
__device__ int64_t CountChosen(const Task& task, int64_t passing, int64_t page) {
  const int64_t least = task.rule.min_rows, most = max(task.rule.Capped(task.n), least);
  return WholePages(min(task.visible, min(max(passing, least), most)), page);
}

__device__ uint32_t CountExtras(const Task& task, RadixScratch& radix) {
  uint32_t extras = 0;
  for (int64_t row = threadIdx.x; row < task.n; row += blockDim.x) extras += task.IsExtra(row) ? 1 : 0;
  return BlockSum(extras, 0, radix).x;
}

// Writes rows [0, n) that attends(row) holds for, in ascending order; returns how many.
template <class Attends>
__device__ uint32_t WriteRows(const Attends& attends, int64_t n, int32_t* rows, int64_t capacity, RadixScratch& radix) {
  const int64_t share = (n + blockDim.x - 1) / blockDim.x * 32;  // of a warp
  const int64_t begin = Warp() * share, end = min(begin + share, n);
  uint32_t mine = 0;
  for (int64_t row = begin + Lane(); row < end; row += 32) mine += attends(row) ? 1 : 0;
  mine = __reduce_add_sync(kAllLanes, mine);
  const uint32_t total = BlockSum(Lane() == 0 ? mine : 0, 0, radix).x;
  uint32_t at = BlockExclusive(Lane() == 0 ? mine : 0, radix);
  at = __shfl_sync(kAllLanes, at, 0);
  if (total > capacity) __trap();  // a list that was reserved too small: a bug
  for (int64_t first = begin; first < end; first += 32) {
    const int64_t row = first + Lane();
    const bool writes = row < end && attends(row);
    const uint32_t writers = __ballot_sync(kAllLanes, writes);
    if (writes) rows[at + __popc(writers & ((1u << Lane()) - 1))] = static_cast<int32_t>(row);
    at += __popc(writers);
  }
  return total;
}

__device__ void AddTotals(SelectionTotals& totals, uint64_t chosen, uint64_t attended, uint64_t retained) {
  using Word = unsigned long long;
  static_assert(sizeof(Word) == sizeof(totals.chosen));
  atomicAdd(reinterpret_cast<Word*>(&totals.chosen), static_cast<Word>(chosen));
  atomicAdd(reinterpret_cast<Word*>(&totals.attended), static_cast<Word>(attended));
  atomicAdd(reinterpret_cast<Word*>(&totals.retained), static_cast<Word>(retained));
}

// Grid (tasks). keys_made: the keys lie in the table; otherwise they are made here, in shared memory.
__global__ __launch_bounds__(1024) void ChooseRowsKernel(TokenBatch batch, SelectCall call, ScoreTable table,
                                                         Selection selection, bool keys_made) {
  extern __shared__ __align__(16) std::byte shared[];
  __shared__ RadixScratch radix;
  __shared__ float maxima[kMaxGroup];
  const Task task(batch, call, table, blockIdx.x);
  const int64_t page = call.page;
  uint32_t* keys = keys_made ? table.keys + blockIdx.x * table.stride : reinterpret_cast<uint32_t*>(shared);
  if (!keys_made) LoadMaxima(table, blockIdx.x, task.items, maxima);

  const bool forced = task.rule.force_count > 0;
  const uint32_t least = LeastKey(task.rule.alpha);
  uint32_t passing = 0, candidates = 0;
  for (int64_t i = threadIdx.x; i < task.items; i += blockDim.x) {
    uint32_t key = keys_made ? keys[i] : MakeKey(table, blockIdx.x, i, maxima);
    passing += key >= least ? 1 : 0;
    const bool drops = forced && page == 1 && task.IsExtra(i);  // a forced count is filled up by others
    if (drops) key = 0;
    if (drops || !keys_made) keys[i] = key;
    candidates += key != 0 ? 1 : 0;
  }
  const uint2 sums = BlockSum(passing, candidates, radix);
  candidates = sums.y;

  int64_t count = 0;
  if (forced) {
    count = max(int64_t{0}, min(static_cast<int64_t>(task.rule.force_count), task.n) - CountExtras(task, radix));
  } else {
    int64_t rows = static_cast<int64_t>(sums.x) * page;
    if (call.mean_counts) {
      rows = 0;
      for (int64_t head = 0; head < table.heads; ++head) rows += table.passing[task.token * table.heads + head];
      rows /= table.heads;
    }
    count = CountChosen(task, rows, page);
  }
  count = min(count / page, static_cast<int64_t>(candidates));  // items, from here on

  const auto key_of = [&](int64_t i) { return keys[i]; };
  const auto age_of = [&](int64_t i) { return static_cast<uint32_t>(task.PositionOf(i)) + 1; };
  const RadixCut cut =
      CutLargest(key_of, age_of, task.items, static_cast<uint32_t>(count), candidates, kKeyBits, radix);
  const auto attends = [&](int64_t row) {
    const int64_t item = page == 1 ? row : row / page;
    return (item < task.items && cut.Takes(keys[item], age_of(item))) || task.IsExtra(row);
  };
  const uint32_t attended =
      WriteRows(attends, task.n, selection.Rows(task.token, task.head), selection.capacity, radix);
  if (threadIdx.x == 0) {
    selection.Count(task.token, task.head) = static_cast<int32_t>(attended);
    AddTotals(call.totals[task.slot], static_cast<uint64_t>(count * page), attended, static_cast<uint64_t>(task.n));
  }
}

}  // namespace

void ChooseRows(const CudaContext& context, cudaStream_t stream, const TokenBatch& batch, const SelectCall& call,
                const ScoreTable& table, const Selection& selection) {
  CHECK(call.page == 1 || !call.retained);
  const auto tasks = static_cast<unsigned>(batch.count * table.heads);
  const dim3 wide(tasks, static_cast<unsigned>(table.chunks()));
  // Few rows: many small blocks on a processor hide each other's barriers. 4,096 rows are 16 for each of 256 threads.
  const int threads = call.max_rows <= 4096 ? 256 : 1024;
  const size_t key_bytes = static_cast<size_t>(table.stride) * sizeof(uint32_t);
  constexpr size_t kFixedBytes = sizeof(RadixScratch) + kMaxGroup * sizeof(float) + 1024;
  const bool in_shared =
      !call.mean_counts && key_bytes + kFixedBytes <= static_cast<size_t>(context.max_shared_bytes());
  if (!in_shared) {
    MakeKeysKernel<<<wide, kScoreThreads, 0, stream>>>(batch, call, table);
    CUDA_CHECK_LAUNCH();
  } else if (key_bytes + kFixedBytes > size_t{48} << 10) {
    CUDA_CHECK(cudaFuncSetAttribute(ChooseRowsKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(key_bytes)));
  }
  if (call.mean_counts) {
    CountPassingKernel<<<tasks, threads, 0, stream>>>(batch, call, table);
    CUDA_CHECK_LAUNCH();
  }
  ChooseRowsKernel<<<tasks, threads, in_shared ? key_bytes : 0, stream>>>(batch, call, table, selection, !in_shared);
  CUDA_CHECK_LAUNCH();
}

void CudaBackend::Select(Queue queue, const ConstTensor& sketch_queries, const TokenBatch& batch,
                         const SelectCall& call, const LayerSketches& sketches, const Selection& selection) {
  const SketchLayout& layout = sketches.layout;
  CHECK(layout.dims % kSketchDimStep == 0 && layout.dims <= kMaxHeadDim && call.page == 1);
  CHECK(sketch_queries.type == DType::kF32 && sketch_queries.cols % (layout.kv_heads * layout.dims) == 0 &&
        sketch_queries.rows >= batch.count);
  CHECK((reinterpret_cast<uintptr_t>(sketches.data) | sketches.head_stride | sketches.slot_stride) % 16 == 0);
  const int64_t group = sketch_queries.cols / layout.dims / layout.kv_heads;
  const cudaStream_t stream = context_->stream(queue);
  const auto score = [&](int64_t first, const TokenBatch& part, const ScoreTable& table) {
    const dim3 grid(static_cast<unsigned>(part.count * layout.kv_heads), static_cast<unsigned>(table.chunks()));
    DispatchScore(layout.type, group, [&](auto kernel, int64_t together) {
      const size_t bytes = QueryBytes(layout, (group + together - 1) / together * together);
      CHECK(bytes <= size_t{40} << 10);
      kernel<<<grid, kScoreThreads, bytes, stream>>>(sketch_queries.as<float>(first), sketch_queries.stride, part, call,
                                                     sketches, table);
      CUDA_CHECK_LAUNCH();
    });
  };
  SelectBy(*context_, stream, batch, call, layout.kv_heads, group, selection, score);
}

}  // namespace infinigen
