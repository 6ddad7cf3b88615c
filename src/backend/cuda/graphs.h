// Graphs of steps: what a step enqueues, recorded once per shape and launched again. Private to backend/cuda.
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

  // True when what follows is recorded: not the first time a key is seen.
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

  // Launches what was recorded. False: the driver had no memory for it, nothing has run, and no more is recorded.
  bool End(cudaStream_t stream) {
    cudaGraph_t graph = nullptr;
    CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
    cudaGraphExec_t ready = nullptr;
    // As in streams: what is fetched goes before the blocks of a product.
    cudaError_t status = cudaGraphInstantiate(&ready, graph, cudaGraphInstantiateFlagUseNodePriority);
    CUDA_CHECK(cudaGraphDestroy(graph));
    if (status == cudaSuccess) status = cudaGraphLaunch(ready, stream);
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();  // it was only an answer
      if (ready != nullptr) CUDA_CHECK(cudaGraphExecDestroy(ready));
      refused_ = true;
      Drop();
      return false;
    }
    CUDA_CHECK(status);
    graphs_[recording_] = ready;
    return true;
  }

  // Before memory that graphs know is given back.
  void Drop() {
    for (const auto& [key, graph] : graphs_)
      if (graph != nullptr) CUDA_CHECK(cudaGraphExecDestroy(graph));
    graphs_.clear();
  }

 private:
  // Batch sizes times lengths, each doubled; more at once are not worth their memory.
  static constexpr size_t kMost = 64;

  std::map<uint64_t, cudaGraphExec_t> graphs_;  // null: the key was seen once
  uint64_t recording_ = 0;
  bool refused_ = false;
};

}  // namespace infinigen
