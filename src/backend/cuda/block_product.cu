// Products with block-quantised weights (block_formats.cuh). Few rows of activations, as in decode: the rows are
// quantised to 8 bits in groups of 32, and a warp computes an output by integer products of four numbers, so that every
// weight byte is read once for up to eight rows, through shared memory. Many rows, as in prefill: parts of the matrix
// are expanded to the plain type, and cuBLASLt multiplies by them.
#include <algorithm>
#include <map>

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
  __device__ int Sum() const { return HalfSum(0) + HalfSum(1); }
};
// Quantised activations, in global or shared memory. Runs of 16 codes of a row go to four planes in turn, so that
// threads that read the same part of neighbouring units read neighbouring bytes.
struct QuantisedRows {
  int8_t* codes;            // [rows][4][PlaneBytes]
  ActivationGroup* groups;  // [rows][cols / 32]
  int cols;

  __device__ int8_t* CodesAt(int row, int number) const {
    return codes + (4 * row + number / 16 % 4) * PlaneBytes(cols) + number / 64 * 16 + number % 16;
  }
  __device__ ActivationGroup& GroupOf(int row, int number) const { return groups[row * (cols / 32) + number / 32]; }

  // In shared memory the second half of a run of 32 has other banks than the first.
  __host__ __device__ static constexpr int PlaneBytes(int cols) { return (cols + 255) / 256 * 64 + 32; }
  static constexpr int64_t Bytes(int64_t rows, int cols) {
    return rows * (4 * PlaneBytes(cols) + cols / 32 * static_cast<int64_t>(sizeof(ActivationGroup)));
  }
  __host__ __device__ static QuantisedRows In(void* memory, int64_t rows, int cols) {
    auto* codes = static_cast<int8_t*>(memory);
    return {codes, reinterpret_cast<ActivationGroup*>(codes + rows * 4 * PlaneBytes(cols)), cols};
  }
  __device__ QuantisedRows From(int row) const {
    return {codes + row * 4 * PlaneBytes(cols), groups + row * (cols / 32), cols};
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
  *reinterpret_cast<uint2*>(out.CodesAt(row, part * 8)) = {codes[0], codes[1]};
  if (part % 4 == 0)
    out.GroupOf(row, part * 8) = {finite ? (zero ? 0.0f : largest / 127.0f) : __int_as_float(0x7fc00000),
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

// sum + four products of weights, signed or unsigned, with signed activations.
template <bool kUnsigned>
__device__ int Dot4(uint32_t weights, int codes, int sum) {
  if constexpr (!kUnsigned) return __dp4a(static_cast<int>(weights), codes, sum);
  int result;
  asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(result) : "r"(weights), "r"(codes), "r"(sum));
  return result;
}

// Adds a unit's share of the output of kRows rows. `at`: the first number of its block.
template <class Format, int kRows>
__device__ void AddUnit(const typename Format::Unit& unit, int at, const QuantisedRows& x, float (&sums)[kRows]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int first = at + unit.at[half];
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      const ActivationGroup group = x.GroupOf(row, first);
      constexpr int kRuns = Format::Unit::kWords / 4;  // of 16 codes
      const int of_codes = kRuns == 2 ? group.Sum() : group.HalfSum(first / 16 % 2);
      int sum = 0;
#pragma unroll
      for (int run = 0; run < kRuns; ++run) {
        const int4 codes = *reinterpret_cast<const int4*>(x.CodesAt(row, first + 16 * run));
        sum = Dot4<Format::kUnsigned>(unit.codes[half][4 * run], codes.x, sum);
        sum = Dot4<Format::kUnsigned>(unit.codes[half][4 * run + 1], codes.y, sum);
        sum = Dot4<Format::kUnsigned>(unit.codes[half][4 * run + 2], codes.z, sum);
        sum = Dot4<Format::kUnsigned>(unit.codes[half][4 * run + 3], codes.w, sum);
      }
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
  // Starts to bring the row of weights into the second-level cache. All threads of the warp call it.
  __device__ void Prefetch() const {
    if (done()) return;
    for (int64_t at = threadIdx.x % 32 * 128; at < projection_->row_bytes; at += 32 * 128)
      asm volatile("prefetch.global.L2 [%0];" ::"l"(weights() + at));
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

// Rows of 4 bits a number are short: without the next row a warp has too few bytes on their way. Measured with rows of
// 4,096 numbers; rows of 8 bits lose by it.
template <class Format>
constexpr bool kPrefetchNext = Format::kBytes <= 20 * Format::kUnits*(Format::Unit::kNumbers / 32);

// Outputs of one row. Every block quantises the activations in shared memory, which saves a launch; meanwhile its first
// weights come into the cache. The warps then read weights into registers directly: there is little to do with each, so
// that a second copy in shared memory costs more than it hides. The kernel may start before its predecessor has ended
// (LaunchOutputs): until then it touches nothing but weights.
template <class Format, class In>
__global__ void __launch_bounds__(kVectorThreads)
    BlockVector(const __grid_constant__ BlockCall call, const In* x, int cols) {
  extern __shared__ __align__(16) std::byte shared[];
  const int lane = static_cast<int>(threadIdx.x % 32), units = cols / Format::Unit::kNumbers;
  Outputs outputs(call, static_cast<int>(blockIdx.x) * kVectorWarps + static_cast<int>(threadIdx.x / 32),
                  static_cast<int>(gridDim.x) * kVectorWarps);
  outputs.Prefetch();
#if __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
  cudaGridDependencySynchronize();
#endif
  const QuantisedRows row = QuantisedRows::In(shared, 1, cols);
  for (int part = 0; part < cols / 8; part += kVectorThreads)
    QuantiseEight(x, 0, part + static_cast<int>(threadIdx.x), row);
  __syncthreads();
  while (!outputs.done()) {
    const Outputs now = outputs;
    outputs.Next();
    if (kPrefetchNext<Format>) outputs.Prefetch();
    float sums[1] = {};
    const uint8_t* weights = now.weights();
#pragma unroll 4
    for (int index = lane; index < units; index += 32) {
      typename Format::Unit unit;
      const int block = index / Format::kUnits;
      Format::Read(weights + block * Format::kBytes, index % Format::kUnits, unit);
      AddUnit<Format>(unit, block * Format::kUnits * Format::Unit::kNumbers, row, sums);
    }
    const float sum = WarpSum(sums[0]);
    if (lane == 0) StoreOutput(now.projection(), 0, now.n(), sum);
  }
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

// As many blocks as the device holds at once, or as there are outputs for. An `early` kernel may start while its
// predecessor in the stream runs, if it was compiled for a device that can wait for the rest inside the kernel.
template <auto kernel, int kWarps, bool early, class... Arguments>
void LaunchOutputs(cudaStream_t stream, int sms, const BlockCall& call, size_t shared, Arguments... arguments) {
  // Asked when the kernel is first launched with this much shared memory.
  struct Known {
    int resident;  // blocks of a multiprocessor
    bool waits;
  };
  thread_local std::map<size_t, Known> all_known;
  const auto [known, is_new] = all_known.try_emplace(shared);
  if (is_new) {
    const auto largest = static_cast<int>(all_known.rbegin()->first);
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, largest));
    CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&known->second.resident, kernel, kWarps * 32, shared));
    cudaFuncAttributes compiled;
    CUDA_CHECK(cudaFuncGetAttributes(&compiled, kernel));
    known->second.waits = early && compiled.ptxVersion >= 90;
  }
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>(std::min((call.outputs + kWarps - 1) / kWarps, known->second.resident * sms));
  config.blockDim = kWarps * 32;
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = known->second.waits ? 1 : 0;
  CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, call, arguments...));
}

template <class Format>
void MultiplyRows(cudaStream_t stream, int sms, const BlockCall& call, const QuantisedRows& x, int64_t rows) {
  for (int64_t row = 0; row < rows;) {
    const auto launch = [&](auto count) {
      LaunchOutputs<BlockProduct<Format, decltype(count)::value>, kBlockWarps, false>(stream, sms, call,
                                                                                      kStagesBytes<Format>, x, row);
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
  const auto shared = static_cast<size_t>(QuantisedRows::Bytes(1, static_cast<int>(x.cols)));
  DispatchDevice(x.type, [&](auto number) {
    using In = decltype(number);
    LaunchOutputs<BlockVector<Format, In>, kVectorWarps, true>(
        stream, sms, call, shared, reinterpret_cast<const In*>(x.data), static_cast<int>(x.cols));
  });
}

}  // namespace

void ExpandBlocks(cudaStream_t stream, const WeightView& weight, const int32_t* ids, const Tensor& out) {
  CHECK(!IsPlain(weight.type) && weight.cols == out.cols);
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
