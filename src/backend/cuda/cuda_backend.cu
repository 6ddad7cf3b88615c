// Memory, queues and transfers between host and device. The operations have their own files.
#include <algorithm>
#include <utility>

#include "backend/cuda/attention.cuh"
#include "backend/cuda/context.h"
#include "backend/cuda/cublas_lt.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/select.cuh"

namespace infinigen {
namespace {

constexpr size_t kLtWorkspaceBytes = size_t{64} << 20;  // a larger workspace speeds up no measured product
// Room for converted activations, where weights have another type, and for expanded weights, where they are stored as
// blocks. Larger products are converted in parts.
constexpr size_t kConvertedBytes = size_t{64} << 20;
// Small tensors share a block of this size, because the device allocates memory in large pieces.
constexpr size_t kArenaBytes = size_t{8} << 20;

// Rounds up to the device's allocation granularity.
constexpr size_t RoundUp(size_t bytes) { return (bytes + 255) / 256 * 256; }

}  // namespace

Result<GpuInfo> FindCudaDevice() {
  int count = 0;
  if (const cudaError_t status = cudaGetDeviceCount(&count); status != cudaSuccess || count == 0) {
    cudaGetLastError();
    return Unsupported("no CUDA device: {}",
                       status == cudaSuccess ? "the driver lists none" : cudaGetErrorString(status));
  }
  if (!CublasLtProblem().empty()) return Unsupported("no CUDA libraries: {}", CublasLtProblem());
  cudaDeviceProp properties{};
  RETURN_IF_ERROR(Asked(cudaGetDeviceProperties(&properties, 0), "description of the device"));
  if (properties.major < 8)
    return Unsupported("{} has compute capability {}.{}; 8.0 is the least that works", properties.name,
                       properties.major, properties.minor);
  size_t free_bytes = 0, total_bytes = 0;
  RETURN_IF_ERROR(Asked(cudaSetDevice(0), "context"));
  RETURN_IF_ERROR(Asked(cudaMemGetInfo(&free_bytes, &total_bytes), "context"));
  return GpuInfo{.name = properties.name, .total_bytes = total_bytes, .free_bytes = free_bytes};
}

Result<std::unique_ptr<CudaContext>> CudaContext::Open(uint64_t memory_limit_bytes) {
  std::unique_ptr<CudaContext> context(new CudaContext);
  RETURN_IF_ERROR(context->Start(memory_limit_bytes));
  return Result<std::unique_ptr<CudaContext>>(std::move(context));
}

Status CudaContext::Start(uint64_t memory_limit_bytes) {
  RETURN_IF_ERROR(Asked(cudaSetDevice(0), "context"));
  // Steps wait for fetch kernels, which have few blocks: they are scheduled before the blocks of a product.
  int lowest = 0, highest = 0;
  CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
  for (size_t i = 0; i < streams_.size(); ++i) {
    const bool first = i == static_cast<size_t>(Queue::kFetch);
    RETURN_IF_ERROR(
        Asked(cudaStreamCreateWithPriority(&streams_[i], cudaStreamNonBlocking, first ? highest : lowest), "streams"));
  }
  CUDA_CHECK(cudaDeviceGetAttribute(&sms_, cudaDevAttrMultiProcessorCount, 0));
  CUDA_CHECK(cudaDeviceGetAttribute(&max_shared_bytes_, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
  cudaMemPool_t pool = nullptr;
  uint64_t keep = UINT64_MAX;  // keep freed memory in the pool: reuse without a driver call
  CUDA_CHECK(cudaDeviceGetDefaultMemPool(&pool, 0));
  CUDA_CHECK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep));
  device_memory = std::make_unique<DeviceAllocator>(stream(Queue::kCompute), memory_limit_bytes);
  pinned_memory = std::make_unique<PinnedAllocator>();
  RETURN_IF_ERROR(tickets.Open());
  RETURN_IF_ERROR(transfers.Open());
  if (const cublasStatus_t status = cublasLtCreate(&lt); status != CUBLAS_STATUS_SUCCESS)
    return Exhausted("cuBLASLt does not start: {}", cublasLtGetStatusString(status));
  return Ok();
}

CudaContext::~CudaContext() {
  for (const cudaStream_t stream : streams_)
    if (stream != nullptr) CUDA_CHECK(cudaStreamSynchronize(stream));
  graphs.Drop();
  plans.clear();
  lt_workspace = {};
  converted = {};
  scratch = {};
  loaded.clear();
  if (lt != nullptr) CUBLAS_CHECK(cublasLtDestroy(lt));
  if (device_memory != nullptr) {
    CUDA_CHECK(cudaStreamSynchronize(stream(Queue::kCompute)));
    cudaMemPool_t pool = nullptr;
    CUDA_CHECK(cudaDeviceGetDefaultMemPool(&pool, 0));
    CUDA_CHECK(cudaMemPoolTrimTo(pool, 0));
  }
  for (const cudaStream_t stream : streams_)
    if (stream != nullptr) CUDA_CHECK(cudaStreamDestroy(stream));
}

std::byte* CudaContext::Scratch(size_t bytes) {
  if (bytes > scratch.bytes()) {
    graphs.Drop();  // graphs refer to the old scratch
    scratch = {};
    Result<Buffer> grown = Buffer::Make(*device_memory, bytes);
    CHECK(grown.ok());  // Reserve has allocated what a run needs
    scratch = std::move(*grown);
  }
  return scratch.data();
}

Result<std::unique_ptr<CudaBackend>> CudaBackend::Open(const CudaOptions& options) {
  ASSIGN_OR_RETURN(std::unique_ptr<CudaContext> context, CudaContext::Open(options.memory_limit_bytes));
  return std::unique_ptr<CudaBackend>(new CudaBackend(options, std::move(context)));
}
CudaBackend::CudaBackend(const CudaOptions& options, std::unique_ptr<CudaContext> context)
    : options_(options), context_(std::move(context)) {}
CudaBackend::~CudaBackend() = default;

Allocator& CudaBackend::compute_memory() { return *context_->device_memory; }
Allocator& CudaBackend::host_memory() { return *context_->pinned_memory; }
Allocator& CudaBackend::pool_memory() { return options_.pool_on_device ? compute_memory() : host_memory(); }

size_t CudaBackend::product_plans() const { return context_->plans.size(); }
uint64_t CudaBackend::used_bytes() const { return context_->device_memory->used_bytes(); }
uint64_t CudaBackend::peak_bytes() const { return context_->device_memory->peak_bytes(); }
double CudaBackend::pinning_s() const { return context_->pinned_memory->pinning_s(); }

size_t CudaBackend::ScratchBytes(int64_t max_tokens, int64_t max_batch, int64_t heads, int64_t kv_heads,
                                 int64_t head_dim) {
  return RoundUp(
      std::max({AttentionScratchBytes(max_tokens, max_batch, heads, head_dim),
                ScoreScratchBytes(max_tokens, max_batch, heads, kv_heads), ColumnScratchBytes(kChunkTokens, heads)}));
}
size_t CudaBackend::ReservedBytes(int64_t max_tokens, int64_t max_batch, int64_t heads, int64_t kv_heads,
                                  int64_t head_dim) {
  return kLtWorkspaceBytes + kConvertedBytes + ScratchBytes(max_tokens, max_batch, heads, kv_heads, head_dim);
}

Status CudaBackend::Reserve(int64_t max_tokens, int64_t max_batch, int64_t heads, int64_t kv_heads, int64_t head_dim) {
  const auto grow = [&](Buffer& buffer, size_t bytes) -> Status {
    if (bytes <= buffer.bytes()) return Ok();
    context_->graphs.Drop();  // graphs refer to the old scratch
    buffer = {};
    ASSIGN_OR_RETURN(buffer, Buffer::Make(compute_memory(), bytes));
    return Ok();
  };
  RETURN_IF_ERROR(grow(context_->lt_workspace, kLtWorkspaceBytes));
  RETURN_IF_ERROR(grow(context_->converted, kConvertedBytes));
  return grow(context_->scratch, ScratchBytes(max_tokens, max_batch, heads, kv_heads, head_dim));
}

Result<std::byte*> CudaBackend::TakeMemory(size_t bytes) {
  CudaContext& context = *context_;
  const size_t total = RoundUp(bytes);
  if (total > kArenaBytes / 4) {
    ASSIGN_OR_RETURN(Buffer block, Buffer::Make(compute_memory(), total));
    std::byte* const memory = block.data();
    context.loaded.insert(context.loaded.begin(), std::move(block));  // the block shared by small tensors stays last
    return memory;
  }
  if (context.arena_left < total) {
    ASSIGN_OR_RETURN(Buffer arena, Buffer::Make(compute_memory(), kArenaBytes));
    context.loaded.push_back(std::move(arena));
    context.arena_left = kArenaBytes;
  }
  std::byte* const memory = context.loaded.back().data() + (kArenaBytes - context.arena_left);
  context.arena_left -= total;
  return memory;
}

Result<WeightView> CudaBackend::Load(const WeightView& weight) {
  CHECK(weight.is_packed());
  const auto bytes = static_cast<size_t>(weight.bytes());
  ASSIGN_OR_RETURN(std::byte* const memory, TakeMemory(bytes));
  Upload(Queue::kCompute, weight.data, bytes, memory);
  WeightView loaded = weight;
  loaded.data = memory;
  return loaded;
}

// A bias is added in the type of the product's output, so a vector is kept in the activations' type as well.
Result<ConstTensor> CudaBackend::Load(const ConstTensor& vector) {
  CHECK(vector.rows == 1 && vector.type == DType::kF32);
  const bool twice = activation() != DType::kF32;
  const auto bytes = static_cast<size_t>(vector.bytes());
  const size_t copy_at = RoundUp(bytes);
  const size_t copy_bytes = twice ? static_cast<size_t>(vector.cols) * SizeOf(activation()) : 0;
  ASSIGN_OR_RETURN(std::byte* const memory, TakeMemory(copy_at + copy_bytes));
  Upload(Queue::kCompute, vector.data, bytes, memory);
  if (twice) {
    std::vector<uint16_t> converted(static_cast<size_t>(vector.cols));
    for (size_t i = 0; i < converted.size(); ++i) {
      const float number = vector.as<float>()[i];
      converted[i] = activation() == DType::kBF16 ? ToBF16(number).bits : ToF16(number).bits;
    }
    Upload(Queue::kCompute, converted.data(), copy_bytes, memory + copy_at);
    context_->converted_biases[memory] = memory + copy_at;
  }
  return ConstTensor(memory, vector.type, vector.rows, vector.cols);
}

void CudaBackend::Upload(Queue queue, const void* host, size_t bytes, void* device) {
  context_->transfers.Upload(queue, context_->stream(queue), host, bytes, device);
}
Ticket CudaBackend::Download(Queue queue, const void* device, size_t bytes, void* host) {
  return context_->transfers.Download(queue, context_->stream(queue), device, bytes, host);
}

void CudaBackend::Move(Queue queue, std::span<const ByteMove> moves) {
  if (skipped_.fetch && queue == Queue::kFetch) return;
  const cudaStream_t stream = context_->stream(queue);
  const CudaZone zone = queue == Queue::kFetch      ? CudaZone::kFetch
                        : queue == Queue::kWriteout ? CudaZone::kWriteout
                                                    : CudaZone::kWeights;
  const ZoneClock::Scope timed(context_->zones, zone, stream);
  for (size_t i = 0; i < moves.size();) {
    ByteMove move = moves[i++];
    if (move.pieces == 1)  // adjacent at both ends: one copy
      for (; i < moves.size() && moves[i].pieces == 1 && moves[i].from == move.from + move.bytes &&
             moves[i].to == move.to + move.bytes;
           ++i)
        move.bytes += moves[i].bytes;
    context_->pinned_memory->AwaitPinned(move.from, move.span());
    context_->pinned_memory->AwaitPinned(move.to, move.span());
    const auto together = [&](size_t at) {
      return std::min(context_->pinned_memory->Together(move.from + at),
                      context_->pinned_memory->Together(move.to + at));
    };
    if (move.pieces > 1 && move.span() <= together(0)) {
      CUDA_CHECK(cudaMemcpy2DAsync(move.to, move.stride, move.from, move.stride, move.bytes, move.pieces,
                                   cudaMemcpyDefault, stream));
      continue;
    }
    for (size_t piece = 0; piece < move.pieces; ++piece) {
      for (size_t at = piece * move.stride, end = at + move.bytes; at < end;) {
        const size_t bytes = std::min(end - at, together(at));
        CUDA_CHECK(cudaMemcpyAsync(move.to + at, move.from + at, bytes, cudaMemcpyDefault, stream));
        at += bytes;
      }
    }
  }
}

void CudaBackend::AwaitPool() { context_->pinned_memory->AwaitAll(); }

// Graphs are not used while operations are timed one by one.
bool CudaBackend::LaunchGraph(uint64_t key) {
  return !context_->zones.on() && context_->graphs.Launch(key, context_->stream(Queue::kCompute));
}
bool CudaBackend::BeginGraph(uint64_t key) {
  if (context_->zones.on() || !context_->graphs.Begin(key, context_->stream(Queue::kCompute))) return false;
  context_->tickets.BeginGraph();
  return true;
}
bool CudaBackend::EndGraph() {
  context_->tickets.EndGraph();
  return context_->graphs.End(context_->stream(Queue::kCompute));
}

void CudaBackend::TimeZones(bool on) { context_->zones.Switch(on); }
ZoneTimes CudaBackend::CollectZones() { return context_->zones.Collect(); }

Ticket CudaBackend::Record(Queue queue) { return context_->tickets.Record(queue, context_->stream(queue)); }
void CudaBackend::Wait(Queue queue, Ticket ticket) { context_->tickets.Wait(context_->stream(queue), ticket); }
void CudaBackend::Synchronize(Ticket ticket) {
  if (ticket.value != 0) context_->transfers.Synchronize(ticket);
}

}  // namespace infinigen
