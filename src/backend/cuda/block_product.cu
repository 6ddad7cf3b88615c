// Products with block-quantised weights (block_formats.cuh). Few rows of activations, as in decode: the rows are
// quantised to 8 bits in groups of 32, and a warp computes an output by integer products of four numbers, so that every
// weight byte is read once for up to eight rows, through shared memory; one row has a kernel of its own
// (block_vector.cuh). Many rows, as in prefill: parts of the matrix are expanded to the plain type, and cuBLASLt
// multiplies by them.
#include <algorithm>

#include "backend/cuda/block_activations.cuh"
#include "backend/cuda/block_formats.cuh"
#include "backend/cuda/block_outputs.cuh"
#include "backend/cuda/block_product.h"
#include "backend/cuda/block_vector.cuh"
#include "backend/cuda/context.h"
#include "backend/cuda/numbers.cuh"

namespace infinigen {
namespace {

constexpr int kBlockWarps = 8;
constexpr int kBlockThreads = kBlockWarps * 32;
constexpr int kExpandThreads = 128;
// Longer rows of activations do not leave enough shared memory for weights on devices with 100 KB of it.
constexpr int64_t kMostVectorCols = 32768;

template <class In>
__global__ void QuantiseRows(const In* x, int64_t stride, QuantisedRows out) {
  const int row = static_cast<int>(blockIdx.y), part = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const In* from = x + row * stride;
  float numbers[8];
  LoadActivations(from, part, part < out.cols / 8, reinterpret_cast<uintptr_t>(from) % 16 == 0, numbers);
  QuantiseEight(numbers, row, part, out);
}

// The weights of a warp's outputs, as a sequence of pieces of kPieceUnits units; the pieces of one row follow each
// other. While a piece is computed from shared memory, the next one is on its way there.
template <class Format>
class WeightPieces {
 public:
  static constexpr int kPieceUnits = 4096 / Format::Unit::kNumbers;
  static constexpr int kPieceBytes = kPieceUnits / Format::kUnits * Format::kBytes;
  // A piece between multiples of 16 bytes, and 16 bytes before it.
  static constexpr int kStageBytes = (kPieceBytes + 15 + 15) / 16 * 16 + 16;

  // stages: shared memory [2][kStageBytes] of this warp.
  __device__ WeightPieces(const Outputs& outputs, int cols, std::byte* stages)
      : outputs_(outputs),
        stages_(stages),
        units_(cols / Format::Unit::kNumbers),
        per_row_((units_ + kPieceUnits - 1) / kPieceUnits) {}

  __device__ const Outputs& outputs() const { return outputs_; }
  __device__ bool done() const { return outputs_.done(); }
  __device__ bool last_of_row() const { return piece_ + 1 == per_row_; }
  __device__ int first_unit() const { return piece_ * kPieceUnits; }
  __device__ int units() const { return min(kPieceUnits, units_ - first_unit()); }
  // Where the piece is in shared memory: as far from a multiple of 16 as in global memory.
  __device__ const uint8_t* data() const {
    return reinterpret_cast<const uint8_t*>(stages_ + stage_ * kStageBytes + 16) + Misalignment();
  }

  // Starts the copy of this piece to shared memory, with the bytes up to the next multiples of 16 around it.
  __device__ void Start() const {
    if (!done()) {
      const int before = Misalignment(), bytes = before + units() / Format::kUnits * Format::kBytes;
      const uint8_t* from = outputs_.weights() + piece_ * kPieceBytes - before;
      const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(stages_ + stage_ * kStageBytes + 16));
      for (int at = static_cast<int>(threadIdx.x % 32) * 16; at < bytes; at += 512)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + static_cast<uint32_t>(at)), "l"(from + at));
    }
    asm volatile("cp.async.commit_group;");
  }

  __device__ void Next() {
    stage_ ^= 1;
    if (++piece_ < per_row_) return;
    piece_ = 0;
    outputs_.Next();
  }

 private:
  __device__ int Misalignment() const {
    return static_cast<int>(reinterpret_cast<uintptr_t>(outputs_.weights() + piece_ * kPieceBytes) % 16);
  }

  Outputs outputs_;
  std::byte* stages_;
  int units_, per_row_;
  int piece_ = 0, stage_ = 0;
};

template <class Format, int kRows>
__device__ void ComputePieces(WeightPieces<Format>& pieces, const QuantisedRows& x, int64_t first_row) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  float sums[kRows] = {};
  while (!pieces.done()) {
    WeightPieces<Format> next = pieces;
    next.Next();
    next.Start();
    asm volatile("cp.async.wait_group 1;");
    __syncwarp();
    const uint8_t* blocks = pieces.data();
#pragma unroll 4
    for (int index = lane; index < pieces.units(); index += 32) {
      typename Format::Unit unit;
      const int block = index / Format::kUnits;
      Format::Read(blocks + block * Format::kBytes, index % Format::kUnits, unit);
      AddUnit<Format>(unit, (pieces.first_unit() + block * Format::kUnits) * Format::Unit::kNumbers, x, sums);
    }
    __syncwarp();  // before the next copy into this stage
    if (pieces.last_of_row()) {
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        const float sum = WarpSum(sums[row]);
        if (lane == 0) StoreOutput(pieces.outputs().projection(), first_row + row, pieces.outputs().n(), sum);
        sums[row] = 0;
      }
    }
    pieces = next;
  }
}

template <class Format>
constexpr size_t kStagesBytes = size_t{kBlockWarps} * 2 * WeightPieces<Format>::kStageBytes;

// Outputs of kRows rows, whose activations are quantised already.
template <class Format, int kRows>
__global__ void __launch_bounds__(kBlockThreads)
    BlockProduct(const __grid_constant__ BlockCall call, QuantisedRows x, int64_t first_row) {
  extern __shared__ __align__(16) std::byte stages[];
  const int warp = static_cast<int>(threadIdx.x / 32);
  const Outputs outputs(call, static_cast<int>(blockIdx.x) * kBlockWarps + warp,
                        static_cast<int>(gridDim.x) * kBlockWarps);
  WeightPieces<Format> pieces(outputs, x.cols, stages + warp * 2 * WeightPieces<Format>::kStageBytes);
  pieces.Start();
  ComputePieces<Format, kRows>(pieces, x.From(static_cast<int>(first_row)), first_row);
}

// A warp expands 32 units of a row, in shared memory first, so that it writes long runs of bytes. `out` has rows that
// are aligned to 16 bytes.
template <class Format, class Out>
__global__ void ExpandRows(const uint8_t* weight, int64_t row_bytes, int units, const int32_t* ids, Out* out,
                           int64_t stride, int64_t rows) {
  constexpr int kNumbers = Format::Unit::kNumbers;
  __shared__ __align__(16) Out numbers[kExpandThreads / 32][32 * kNumbers];
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int parts = (units + 31) / 32;  // of a row
  const int64_t part = int64_t{blockIdx.x} * (kExpandThreads / 32) + warp, row = part / parts;
  if (row >= rows) return;
  const int first = static_cast<int>(part % parts) * 32, index = first + lane, count = min(32, units - first);
  if (lane < count) {
    typename Format::Unit unit;
    const int block = index / Format::kUnits;
    Format::Read(weight + (ids == nullptr ? row : ids[row]) * row_bytes + int64_t{block} * Format::kBytes,
                 index % Format::kUnits, unit);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      Out* to = &numbers[warp][(block * Format::kUnits - first) * kNumbers + unit.at[half]];
#pragma unroll
      for (int i = 0; i < kNumbers / 2; i += 8) {
        alignas(16) Out eight[8];
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          const uint32_t byte = unit.codes[half][(i + j) / 4] >> (j % 4 * 8) & 255u;
          const int code = Format::kUnsigned ? static_cast<int>(byte) : static_cast<int8_t>(byte);
          float number = unit.scale[half] * static_cast<float>(code - Format::kCentre);
          if constexpr (Format::kOffsets) number += unit.offset[half];
          eight[j] = FromFloat<Out>(number);
        }
#pragma unroll
        for (size_t word = 0; word < sizeof(eight) / 16; ++word)
          reinterpret_cast<uint4*>(to + i)[word] = reinterpret_cast<const uint4*>(eight)[word];
      }
    }
  }
  __syncwarp();
  auto* to = reinterpret_cast<uint4*>(out + row * stride + int64_t{first} * kNumbers);
  const auto* from = reinterpret_cast<const uint4*>(numbers[warp]);
  for (int i = lane; i < count * kNumbers * static_cast<int>(sizeof(Out)) / 16; i += 32) to[i] = from[i];
}

// As many blocks as the device holds at once, or as there are outputs for.
template <auto kernel, class... Arguments>
void LaunchOutputs(cudaStream_t stream, int sms, const BlockCall& call, size_t shared, Arguments... arguments) {
  thread_local int resident = 0;  // blocks of a multiprocessor, asked at the first launch
  if (resident == 0) {
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)));
    CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, kBlockThreads, shared));
  }
  const int blocks = std::min((call.outputs + kBlockWarps - 1) / kBlockWarps, resident * sms);
  kernel<<<static_cast<unsigned>(blocks), kBlockThreads, shared, stream>>>(call, arguments...);
  CUDA_CHECK_LAUNCH();
}

template <class Format>
void MultiplyRows(cudaStream_t stream, int sms, const BlockCall& call, const QuantisedRows& x, int64_t rows) {
  for (int64_t row = 0; row < rows;) {
    const auto launch = [&](auto count) {
      LaunchOutputs<BlockProduct<Format, decltype(count)::value>>(stream, sms, call, kStagesBytes<Format>, x, row);
      row += decltype(count)::value;
    };
    const int64_t left = rows - row;
    if (left >= 8)
      launch(std::integral_constant<int, 8>{});
    else if (left >= 4)
      launch(std::integral_constant<int, 4>{});
    else if (left >= 2)
      launch(std::integral_constant<int, 2>{});
    else
      launch(std::integral_constant<int, 1>{});
  }
}

// One block on each multiprocessor. The kernel may start while its predecessor in the stream runs, if it was compiled
// for a device that can wait for the rest inside the kernel.
template <class Format, class In, class Shape>
void LaunchVector(cudaStream_t stream, const CudaContext& context, const BlockCall& call, const In* x, int cols) {
  constexpr auto kernel = BlockVector<Format, In, Shape>;
  thread_local int shared_of_sm = 0;  // asked at the first launch
  thread_local bool waits = false;
  if (shared_of_sm == 0) {
    int device = 0;
    CUDA_CHECK(cudaGetDevice(&device));
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, context.max_shared_bytes()));
    CUDA_CHECK(
        cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared));
    cudaFuncAttributes compiled;
    CUDA_CHECK(cudaFuncGetAttributes(&compiled, kernel));
    waits = compiled.ptxVersion >= 90;
    CUDA_CHECK(cudaDeviceGetAttribute(&shared_of_sm, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device));
  }
  const VectorMemory memory = VectorMemoryFor<Format, Shape>(cols, shared_of_sm, context.max_shared_bytes());
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>(std::min(call.outputs, context.sms()));
  config.blockDim = Shape::kWarps * 32;
  config.dynamicSmemBytes = memory.bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = waits ? 1 : 0;
  CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, call, x, cols, memory.stages));
}

}  // namespace

void ExpandBlocks(cudaStream_t stream, const WeightView& weight, const int32_t* ids, const Tensor& out) {
  CHECK(!IsPlain(weight.type) && weight.cols == out.cols);
  CheckAlignment(weight);
  DispatchBlocks(weight.type, [&](auto format) {
    DispatchDevice(out.type, [&](auto number) {
      using Format = decltype(format);
      using Out = decltype(number);
      constexpr int kWarps = kExpandThreads / 32;
      const int64_t units = weight.cols / Format::Unit::kNumbers;
      const int64_t blocks = (out.rows * ((units + 31) / 32) + kWarps - 1) / kWarps;
      CHECK(blocks <= INT32_MAX);
      ExpandRows<Format, Out><<<static_cast<unsigned>(blocks), kExpandThreads, 0, stream>>>(
          reinterpret_cast<const uint8_t*>(weight.data), weight.row_bytes, static_cast<int>(units), ids,
          reinterpret_cast<Out*>(out.data), out.stride, out.rows);
      CUDA_CHECK_LAUNCH();
    });
  });
}

size_t QuantisedBytes(int64_t rows, int64_t cols) {
  return static_cast<size_t>(QuantisedRows::Bytes(rows, static_cast<int>(cols)));
}

void MultiplyBlocks(CudaContext& context, cudaStream_t stream, const ConstTensor& x,
                    std::span<const Projection> projections, std::byte* scratch) {
  const QuantisedRows rows = QuantisedRows::In(scratch, x.rows, static_cast<int>(x.cols));
  const bool vector = x.rows == 1 && x.cols <= kMostVectorCols;
  if (!vector) {
    constexpr int64_t kEights = int64_t{8} * kBlockThreads;
    const dim3 grid(static_cast<unsigned>((x.cols + kEights - 1) / kEights), static_cast<unsigned>(x.rows));
    DispatchDevice(x.type, [&](auto number) {
      using In = decltype(number);
      QuantiseRows<In><<<grid, kBlockThreads, 0, stream>>>(reinterpret_cast<const In*>(x.data), x.stride, rows);
      CUDA_CHECK_LAUNCH();
    });
  }
  for (size_t i = 0; i < projections.size();) {
    // Neighbours of the same type in one launch.
    const WeightType type = projections[i].weight.type;
    BlockCall call{.projections = {}, .count = 0, .outputs = 0};
    for (; i < projections.size() && projections[i].weight.type == type && call.count < kMostProjections; ++i) {
      const Projection& p = projections[i];
      CHECK(p.weight.cols == x.cols && p.out.rows == x.rows && p.out.cols == p.weight.rows);
      CheckAlignment(p.weight);
      call.projections[call.count++] = {.weight = reinterpret_cast<const uint8_t*>(p.weight.data),
                                        .row_bytes = p.weight.row_bytes,
                                        .bias = p.bias ? p.bias.as<float>() : nullptr,
                                        .out = p.out.data,
                                        .out_stride = p.out.stride,
                                        .out_type = p.out.type,
                                        .epilogue = p.epilogue,
                                        .outputs = static_cast<int>(p.out.cols)};
      call.outputs += static_cast<int>(p.out.cols);
    }
    DispatchBlocks(type, [&](auto format) {
      using Format = decltype(format);
      if (!vector) return MultiplyRows<Format>(stream, context.sms(), call, rows, x.rows);
      DispatchDevice(x.type, [&](auto number) {
        using In = decltype(number);
        LaunchVector<Format, In, VectorShape>(stream, context, call, reinterpret_cast<const In*>(x.data),
                                              static_cast<int>(x.cols));
      });
    });
  }
}

}  // namespace infinigen
