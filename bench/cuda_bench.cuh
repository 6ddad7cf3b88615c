// Helpers of the GPU benchmarks: backend memory filled with numbers, and timing.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <vector>

#include "backend/cuda/check.h"
#include "backend/cuda/cuda_backend.h"

namespace infinigen {

template <class T>
class Device {
 public:
  Device(CudaBackend& backend, size_t count) {
    Result<Buffer> buffer = Buffer::Make(backend.compute_memory(), count * sizeof(T));
    CHECK(buffer.ok());
    buffer_ = std::move(*buffer);
    CUDA_CHECK(cudaDeviceSynchronize());  // the backend's queue orders the allocation
  }
  Device(CudaBackend& backend, const std::vector<T>& values) : Device(backend, values.size()) {
    CUDA_CHECK(cudaMemcpy(buffer_.data(), values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  }
  T* get() const { return reinterpret_cast<T*>(buffer_.data()); }

 private:
  Buffer buffer_;
};

// Seconds per call over many calls in a row; the best of several rounds.
inline double Time(CudaBackend& backend, const std::function<void()>& call, double about_s,
                   Queue queue = Queue::kCompute) {
  const int calls = std::max(3, static_cast<int>(0.02 / about_s));
  double best = 1e30;
  for (int round = 0; round < 4; ++round) {
    backend.Synchronize(backend.Record(queue));
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < calls; ++i) call();
    backend.Synchronize(backend.Record(queue));
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    if (round > 0) best = std::min(best, took.count() / calls);  // the first round warms up
  }
  return best;
}

}  // namespace infinigen
