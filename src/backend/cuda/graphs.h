// CUDA graphs of steps: the operations of a step, recorded once per shape and replayed. Private to backend/cuda.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <map>

#include "backend/cuda/check.h"

namespace infinigen {

class StepGraphs {
 public:
  ~StepGraphs() { Drop(); }

  bool Launch(uint64_t key, cudaStream_t stream) {
    const auto found = graphs_.find(key);
    if (found == graphs_.end() || found->second == nullptr) return false;
    CUDA_CHECK(cudaGraphLaunch(found->second, stream));
    return true;
  }

  // True if the operations that follow are recorded, that is, from the second time a key is seen.
  bool Begin(uint64_t key, cudaStream_t stream) {
    if (refused_) return false;
    if (!graphs_.contains(key)) {
      if (graphs_.size() >= kMost) Drop();
      graphs_[key] = nullptr;
      return false;
    }
    recording_ = key;
    CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    return true;
  }

  // Launches the recorded graph. False if the driver had no memory for it: nothing has run, and nothing is recorded
  // from then on.
  bool End(cudaStream_t stream) {
    cudaGraph_t graph = nullptr;
    CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
    cudaGraphExec_t ready = nullptr;
    // Keeps stream priorities in the graph: fetch kernels are scheduled before the blocks of a product.
    cudaError_t status = cudaGraphInstantiate(&ready, graph, cudaGraphInstantiateFlagUseNodePriority);
    CUDA_CHECK(cudaGraphDestroy(graph));
    if (status == cudaSuccess) status = cudaGraphLaunch(ready, stream);
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();  // clears the error, which has been handled
      if (ready != nullptr) CUDA_CHECK(cudaGraphExecDestroy(ready));
      refused_ = true;
      Drop();
      return false;
    }
    CUDA_CHECK(status);
    graphs_[recording_] = ready;
    return true;
  }

  // Must be called before memory that graphs refer to is freed.
  void Drop() {
    for (const auto& [key, graph] : graphs_)
      if (graph != nullptr) CUDA_CHECK(cudaGraphExecDestroy(graph));
    graphs_.clear();
  }

 private:
  // Room for batch sizes and lengths in powers of two; more graphs are not worth their memory.
  static constexpr size_t kMost = 64;

  std::map<uint64_t, cudaGraphExec_t> graphs_;  // null: the key was seen once
  uint64_t recording_ = 0;
  bool refused_ = false;
};

}  // namespace infinigen
