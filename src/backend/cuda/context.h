// State shared by all CUDA operations: streams, events, library handles and scratch. Private to backend/cuda.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "backend/backend.h"
#include "backend/cuda/check.h"
#include "backend/cuda/graphs.h"
#include "backend/cuda/memory.h"
#include "backend/cuda/tickets.h"
#include "backend/cuda/transfers.h"
#include "backend/cuda/zones.h"

namespace infinigen {

// One matrix product as cuBLASLt sees it, without pointers: the key of the plan cache.
struct MatMulKey {
  int64_t m, n, k, x_stride, weight_stride, out_stride;
  DType in, out;
  Epilogue epilogue;
  bool bias;
  uint32_t x_alignment, weight_alignment, out_alignment;
  auto operator<=>(const MatMulKey&) const = default;
};
// The plan for one MatMulKey: cuBLASLt's descriptors and the algorithm chosen by its heuristics.
struct LtMatMulPlan {
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t weight = nullptr, x = nullptr, out = nullptr;
  cublasLtMatmulAlgo_t algorithm{};
  bool found = false;

  ~LtMatMulPlan() {
    CUBLAS_CHECK(cublasLtMatrixLayoutDestroy(weight));
    CUBLAS_CHECK(cublasLtMatrixLayoutDestroy(x));
    CUBLAS_CHECK(cublasLtMatrixLayoutDestroy(out));
    CUBLAS_CHECK(cublasLtMatmulDescDestroy(operation));
  }
};

class CudaContext {
 public:
  // kExhausted if the driver has no memory left for it.
  static Result<std::unique_ptr<CudaContext>> Open(uint64_t memory_limit_bytes);
  ~CudaContext();

  cudaStream_t stream(Queue queue) const { return streams_[static_cast<size_t>(queue)]; }

  // Scratch for one operation on the compute queue; the next operation may overwrite it. It grows on demand, which is
  // slow: Reserve allocates the size that later steps need.
  std::byte* Scratch(size_t bytes);

  // out = x · weightᵀ + bias. x has the weight's type, bias the output's type. Defined in matmul.cu.
  void Multiply(cudaStream_t stream, const ConstTensor& x, const Projection& p, const std::byte* bias);

  // The same for any type of x and any stored type of the weight. Defined in matmul.cu.
  void MultiplyBy(cudaStream_t stream, const Tensor& x, const Projection& p);

  int sms() const { return sms_; }
  // Largest shared memory a block may request.
  int max_shared_bytes() const { return max_shared_bytes_; }

 private:
  CudaContext() : transfers(tickets) {}
  Status Start(uint64_t memory_limit_bytes);

  std::array<cudaStream_t, 4> streams_{};  // by Queue
  int sms_ = 0;
  int max_shared_bytes_ = 0;

 public:
  // Created after the streams, destroyed before them.
  std::unique_ptr<DeviceAllocator> device_memory;
  std::unique_ptr<PinnedAllocator> pinned_memory;

  cublasLtHandle_t lt = nullptr;
  Buffer lt_workspace;
  // A product's number of rows is that of a prompt's last chunk, so there are as many keys as there are lengths of it.
  // Beyond kMostPlans all plans are dropped, and made again as they are needed; without a bound they would take tens of
  // MiB of host memory over hours. A step has a few plans for each size of the batch.
  static constexpr size_t kMostPlans = 1024;
  std::map<MatMulKey, std::unique_ptr<LtMatMulPlan>> plans;
  Buffer converted;  // activations in the weights' type or quantised, and expanded weights

  Buffer scratch;
  ZoneClock zones;
  StepGraphs graphs;
  Tickets tickets;
  Transfers transfers;

  // Weights. If small ones share a block, it is the last.
  std::vector<Buffer> loaded;
  size_t arena_left = 0;
  std::map<const std::byte*, const std::byte*> converted_biases;  // f32 bias → copy in the activations' type
};

}  // namespace infinigen
