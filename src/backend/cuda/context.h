// What CUDA operations share: streams, events, library handles, scratch. Private to backend/cuda.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "backend/backend.h"
#include "backend/cuda/check.h"
#include "backend/cuda/memory.h"
#include "backend/cuda/zones.h"

namespace infinigen {

// What cuBLASLt is asked to do, apart from pointers.
struct MatMulKey {
  int64_t m, n, k, x_stride, weight_stride, out_stride;
  DType in, out;
  Epilogue epilogue;
  bool bias;
  uint32_t x_alignment, weight_alignment, out_alignment;
  auto operator<=>(const MatMulKey&) const = default;
};
// How it does it.
struct MatMulPlan {
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t weight = nullptr, x = nullptr, out = nullptr;
  cublasLtMatmulAlgo_t algorithm{};
  bool found = false;

  ~MatMulPlan() {
    CUBLAS_CHECK(cublasLtMatrixLayoutDestroy(weight));
    CUBLAS_CHECK(cublasLtMatrixLayoutDestroy(x));
    CUBLAS_CHECK(cublasLtMatrixLayoutDestroy(out));
    CUBLAS_CHECK(cublasLtMatmulDescDestroy(operation));
  }
};

class CudaContext {
 public:
  explicit CudaContext(uint64_t memory_limit_bytes);
  ~CudaContext();

  cudaStream_t stream(Queue queue) const { return streams_[static_cast<size_t>(queue)]; }

  // Memory for one operation of the compute queue: free again when the next one asks. It grows, which is no matter for
  // the first steps only; Reserve takes what later ones need.
  std::byte* Scratch(size_t bytes);

  void DropGraphs();

  int sms() const { return sms_; }
  // Shared memory that a block may ask for.
  int max_shared_bytes() const { return max_shared_bytes_; }

 private:
  friend class CudaBackend;
  std::array<cudaStream_t, 4> streams_{};  // by Queue
  int sms_ = 0;
  int max_shared_bytes_ = 0;

 public:
  // Made after the streams, gone before them.
  std::unique_ptr<DeviceAllocator> device_memory;
  std::unique_ptr<PinnedAllocator> pinned_memory;

  cublasLtHandle_t lt = nullptr;
  Buffer lt_workspace;
  std::map<MatMulKey, std::unique_ptr<MatMulPlan>> plans;
  Buffer converted;  // activations in the type of the weights, where it differs

  Buffer scratch;
  ZoneClock zones;

  // Graphs of steps. A key without one was seen once.
  std::map<uint64_t, cudaGraphExec_t> graphs;
  uint64_t recording = 0;  // the key of the graph that is being recorded

  // Weights; where small ones share a block, it is the last.
  std::vector<Buffer> placed;
  size_t arena_left = 0;
  std::map<const std::byte*, const std::byte*> converted_biases;  // f32 → the same in the activations' type

  // Tickets: event number v lies in events[v % size], and is recorded again a ring later. Whoever waits for an older
  // one waits a little longer than needed.
  std::vector<cudaEvent_t> events;
  std::vector<Queue> queue_of;  // the same shape: where it was recorded
  uint64_t tickets = 0;
  // What a graph records is its own: an event that a graph recorded cannot be waited for outside.
  std::vector<cudaEvent_t> graph_events;
  uint64_t graph_tickets = 0;
  bool in_graph = false;

  // Bytes from and to pageable host memory pass through pinned ones.
  struct Pending {
    uint64_t ticket;
    const std::byte* bounce;
    void* host;
    size_t bytes;
  };
  std::byte* upload_ring = nullptr;
  size_t upload_at = 0;
  struct InFlight {
    uint64_t ticket;
    Queue queue;
    size_t begin, end;  // of the ring
  };
  std::deque<InFlight> uploads;  // the oldest first
  std::byte* download_bounce = nullptr;
  size_t download_at = 0;
  std::deque<Pending> downloads;
};

}  // namespace infinigen
