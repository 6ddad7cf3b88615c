// Memory, queues and what passes between host and device. Operations are in files of their own.
#include <algorithm>
#include <cstring>

#include "backend/cuda/attention.cuh"
#include "backend/cuda/context.h"
#include "backend/cuda/cublas_lt.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/select.cuh"

namespace infinigen {
namespace {

constexpr size_t kLtWorkspaceBytes = size_t{64} << 20;  // more changes no measured product
constexpr size_t kUploadRingBytes = size_t{16} << 20;
constexpr size_t kUploadPieceBytes = kUploadRingBytes / 4;
constexpr size_t kDownloadPieceBytes = size_t{32} << 20;
// More than any step or prefill unit has in flight.
constexpr size_t kEvents = 4096;
constexpr uint64_t kGraphTicket = uint64_t{1} << 63;
// Batch sizes times lengths, each doubled; more at once are not worth their memory.
constexpr size_t kMostGraphs = 64;
// Small tensors share a block, since the device hands out memory in large pieces.
constexpr size_t kArenaBytes = size_t{8} << 20;

// To what the device hands out.
constexpr size_t RoundUp(size_t bytes) { return (bytes + 255) / 256 * 256; }

}  // namespace

Result<CudaDevice> FindCudaDevice() {
  int count = 0;
  if (const cudaError_t status = cudaGetDeviceCount(&count); status != cudaSuccess || count == 0) {
    cudaGetLastError();
    return Unsupported("no CUDA device: {}",
                       status == cudaSuccess ? "the driver lists none" : cudaGetErrorString(status));
  }
  if (!CublasLtProblem().empty()) return Unsupported("no CUDA libraries: {}", CublasLtProblem());
  cudaDeviceProp properties{};
  CUDA_CHECK(cudaGetDeviceProperties(&properties, 0));
  if (properties.major < 8)
    return Unsupported("{} has compute capability {}.{}; 8.0 is the least that works", properties.name,
                       properties.major, properties.minor);
  size_t free_bytes = 0, total_bytes = 0;
  CUDA_CHECK(cudaSetDevice(0));
  CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
  return CudaDevice{.name = properties.name, .total_bytes = total_bytes, .free_bytes = free_bytes};
}

CudaContext::CudaContext(uint64_t memory_limit_bytes) {
  CUDA_CHECK(cudaSetDevice(0));
  // What is fetched is waited for, and takes few blocks: they go before those of a product that wait for room.
  int lowest = 0, highest = 0;
  CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
  for (size_t i = 0; i < streams_.size(); ++i) {
    const bool first = i == static_cast<size_t>(Queue::kFetch);
    CUDA_CHECK(cudaStreamCreateWithPriority(&streams_[i], cudaStreamNonBlocking, first ? highest : lowest));
  }
  CUDA_CHECK(cudaDeviceGetAttribute(&sms_, cudaDevAttrMultiProcessorCount, 0));
  CUDA_CHECK(cudaDeviceGetAttribute(&max_shared_bytes_, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
  cudaMemPool_t pool = nullptr;
  uint64_t keep = UINT64_MAX;  // memory that was freed is for the next who asks, without a trip to the driver
  CUDA_CHECK(cudaDeviceGetDefaultMemPool(&pool, 0));
  CUDA_CHECK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep));
  device_memory = std::make_unique<DeviceAllocator>(stream(Queue::kCompute), memory_limit_bytes);
  pinned_memory = std::make_unique<PinnedAllocator>();
  events.resize(kEvents);
  queue_of.resize(kEvents);
  for (cudaEvent_t& event : events) CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  CUBLAS_CHECK(cublasLtCreate(&lt));
  void* ring = nullptr;
  CUDA_CHECK(cudaHostAlloc(&ring, kUploadRingBytes, cudaHostAllocDefault));
  upload_ring = static_cast<std::byte*>(ring);
  void* bounce = nullptr;
  CUDA_CHECK(cudaHostAlloc(&bounce, kDownloadPieceBytes, cudaHostAllocDefault));
  download_bounce = static_cast<std::byte*>(bounce);
}

CudaContext::~CudaContext() {
  for (const cudaStream_t stream : streams_) CUDA_CHECK(cudaStreamSynchronize(stream));
  DropGraphs();
  plans.clear();
  lt_workspace = {};
  converted = {};
  scratch = {};
  placed.clear();
  CUBLAS_CHECK(cublasLtDestroy(lt));
  for (const cudaEvent_t event : events) CUDA_CHECK(cudaEventDestroy(event));
  for (const cudaEvent_t event : graph_events) CUDA_CHECK(cudaEventDestroy(event));
  CUDA_CHECK(cudaFreeHost(upload_ring));
  CUDA_CHECK(cudaFreeHost(download_bounce));
  CUDA_CHECK(cudaStreamSynchronize(stream(Queue::kCompute)));
  cudaMemPool_t pool = nullptr;
  CUDA_CHECK(cudaDeviceGetDefaultMemPool(&pool, 0));
  CUDA_CHECK(cudaMemPoolTrimTo(pool, 0));
  for (const cudaStream_t stream : streams_) CUDA_CHECK(cudaStreamDestroy(stream));
}

std::byte* CudaContext::Scratch(size_t bytes) {
  if (bytes > scratch.bytes()) {
    DropGraphs();  // they know the old one
    scratch = {};
    Result<Buffer> grown = Buffer::Make(*device_memory, bytes);
    CHECK(grown.ok());  // what a run needs was reserved
    scratch = std::move(*grown);
  }
  return scratch.data();
}

CudaBackend::CudaBackend(const CudaOptions& options)
    : options_(options), context_(std::make_unique<CudaContext>(options.memory_limit_bytes)) {}

CudaBackend::~CudaBackend() = default;

Allocator& CudaBackend::compute_memory() { return *context_->device_memory; }
Allocator& CudaBackend::host_memory() { return *context_->pinned_memory; }
Allocator& CudaBackend::pool_memory() { return options_.pool_on_device ? compute_memory() : host_memory(); }

uint64_t CudaBackend::used_bytes() const { return context_->device_memory->used_bytes(); }
uint64_t CudaBackend::peak_bytes() const { return context_->device_memory->peak_bytes(); }
double CudaBackend::pinning_s() const { return context_->pinned_memory->pinning_s(); }

size_t CudaBackend::ReservedBytes(int64_t max_tokens, int64_t max_batch, int64_t heads, int64_t kv_heads,
                                  int64_t head_dim) {
  return kLtWorkspaceBytes + RoundUp(std::max({AttentionScratchBytes(max_tokens, max_batch, heads, head_dim),
                                               ScoreScratchBytes(max_tokens, max_batch, heads, kv_heads),
                                               ColumnScratchBytes(kChunkTokens, heads)}));
}

Status CudaBackend::Reserve(int64_t max_tokens, int64_t max_batch, int64_t heads, int64_t kv_heads, int64_t head_dim) {
  const size_t bytes = ReservedBytes(max_tokens, max_batch, heads, kv_heads, head_dim) - kLtWorkspaceBytes;
  if (context_->lt_workspace.bytes() == 0) {
    ASSIGN_OR_RETURN(context_->lt_workspace, Buffer::Make(compute_memory(), kLtWorkspaceBytes));
  }
  if (bytes > context_->scratch.bytes()) {
    context_->DropGraphs();
    context_->scratch = {};
    ASSIGN_OR_RETURN(context_->scratch, Buffer::Make(compute_memory(), bytes));
  }
  return Ok();
}

Result<ConstTensor> CudaBackend::Place(const ConstTensor& weight) {
  CudaContext& context = *context_;
  const size_t bytes = static_cast<size_t>(weight.rows * weight.cols) * SizeOf(weight.type);
  CHECK(weight.stride == weight.cols);
  // A bias is added in the type of its product's output.
  const bool vector = weight.rows == 1 && weight.type == DType::kF32 && activation() != DType::kF32;
  const size_t copy_at = RoundUp(bytes);
  const size_t copy_bytes = vector ? static_cast<size_t>(weight.cols) * SizeOf(activation()) : 0;
  const size_t total = RoundUp(copy_at + copy_bytes);
  std::byte* place = nullptr;
  if (total <= kArenaBytes / 4) {
    if (context.arena_left < total) {
      ASSIGN_OR_RETURN(Buffer arena, Buffer::Make(compute_memory(), kArenaBytes));
      context.placed.push_back(std::move(arena));
      context.arena_left = kArenaBytes;
    }
    place = context.placed.back().data() + (kArenaBytes - context.arena_left);
    context.arena_left -= total;
  } else {
    ASSIGN_OR_RETURN(Buffer block, Buffer::Make(compute_memory(), total));
    place = block.data();
    context.placed.insert(context.placed.begin(), std::move(block));  // the arena stays last
  }
  Upload(Queue::kCompute, weight.data, bytes, place);
  if (vector) {
    std::vector<uint16_t> converted(static_cast<size_t>(weight.cols));
    for (size_t i = 0; i < converted.size(); ++i) {
      const float number = weight.as<float>()[i];
      converted[i] = activation() == DType::kBF16 ? ToBF16(number).bits : ToF16(number).bits;
    }
    Upload(Queue::kCompute, converted.data(), copy_bytes, place + copy_at);
    context.converted_biases[place] = place + copy_at;
  }
  return ConstTensor(place, weight.type, weight.rows, weight.cols);
}

void CudaBackend::Upload(Queue queue, const void* host, size_t bytes, void* device) {
  CudaContext& context = *context_;
  const auto* from = static_cast<const std::byte*>(host);
  auto* to = static_cast<std::byte*>(device);
  while (bytes > 0) {
    const size_t piece = std::min(bytes, kUploadPieceBytes);
    // The oldest come first in the order of the ring, so those in the way are at the front.
    const auto drop_front_while = [&](auto&& in_the_way) {
      while (!context.uploads.empty() && in_the_way(context.uploads.front())) {
        const uint64_t ticket = context.uploads.front().ticket;
        Synchronize({ticket});  // which drops it, unless the ticket is a ring old
        if (!context.uploads.empty() && context.uploads.front().ticket == ticket) context.uploads.pop_front();
      }
    };
    if (context.upload_at + piece > kUploadRingBytes) {
      drop_front_while([&](const auto& upload) { return upload.begin >= context.upload_at; });
      context.upload_at = 0;
    }
    const size_t begin = context.upload_at, end = begin + piece;
    drop_front_while([&](const auto& upload) { return upload.begin < end && begin < upload.end; });
    std::memcpy(context.upload_ring + begin, from, piece);
    CUDA_CHECK(cudaMemcpyAsync(to, context.upload_ring + begin, piece, cudaMemcpyDefault, context.stream(queue)));
    context.uploads.push_back({Record(queue).value, queue, begin, end});
    context.upload_at = (end + 63) / 64 * 64;
    from += piece, to += piece, bytes -= piece;
  }
}

Ticket CudaBackend::Download(Queue queue, const void* device, size_t bytes, void* host) {
  CudaContext& context = *context_;
  const auto* from = static_cast<const std::byte*>(device);
  auto* to = static_cast<std::byte*>(host);
  Ticket ticket;
  while (bytes > 0) {
    const size_t piece = std::min(bytes, kDownloadPieceBytes);
    if (context.download_at + piece > kDownloadPieceBytes) Deliver(UINT64_MAX);
    std::byte* bounce = context.download_bounce + context.download_at;
    CUDA_CHECK(cudaMemcpyAsync(bounce, from, piece, cudaMemcpyDefault, context.stream(queue)));
    ticket = Record(queue);
    context.downloads.push_back({ticket.value, bounce, to, piece});
    context.download_at += piece;
    from += piece, to += piece, bytes -= piece;
  }
  return ticket;
}

// Brings downloads up to a ticket to where they were asked for.
void CudaBackend::Deliver(uint64_t up_to) {
  CudaContext& context = *context_;
  while (!context.downloads.empty() && context.downloads.front().ticket <= up_to) {
    const CudaContext::Pending& next = context.downloads.front();
    CUDA_CHECK(cudaEventSynchronize(context.events[next.ticket % kEvents]));
    std::memcpy(next.host, next.bounce, next.bytes);
    context.downloads.pop_front();
  }
  if (context.downloads.empty()) context.download_at = 0;
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
    if (move.pieces == 1)  // neighbours at both ends go together
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

bool CudaBackend::LaunchGraph(uint64_t key) {
  if (context_->zones.on()) return false;  // operations are timed one by one
  const auto found = context_->graphs.find(key);
  if (found == context_->graphs.end() || found->second == nullptr) return false;
  CUDA_CHECK(cudaGraphLaunch(found->second, context_->stream(Queue::kCompute)));
  return true;
}

bool CudaBackend::BeginGraph(uint64_t key) {
  if (context_->zones.on()) return false;
  if (context_->graphs.size() >= kMostGraphs) context_->DropGraphs();
  if (context_->graphs.try_emplace(key, nullptr).second) return false;
  context_->recording = key;
  context_->in_graph = true;
  context_->graph_tickets = 0;
  CUDA_CHECK(cudaStreamBeginCapture(context_->stream(Queue::kCompute), cudaStreamCaptureModeThreadLocal));
  return true;
}

void CudaBackend::EndGraph() {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t& ready = context_->graphs[context_->recording];
  CUDA_CHECK(cudaStreamEndCapture(context_->stream(Queue::kCompute), &graph));
  context_->in_graph = false;
  CUDA_CHECK(cudaGraphInstantiate(&ready, graph, 0));
  CUDA_CHECK(cudaGraphDestroy(graph));
  CUDA_CHECK(cudaGraphLaunch(ready, context_->stream(Queue::kCompute)));
}

void CudaContext::DropGraphs() {
  for (const auto& [key, graph] : graphs)
    if (graph != nullptr) CUDA_CHECK(cudaGraphExecDestroy(graph));
  graphs.clear();
}

void CudaBackend::TimeZones(bool on) { context_->zones.Switch(on); }
ZoneTimes CudaBackend::CollectZones() { return context_->zones.Collect(); }

Ticket CudaBackend::Record(Queue queue) {
  if (context_->in_graph) return RecordInGraph(queue);
  const uint64_t ticket = ++context_->tickets;
  context_->queue_of[ticket % kEvents] = queue;
  CUDA_CHECK(cudaEventRecord(context_->events[ticket % kEvents], context_->stream(queue)));
  return {ticket};
}

Ticket CudaBackend::RecordInGraph(Queue queue) {
  const uint64_t index = context_->graph_tickets++;
  if (index == context_->graph_events.size())
    CUDA_CHECK(cudaEventCreateWithFlags(&context_->graph_events.emplace_back(), cudaEventDisableTiming));
  CUDA_CHECK(cudaEventRecord(context_->graph_events[index], context_->stream(queue)));
  return {kGraphTicket | index};
}

void CudaBackend::Wait(Queue queue, Ticket ticket) {
  if (ticket.value == 0) return;
  const bool of_graph = (ticket.value & kGraphTicket) != 0;
  if (of_graph && !context_->in_graph) return;  // of an earlier step: the queue that runs graphs has passed it
  const cudaEvent_t event =
      of_graph ? context_->graph_events[ticket.value & ~kGraphTicket] : context_->events[ticket.value % kEvents];
  CUDA_CHECK(cudaStreamWaitEvent(context_->stream(queue), event));
}

void CudaBackend::Synchronize(Ticket ticket) {
  if (ticket.value == 0) return;
  CudaContext& context = *context_;
  CUDA_CHECK(cudaEventSynchronize(context.events[ticket.value % kEvents]));
  const Queue queue = context.queue_of[ticket.value % kEvents];
  while (!context.uploads.empty() && context.uploads.front().queue == queue &&
         context.uploads.front().ticket <= ticket.value)
    context.uploads.pop_front();
  Deliver(ticket.value);
}

}  // namespace infinigen
