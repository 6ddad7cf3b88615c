// Products with block-quantised weights (block_formats.cuh). Few rows of activations, as in decode: the rows are
// quantised to 8 bits in groups of 32, and a warp computes an output by integer products of four numbers, so that every
// weight byte is read once for up to eight rows, through shared memory. Many rows, as in prefill: parts of the matrix
// are expanded to the plain type, and cuBLASLt multiplies by them.
#include <algorithm>

#include "backend/cuda/block_formats.cuh"
#include "backend/cuda/block_product.h"
#include "backend/cuda/context.h"
#include "backend/cuda/numbers.cuh"

namespace infinigen {
namespace {

constexpr int kBlockWarps = 8;
constexpr int kBlockThreads = kBlockWarps * 32;
constexpr int kVectorWarps = 32;
constexpr int kVectorThreads = kVectorWarps * 32;
constexpr int kExpandThreads = 128;
// Longer rows of activations do not fit shared memory.
constexpr int64_t kMostVectorCols = 65536;
constexpr int kMostProjections = 4;  // of one launch

// What a product needs to know of 32 activations.
struct alignas(8) ActivationGroup {
  float scale;
  uint32_t half_sums;  // sums of the codes of both halves, 16 bits each

  __device__ int HalfSum(int half) const { return static_cast<int16_t>(half_sums >> (16 * half)); }
};
// Quantised activations, in global or shared memory.
struct QuantisedRows {
  int8_t* codes;            // [rows][cols]
  ActivationGroup* groups;  // [rows][cols / 32]
  int cols;

  static constexpr int64_t Bytes(int64_t rows, int64_t cols) {
    return rows * (cols + cols / 32 * static_cast<int64_t>(sizeof(ActivationGroup)));
  }
  __host__ __device__ static QuantisedRows In(void* memory, int64_t rows, int cols) {
    auto* codes = static_cast<int8_t*>(memory);
    return {codes, reinterpret_cast<ActivationGroup*>(codes + rows * cols), cols};
  }
};

// Four threads quantise a group, eight numbers each; `part` counts the eights of a row. The scale is the largest
// magnitude / 127, as in the other backends; a group with NaN or infinity has the scale NaN. All threads of a warp call
// it; those with `part` behind the end of the row store nothing.
template <class In>
__device__ void QuantiseEight(const In* x, int row, int part, const QuantisedRows& out) {
  const bool inside = part < out.cols / 8;
  float numbers[8], largest = 0;
  bool finite = true;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    numbers[i] = inside ? AsFloat(x[part * 8 + i]) : 0.0f;
    largest = fmaxf(largest, fabsf(numbers[i]));
    finite = finite && isfinite(numbers[i]);
  }
  for (int step = 1; step <= 2; step *= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, step));
    finite = __shfl_xor_sync(0xffffffffu, finite ? 1 : 0, step) != 0 && finite;
  }
  const bool zero = !(largest >= 0x1p-100f) || !finite;
  const float inverse = zero ? 0.0f : 127.0f / largest;
  int sum = 0;
  uint32_t codes[2] = {};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int code = zero ? 0 : __float2int_rn(numbers[i] * inverse);
    sum += code;
    codes[i / 4] |= (static_cast<uint32_t>(code) & 255u) << (i % 4 * 8);
  }
  sum += __shfl_xor_sync(0xffffffffu, sum, 1);
  const int second = __shfl_xor_sync(0xffffffffu, sum, 2);
  if (!inside) return;
  *reinterpret_cast<uint2*>(out.codes + int64_t{row} * out.cols + part * 8) = {codes[0], codes[1]};
  if (part % 4 == 0)
    out.groups[int64_t{row} * (out.cols / 32) + part / 4] = {
        finite ? (zero ? 0.0f : largest / 127.0f) : __int_as_float(0x7fc00000),
        (static_cast<uint32_t>(sum) & 0xffffu) | static_cast<uint32_t>(second) << 16};
}

template <class In>
__global__ void QuantiseRows(const In* x, int64_t stride, QuantisedRows out) {
  const int row = static_cast<int>(blockIdx.y);
  QuantiseEight(x + row * stride, row, static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x), out);
}

struct BlockProjection {
  const uint8_t* weight;  // [outputs][row_bytes]
  int64_t row_bytes;
  const float* bias;  // [outputs] or null
  std::byte* out;     // [rows][out_stride]
  int64_t out_stride;
  DType out_type;
  Epilogue epilogue;
  int outputs;
};
struct BlockCall {
  BlockProjection projections[kMostProjections];
  int count;
  int outputs;  // of all projections
};

template <class T>
__device__ void StoreAs(const BlockProjection& p, int64_t row, int64_t n, float sum) {
  T& target = reinterpret_cast<T*>(p.out)[row * p.out_stride + n];
  if (p.epilogue == Epilogue::kAdd) sum += AsFloat(target);
  if (p.epilogue == Epilogue::kRelu) sum = fmaxf(sum, 0.0f);
  target = FromFloat<T>(sum);
}
__device__ void StoreOutput(const BlockProjection& p, int64_t row, int64_t n, float sum) {
  if (p.bias != nullptr) sum += p.bias[n];
  if (p.out_type == DType::kF32) return StoreAs<float>(p, row, n, sum);
  p.out_type == DType::kF16 ? StoreAs<__half>(p, row, n, sum) : StoreAs<__nv_bfloat16>(p, row, n, sum);
}

// Adds a unit's share of the output of kRows rows. `at`: the first number of its block.
template <class Format, int kRows>
__device__ void AddUnit(const BlockUnit& unit, int at, const QuantisedRows& x, float (&sums)[kRows]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int first = at + unit.at[half];
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      const int4 codes = *reinterpret_cast<const int4*>(x.codes + row * x.cols + first);
      const ActivationGroup group = x.groups[(row * x.cols + first) / 32];
      const int of_codes = group.HalfSum(first / 16 % 2);
      int sum = __dp4a(static_cast<int>(unit.codes[half][0]), codes.x, 0);
      sum = __dp4a(static_cast<int>(unit.codes[half][1]), codes.y, sum);
      sum = __dp4a(static_cast<int>(unit.codes[half][2]), codes.z, sum);
      sum = __dp4a(static_cast<int>(unit.codes[half][3]), codes.w, sum);
      if constexpr (Format::kCentre != 0) sum -= Format::kCentre * of_codes;
      float term = unit.scale[half] * static_cast<float>(sum);
      if constexpr (Format::kOffsets) term = fmaf(unit.offset[half], static_cast<float>(of_codes), term);
      sums[row] = fmaf(group.scale, term, sums[row]);
    }
  }
}

// The outputs of one warp, of all projections of a call: its number among the warps of the grid, and every `step`
// outputs from there.
class Outputs {
 public:
  __device__ Outputs(const BlockCall& call, int first, int step) : call_(&call), output_(first), step_(step) {
    Locate();
  }

  __device__ bool done() const { return projection_ == nullptr; }
  __device__ const BlockProjection& projection() const { return *projection_; }
  __device__ int n() const { return n_; }  // output of the projection
  __device__ const uint8_t* weights() const { return projection_->weight + n_ * projection_->row_bytes; }
  __device__ void Next() {
    output_ += step_;
    Locate();
  }

 private:
  __device__ void Locate() {
    projection_ = nullptr;
    n_ = output_;
    for (int i = 0; i < call_->count && projection_ == nullptr; ++i) {
      if (n_ < call_->projections[i].outputs)
        projection_ = &call_->projections[i];
      else
        n_ -= call_->projections[i].outputs;
    }
  }

  const BlockCall* call_;
  int output_, step_, n_ = 0;
  const BlockProjection* projection_ = nullptr;
};

// The weights of a warp's outputs, as a sequence of pieces of kPieceUnits units; the pieces of one row follow each
// other. While a piece is computed from shared memory, the next one is on its way there.
template <class Format>
class WeightPieces {
 public:
  static constexpr int kPieceUnits = 128;
  static constexpr int kPieceBytes = kPieceUnits / Format::kUnits * Format::kBytes;
  // A piece between multiples of 16 bytes, and 16 bytes before it.
  static constexpr int kStageBytes = (kPieceBytes + 15 + 15) / 16 * 16 + 16;

  // stages: shared memory [2][kStageBytes] of this warp.
  __device__ WeightPieces(const Outputs& outputs, int cols, std::byte* stages)
      : outputs_(outputs), stages_(stages), units_(cols / 32), per_row_((units_ + kPieceUnits - 1) / kPieceUnits) {}

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
      BlockUnit unit;
      const int block = index / Format::kUnits;
      Format::Read(blocks + block * Format::kBytes, index % Format::kUnits, unit);
      AddUnit<Format, kRows>(unit, pieces.first_unit() * 32 + block * Format::kUnits * 32, x, sums);
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
  x.codes += first_row * x.cols;
  x.groups += first_row * (x.cols / 32);
  ComputePieces<Format, kRows>(pieces, x, first_row);
}

// Outputs of one row. Every block quantises the activations in shared memory, which saves a launch; meanwhile its first
// weights come into the cache. The warps then read weights into registers directly: there is little to do with each, so
// that a second copy in shared memory costs more than it hides.
template <class Format, class In>
__global__ void __launch_bounds__(kVectorThreads)
    BlockVector(const __grid_constant__ BlockCall call, const In* x, int cols) {
  extern __shared__ __align__(16) std::byte shared[];
  const int lane = static_cast<int>(threadIdx.x % 32), units = cols / 32;
  Outputs outputs(call, static_cast<int>(blockIdx.x) * kVectorWarps + static_cast<int>(threadIdx.x / 32),
                  static_cast<int>(gridDim.x) * kVectorWarps);
  if (!outputs.done())
    for (int64_t at = lane * 128; at < outputs.projection().row_bytes; at += 32 * 128)
      asm volatile("prefetch.global.L2 [%0];" ::"l"(outputs.weights() + at));
  const QuantisedRows row = QuantisedRows::In(shared, 1, cols);
  for (int part = 0; part < cols / 8; part += kVectorThreads)
    QuantiseEight(x, 0, part + static_cast<int>(threadIdx.x), row);
  __syncthreads();
  for (; !outputs.done(); outputs.Next()) {
    float sums[1] = {};
    const uint8_t* weights = outputs.weights();
#pragma unroll 4
    for (int index = lane; index < units; index += 32) {
      BlockUnit unit;
      const int block = index / Format::kUnits;
      Format::Read(weights + block * Format::kBytes, index % Format::kUnits, unit);
      AddUnit<Format, 1>(unit, block * Format::kUnits * 32, row, sums);
    }
    const float sum = WarpSum(sums[0]);
    if (lane == 0) StoreOutput(outputs.projection(), 0, outputs.n(), sum);
  }
}

// A warp expands 32 units of a row, in shared memory first, so that it writes long runs of bytes. `out` has rows that
// are aligned to 16 bytes.
template <class Format, class Out>
__global__ void ExpandRows(const uint8_t* weight, int64_t row_bytes, int units, const int32_t* ids, Out* out,
                           int64_t stride, int64_t rows) {
  __shared__ __align__(16) Out numbers[kExpandThreads / 32][32 * 32];
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int parts = (units + 31) / 32;  // of a row
  const int64_t part = int64_t{blockIdx.x} * (kExpandThreads / 32) + warp, row = part / parts;
  if (row >= rows) return;
  const int first = static_cast<int>(part % parts) * 32, index = first + lane, count = min(32, units - first);
  if (lane < count) {
    BlockUnit unit;
    const int block = index / Format::kUnits;
    Format::Read(weight + (ids == nullptr ? row : ids[row]) * row_bytes + int64_t{block} * Format::kBytes,
                 index % Format::kUnits, unit);
    for (int half = 0; half < 2; ++half) {
      Out* to = &numbers[warp][(block * Format::kUnits - first) * 32 + unit.at[half]];
      for (int i = 0; i < 16; ++i) {
        const auto code = static_cast<int8_t>(unit.codes[half][i / 4] >> (i % 4 * 8));
        float number = unit.scale[half] * static_cast<float>(code - Format::kCentre);
        if constexpr (Format::kOffsets) number += unit.offset[half];
        to[i] = FromFloat<Out>(number);
      }
    }
  }
  __syncwarp();
  auto* to = reinterpret_cast<uint4*>(out + row * stride + int64_t{first} * 32);
  const auto* from = reinterpret_cast<const uint4*>(numbers[warp]);
  for (int i = lane; i < count * 32 * static_cast<int>(sizeof(Out)) / 16; i += 32) to[i] = from[i];
}

// As many blocks as the device holds at once, or as there are outputs for.
template <auto kernel, int kWarps, class... Arguments>
void LaunchOutputs(cudaStream_t stream, int sms, const BlockCall& call, size_t shared, const Arguments&... arguments) {
  // Asked when the kernel is first launched with this much shared memory.
  static size_t known_shared = 0;
  static int resident = 0;
  if (shared != known_shared) {
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)));
    CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, kWarps * 32, shared));
    known_shared = shared;
  }
  const int blocks = std::min((call.outputs + kWarps - 1) / kWarps, resident * sms);
  kernel<<<static_cast<unsigned>(blocks), kWarps * 32, shared, stream>>>(call, arguments...);
  CUDA_CHECK_LAUNCH();
}

template <class Format>
void MultiplyRows(cudaStream_t stream, int sms, const BlockCall& call, const QuantisedRows& x, int64_t rows) {
  for (int64_t row = 0; row < rows;) {
    const auto launch = [&](auto count) {
      LaunchOutputs<BlockProduct<Format, decltype(count)::value>, kBlockWarps>(stream, sms, call, kStagesBytes<Format>,
                                                                               x, row);
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

template <class Format>
void MultiplyVector(cudaStream_t stream, int sms, const BlockCall& call, const ConstTensor& x) {
  const auto shared = static_cast<size_t>(QuantisedRows::Bytes(1, x.cols));
  DispatchDevice(x.type, [&](auto number) {
    using In = decltype(number);
    LaunchOutputs<BlockVector<Format, In>, kVectorWarps>(stream, sms, call, shared, reinterpret_cast<const In*>(x.data),
                                                         static_cast<int>(x.cols));
  });
}

}  // namespace

void ExpandBlocks(cudaStream_t stream, const WeightView& weight, const int32_t* ids, const Tensor& out) {
  CHECK(!IsPlain(weight.type) && weight.cols == out.cols);
  const int64_t units = weight.cols / kGroupNumbers;
  DispatchBlocks(weight.type, [&](auto format) {
    DispatchDevice(out.type, [&](auto number) {
      using Format = decltype(format);
      using Out = decltype(number);
      constexpr int kWarps = kExpandThreads / 32;
      const int64_t blocks = (out.rows * ((units + 31) / 32) + kWarps - 1) / kWarps;
      CHECK(blocks <= INT32_MAX);
      ExpandRows<Format, Out><<<static_cast<unsigned>(blocks), kExpandThreads, 0, stream>>>(
          reinterpret_cast<const uint8_t*>(weight.data), weight.row_bytes, static_cast<int>(units), ids,
          reinterpret_cast<Out*>(out.data), out.stride, out.rows);
      CUDA_CHECK_LAUNCH();
    });
  });
}

size_t QuantisedBytes(int64_t rows, int64_t cols) { return static_cast<size_t>(QuantisedRows::Bytes(rows, cols)); }

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
      vector ? MultiplyVector<Format>(stream, context.sms(), call, x)
             : MultiplyRows<Format>(stream, context.sms(), call, rows, x.rows);
    });
  }
}

}  // namespace infinigen
