// What CUDA operations share: streams, events, library handles, scratch. Private to backend/cuda.
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

// What cuBLASLt is asked to do, apart from pointers.
struct MatMulKey {
  int64_t m, n, k, x_stride, weight_stride, out_stride;
  DType in, out;
  Epilogue epilogue;
  bool bias;
  uint32_t x_alignment, weight_alignment, out_alignment;
  auto operator<=>(const MatMulKey&) const = default;
};
// How cuBLASLt does it: its descriptors and the algorithm that its heuristics chose.
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
  // kExhausted when the driver has no memory for it.
  static Result<std::unique_ptr<CudaContext>> Open(uint64_t memory_limit_bytes);
  ~CudaContext();

  cudaStream_t stream(Queue queue) const { return streams_[static_cast<size_t>(queue)]; }

  // Memory for one operation of the compute queue: free again when the next one asks. It grows, which is no matter for
  // the first steps only; Reserve takes what later ones need.
  std::byte* Scratch(size_t bytes);

  // out = x · weightᵀ + bias, with x in the type of the weight and the bias in that of the output. matmul.cu
  void Multiply(cudaStream_t stream, const ConstTensor& x, const Projection& p, const std::byte* bias);

  int sms() const { return sms_; }
  // Shared memory that a block may ask for.
  int max_shared_bytes() const { return max_shared_bytes_; }

 private:
  CudaContext() : transfers(tickets) {}
  Status Start(uint64_t memory_limit_bytes);

  std::array<cudaStream_t, 4> streams_{};  // by Queue
  int sms_ = 0;
  int max_shared_bytes_ = 0;

 public:
  // Made after the streams, gone before them.
  std::unique_ptr<DeviceAllocator> device_memory;
  std::unique_ptr<PinnedAllocator> pinned_memory;

  cublasLtHandle_t lt = nullptr;
  Buffer lt_workspace;
  std::map<MatMulKey, std::unique_ptr<LtMatMulPlan>> plans;
  Buffer converted;  // activations in the type of the weights, where it differs

  Buffer scratch;
  ZoneClock zones;
  StepGraphs graphs;
  Tickets tickets;
  Transfers transfers;

  // Weights; where small ones share a block, it is the last.
  std::vector<Buffer> loaded;
  size_t arena_left = 0;
  std::map<const std::byte*, const std::byte*> converted_biases;  // f32 → the same in the activations' type
};

}  // namespace infinigen
