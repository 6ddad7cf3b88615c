// AppendSketches, AppendValueSketches and SketchQueries: small products with a basis, and the quantisation of sketches
// into their blocks. QueryLevels: products of queries with the mean key.
//
// The first three compute x · matrix, with matrix [head_dim][dims] of one KV head. An item is a row of x: a token's key
// or value, or one of the `group` queries of a token that share the KV head. A block takes up to 32 items of one KV
// head and loads slabs of the matrix into shared memory. A warp owns four items (or one, if there are few), a lane two
// columns, so every number of the matrix is used for four items. Each output is one chain of fused multiply-adds over
// head_dim, ascending: a sketch depends on its own row and the basis only, however many are computed together.
#include <cuda_pipeline.h>
#include <cuda_runtime.h>

#include <algorithm>

#include "backend/cuda/context.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/select.cuh"

namespace infinigen {
namespace {

constexpr int kSketchThreads = 256;
constexpr int kItemsPerWarp = 4;
constexpr int kMostItems = kSketchThreads / 32 * kItemsPerWarp;
constexpr int kColumns = 64;    // columns of the matrix per pass: two per lane
constexpr int kSlabRows = 128;  // rows of the matrix per slab; 32 KiB at most

// How the numbers of keys, or of values, lie in a block of sketches (kv/index_view.h).
struct NumbersLayout {
  SketchType type = SketchType::kBF16;
  int units = 0;
  int group = 0, groups = 0;           // numbers that share a scale; groups of a row
  size_t units_at = 0, scales_at = 0;  // offsets in the block

  static NumbersLayout OfKeys(const SketchLayout& layout) {
    return {layout.type,
            static_cast<int>(layout.units()),
            static_cast<int>(layout.group_dims()),
            static_cast<int>(layout.groups()),
            0,
            layout.scales_offset()};
  }
  static NumbersLayout OfValues(const SketchLayout& layout) {
    return {SketchType::kInt4,
            static_cast<int>(layout.value_units()),
            static_cast<int>(layout.value_dims),
            1,
            layout.values_offset(),
            layout.value_scales_offset()};
  }
  __device__ int largest() const { return type == SketchType::kInt8 ? 127 : SketchLayout::kLargestInt4; }
};

struct ProjectCall {
  Numbers x;  // [tokens][kv_heads · group · head_dim]
  TokenBatch batch;
  SketchBasis basis;
  const float* matrices;  // basis.query or basis.key
  int64_t group = 1;
  int items = kMostItems;  // items per block
  // For queries:
  float* out = nullptr;  // [tokens][kv_heads · group · dims]; null: keys or values
  int64_t out_stride = 0;
  float scale = 1.0f;
  // For keys and values:
  LayerSketches sketches;
  NumbersLayout layout;
};

// Layout of shared memory.
struct ProjectShared {
  __device__ ProjectShared(float* memory, int items, int64_t head_dim, int64_t dims, int groups)
      : x(memory), numbers(x + items * head_dim), scales(numbers + items * dims), slab(scales + kMostItems * groups) {}
  static size_t Bytes(int items, int64_t head_dim, int64_t dims, int groups) {
    const int64_t slab = std::min<int64_t>(head_dim, kSlabRows) * std::min<int64_t>(dims, kColumns);
    return static_cast<size_t>(items * (head_dim + dims) + kMostItems * groups + slab) * sizeof(float);
  }
  float* x;        // [items][head_dim]
  float* numbers;  // [items][dims]
  float* scales;   // [items][groups] inverse scales of integer sketches
  float* slab;     // up to [kSlabRows][kColumns]
};

// Adds x · slab to the sums of a warp's items. Reads kStep numbers of x at a time: 4 if rows of x are aligned.
template <int kStep, int kItems>
__device__ void AddSlab(const float* const (&x)[kItems], const float* slab, int slab_width, int width, int rows,
                        float (&sums)[kItems][2]) {
#pragma unroll 2
  for (int i = 0; i < rows; i += kStep) {
    float factors[kItems][kStep];
#pragma unroll
    for (int k = 0; k < kItems; ++k) {
      if constexpr (kStep == 4) {
        const float4 four = *reinterpret_cast<const float4*>(x[k] + i);
        factors[k][0] = four.x, factors[k][1] = four.y, factors[k][2] = four.z, factors[k][3] = four.w;
      } else {
        factors[k][0] = x[k][i];
      }
    }
#pragma unroll
    for (int j = 0; j < kStep; ++j) {
      const float* row = slab + (i + j) * slab_width;
      const float a = Lane() < width ? row[Lane()] : 0.0f, b = Lane() + 32 < width ? row[Lane() + 32] : 0.0f;
#pragma unroll
      for (int k = 0; k < kItems; ++k) {
        sums[k][0] = __fmaf_rn(factors[k][j], a, sums[k][0]);
        sums[k][1] = __fmaf_rn(factors[k][j], b, sums[k][1]);
      }
    }
  }
}

// Starts copying rows [first, first + rows) and columns [column, column + width) of the matrix. The caller waits.
__device__ void LoadSlab(float* slab, const float* matrix, int dims, int first, int rows, int column, int width) {
  const int slab_width = min(kColumns, dims);
  const float* from = matrix + first * dims + column;
  const auto aligned = (reinterpret_cast<uintptr_t>(slab) | reinterpret_cast<uintptr_t>(from)) % 16 == 0;
  if (width % 4 == 0 && dims % 4 == 0 && aligned) {
    const auto quads = static_cast<uint32_t>(width / 4), count = static_cast<uint32_t>(rows) * quads;
    for (uint32_t i = threadIdx.x; i < count; i += kSketchThreads) {
      const auto row = static_cast<int>(i / quads), at = static_cast<int>(i % quads * 4);
      __pipeline_memcpy_async(slab + row * slab_width + at, from + row * dims + at, 16);
    }
  } else {
    for (int i = static_cast<int>(threadIdx.x); i < rows * width; i += kSketchThreads)
      slab[i / width * slab_width + i % width] = __ldg(from + i / width * dims + i % width);
  }
  __pipeline_commit();
}

// numbers = x · matrix for items [begin, end) of the block, which share the matrix, and columns [column, last); kItems
// per warp. A warp without an item repeats the last one. started: the copy of the first slab is in flight.
template <int kItems>
__device__ void ProjectItems(const ProjectShared& s, const float* matrix, int head_dim, int dims, int column, int last,
                             int begin, int end, bool started) {
  const auto item_of = [&](int k) { return begin + Warp() + k * (kSketchThreads / 32); };
  for (; column < last; column += kColumns) {
    const int width = min(kColumns, dims - column), slab_width = min(kColumns, dims);
    float sums[kItems][2] = {};
    for (int first = 0; first < head_dim; first += kSlabRows) {
      const int rows = min(kSlabRows, head_dim - first);
      if (!started) {
        __syncthreads();  // the previous slab has been read
        LoadSlab(s.slab, matrix, dims, first, rows, column, width);
      }
      started = false;
      __pipeline_wait_prior(0);
      __syncthreads();  // x has arrived too
      const float* x[kItems];
#pragma unroll
      for (int k = 0; k < kItems; ++k) x[k] = s.x + min(item_of(k), end - 1) * head_dim + first;
      if (head_dim % 4 == 0)
        AddSlab<4>(x, s.slab, slab_width, width, rows, sums);
      else
        AddSlab<1>(x, s.slab, slab_width, width, rows, sums);
    }
#pragma unroll
    for (int k = 0; k < kItems; ++k) {
      const int item = item_of(k);
      if (item >= end) break;
      if (Lane() < width) s.numbers[item * dims + column + Lane()] = sums[k][0];
      if (Lane() + 32 < width) s.numbers[item * dims + column + Lane() + 32] = sums[k][1];
    }
  }
}

__device__ float Finite(float x) { return fabsf(x) <= 3.402823466e38f ? x : 0.0f; }

// The smallest bf16 ≥ `value` ≥ 0, as bits; `value` rounded to nearest if that overflows.
__device__ uint16_t RoundUpToBF16(float value) {
  const uint32_t up = (__float_as_uint(value) + 0xffffu) & 0xffff0000u;
  return up < 0x7f800000u ? static_cast<uint16_t>(up >> 16) : ToBF16(value).bits;
}

// Quantises sketches as kv/index.h defines: first the scales of every item, then unit by unit. Adjacent items are
// usually adjacent rows, so consecutive threads take consecutive items.
__device__ void StoreSketches(const ProjectCall& call, const ProjectShared& s, int64_t head, int64_t first_token,
                              int items) {
  const NumbersLayout& layout = call.layout;
  const int dims = static_cast<int>(call.basis.dims), groups = layout.groups;
  const auto block_of = [&](int item, int64_t row) {
    return call.sketches.Block(call.batch.slots[first_token + item], head, row / kSketchBlock);
  };
  const float most = static_cast<float>(layout.largest());
  if (groups > 0) {
    for (int i = Warp(); i < items * groups; i += kSketchThreads / 32) {
      const int item = i / groups, group = i % groups, end = min((group + 1) * layout.group, dims);
      float largest = 0;
      for (int n = group * layout.group + Lane(); n < end; n += 32)
        largest = fmaxf(largest, fabsf(Finite(s.numbers[item * dims + n])));
      const uint16_t scale = RoundUpToBF16(__fdiv_rn(WarpMax(largest), most));
      if (Lane() != 0) continue;
      const float inverse = __fdiv_rn(1.0f, ToFloat(BF16{scale}));
      s.scales[i] = fabsf(inverse) <= 3.402823466e38f ? inverse : 0.0f;
      const int64_t row = call.batch.OwnRow(first_token + item, head);
      reinterpret_cast<uint16_t*>(block_of(item, row) + layout.scales_at)[group * kSketchBlock + row % kSketchBlock] =
          scale;
    }
    __syncthreads();
  }
  for (int i = static_cast<int>(threadIdx.x); i < items * layout.units; i += kSketchThreads) {
    const int item = i % items, unit = i / items;
    const float* numbers = s.numbers + item * dims;
    const auto value = [&](int n) {
      const float rounded = rintf(__fmul_rn(Finite(numbers[n]), s.scales[item * groups + n / layout.group]));
      return static_cast<uint32_t>(static_cast<int32_t>(fminf(fmaxf(rounded, -most), most)) + layout.largest() + 1);
    };
    uint32_t bits = 0;
    if (layout.type == SketchType::kBF16) {
      bits = ToBF16(Finite(numbers[2 * unit])).bits | static_cast<uint32_t>(ToBF16(Finite(numbers[2 * unit + 1])).bits)
                                                          << 16;
    } else if (layout.type == SketchType::kInt8) {
      for (int b = 0; b < 4; ++b) bits |= value(4 * unit + b) << (8 * b);
    } else {
      for (int b = 0; b < 4; ++b) bits |= (value(8 * unit + b) | value(8 * unit + 4 + b) << 4) << (8 * b);
    }
    const int64_t row = call.batch.OwnRow(first_token + item, head);
    reinterpret_cast<uint32_t*>(block_of(item, row) + layout.units_at)[unit * kSketchBlock + row % kSketchBlock] = bits;
  }
}

// Grid (parts of the items, kv_heads, parts of the columns: one, or of queries one for every kColumns).
__global__ __launch_bounds__(kSketchThreads) void ProjectKernel(ProjectCall call) {
  extern __shared__ __align__(16) float memory[];
  const int64_t head = blockIdx.y, group = call.group;
  const int d = static_cast<int>(call.basis.head_dim), dims = static_cast<int>(call.basis.dims);
  const ProjectShared s(memory, call.items, d, dims, call.layout.groups);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * call.items;
  const int items = static_cast<int>(min(static_cast<int64_t>(call.items), call.batch.count * group - first));
  const auto token_of = [&](int item) { return (first + item) / group; };
  const auto slot_of = [&](int item) { return call.basis.per_slot ? call.batch.slots[token_of(item)] : 0; };
  const auto matrix_of = [&](int64_t slot) { return call.matrices + (slot * call.basis.kv_heads + head) * d * dims; };
  const int column = static_cast<int>(blockIdx.z) * kColumns,
            last = gridDim.z == 1 ? dims : min(dims, column + kColumns);
  LoadSlab(s.slab, matrix_of(slot_of(0)), dims, 0, min(d, kSlabRows), column, min(last - column, kColumns));
  for (int i = static_cast<int>(threadIdx.x); i < items * d; i += kSketchThreads) {
    const int item = i / d;
    s.x[i] = call.x(token_of(item), (head * group + (first + item) % group) * d + i % d);
  }
  // Consecutive items that share a matrix: all of them, unless every sequence has its own.
  for (int begin = 0, end = 0; begin < items; begin = end) {
    const int32_t slot = slot_of(begin);
    for (end = begin + 1; end < items; ++end)
      if (slot_of(end) != slot) break;
    if (call.items <= kSketchThreads / 32)
      ProjectItems<1>(s, matrix_of(slot), d, dims, column, last, begin, end, begin == 0);
    else
      ProjectItems<kItemsPerWarp>(s, matrix_of(slot), d, dims, column, last, begin, end, begin == 0);
  }
  __syncthreads();
  if (call.out != nullptr) {
    for (int i = static_cast<int>(threadIdx.x); i < items * (last - column); i += kSketchThreads) {
      const int item = i / (last - column), n = column + i % (last - column);
      call.out[token_of(item) * call.out_stride + (head * group + (first + item) % group) * dims + n] =
          __fmul_rn(s.numbers[item * dims + n], call.scale);
    }
    return;
  }
  for (int i = static_cast<int>(threadIdx.x); i < items * dims; i += kSketchThreads)
    s.numbers[i] = __fsub_rn(s.numbers[i], call.basis.KeyOffset(call.batch.slots[first + i / dims], head)[i % dims]);
  __syncthreads();
  StoreSketches(call, s, head, first, items);
}

void LaunchProject(const CudaContext& context, cudaStream_t stream, ProjectCall call) {
  const int64_t all = call.batch.count * call.group;
  if (all == 0) return;
  CHECK(call.basis.head_dim <= kMaxHeadDim && call.basis.dims <= kMaxHeadDim);
  // Few items: one per warp, so that more multiprocessors share the work; if every sequence has its own matrix, one
  // sequence per block.
  if (all <= 64) call.items = call.basis.per_slot ? static_cast<int>(std::min<int64_t>(call.group, 8)) : 8;
  const auto bytes_of = [&] {
    return ProjectShared::Bytes(call.items, call.basis.head_dim, call.basis.dims, call.layout.groups);
  };
  while (call.items > 1 && bytes_of() > static_cast<size_t>(context.max_shared_bytes())) call.items /= 2;
  const size_t bytes = bytes_of();
  AllowShared(context, ProjectKernel, bytes);
  const dim3 grid(static_cast<unsigned>((all + call.items - 1) / call.items),
                  static_cast<unsigned>(call.basis.kv_heads),
                  call.out == nullptr ? 1u : static_cast<unsigned>((call.basis.dims + kColumns - 1) / kColumns));
  ProjectKernel<<<grid, kSketchThreads, bytes, stream>>>(call);
  CUDA_CHECK_LAUNCH();
}

// One warp per (token, query head).
__global__ __launch_bounds__(kSketchThreads) void QueryLevelsKernel(Numbers queries, int64_t tokens, int group,
                                                                    float scale, TailView tail) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * (kSketchThreads / 32) + Warp();
  if (index >= tokens * tail.heads) return;
  const int64_t token = index / tail.heads, head = index % tail.heads;
  const int d = static_cast<int>(tail.basis.head_dim);
  const float* mean = tail.basis.KeyMean(head / group);
  float sum = 0;
  for (int i = Lane(); i < d; i += 32) sum = __fmaf_rn(queries(token, head * d + i), mean[i], sum);
  sum = WarpSum(sum);
  if (Lane() == 0) tail.Levels(token)[head] = __fmul_rn(sum, scale);
}

}  // namespace

void CudaBackend::AppendSketches(Queue queue, const TokenBatch& batch, const ConstTensor& keys,
                                 const SketchBasis& basis, const LayerSketches& sketches) {
  const ZoneClock::Scope timed(context_->zones, CudaZone::kSelection, context_->stream(queue));
  const SketchLayout& layout = sketches.layout;
  CHECK(layout.dims % kSketchDimStep == 0 && layout.dims == basis.dims && layout.kv_heads == basis.kv_heads);
  CHECK(keys.cols == basis.kv_heads * basis.head_dim && keys.rows >= batch.count);
  LaunchProject(*context_, context_->stream(queue),
                {.x = Numbers(keys),
                 .batch = batch,
                 .basis = basis,
                 .matrices = basis.key,
                 .sketches = sketches,
                 .layout = NumbersLayout::OfKeys(layout)});
}

void CudaBackend::AppendValueSketches(Queue queue, const TokenBatch& batch, const ConstTensor& values,
                                      const TailBasis& basis, const LayerSketches& sketches) {
  const ZoneClock::Scope timed(context_->zones, CudaZone::kSelection, context_->stream(queue));
  const SketchLayout& layout = sketches.layout;
  CHECK(layout.has_values() && layout.value_dims % SketchLayout::kInt4PerUnit == 0);
  CHECK(layout.value_dims == basis.value_dims && layout.kv_heads == basis.kv_heads);
  CHECK(values.cols == basis.kv_heads * basis.head_dim && values.rows >= batch.count);
  const SketchBasis of_values{.kv_heads = basis.kv_heads,
                              .head_dim = basis.head_dim,
                              .dims = basis.value_dims,
                              .key = basis.value,
                              .key_offset = basis.value_offset};
  LaunchProject(*context_, context_->stream(queue),
                {.x = Numbers(values),
                 .batch = batch,
                 .basis = of_values,
                 .matrices = basis.value,
                 .sketches = sketches,
                 .layout = NumbersLayout::OfValues(layout)});
}

void CudaBackend::SketchQueries(Queue queue, const ConstTensor& queries, const TokenBatch& batch,
                                const AttentionShape& shape, const SketchBasis& basis, const Tensor& out) {
  const ZoneClock::Scope timed(context_->zones, CudaZone::kSelection, context_->stream(queue));
  CHECK(shape.heads % basis.kv_heads == 0 && queries.cols == shape.heads * basis.head_dim);
  CHECK(out.type == DType::kF32 && out.cols == shape.heads * basis.dims);
  CHECK(queries.rows >= batch.count && out.rows >= batch.count);
  LaunchProject(*context_, context_->stream(queue),
                {.x = Numbers(queries),
                 .batch = batch,
                 .basis = basis,
                 .matrices = basis.query,
                 .group = shape.heads / basis.kv_heads,
                 .out = out.as<float>(),
                 .out_stride = out.stride,
                 .scale = shape.scale,
                 .sketches = {},
                 .layout = {}});
}

void CudaBackend::QueryLevels(Queue queue, const ConstTensor& queries, const TokenBatch& batch,
                              const AttentionShape& shape, const TailView& tail) {
  const ZoneClock::Scope timed(context_->zones, CudaZone::kSelection, context_->stream(queue));
  CHECK(shape.heads == tail.heads && shape.heads % tail.basis.kv_heads == 0);
  CHECK(queries.cols == shape.heads * tail.basis.head_dim && queries.rows >= batch.count);
  if (batch.count == 0) return;
  constexpr int64_t kWarps = kSketchThreads / 32;
  const auto blocks = static_cast<unsigned>((batch.count * shape.heads + kWarps - 1) / kWarps);
  QueryLevelsKernel<<<blocks, kSketchThreads, 0, context_->stream(queue)>>>(
      Numbers(queries), batch.count, static_cast<int>(shape.heads / tail.basis.kv_heads), shape.scale, tail);
  CUDA_CHECK_LAUNCH();
}

}  // namespace infinigen
