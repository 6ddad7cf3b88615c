// Time of a step by kind of work (CudaZone), measured with a pair of events around each operation. Off by default.
// Queues that run in parallel are timed separately.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <vector>

#include "backend/cuda/check.h"
#include "backend/cuda/cuda_backend.h"

namespace infinigen {

class ZoneClock {
  struct Span {
    CudaZone zone;
    cudaEvent_t begin, end;
  };

 public:
  ~ZoneClock() {
    for (const cudaEvent_t event : spare_) CUDA_CHECK(cudaEventDestroy(event));
    for (const Span& span : spans_) {
      CUDA_CHECK(cudaEventDestroy(span.begin));
      CUDA_CHECK(cudaEventDestroy(span.end));
    }
  }

  void Switch(bool on) { on_ = on; }
  bool on() const { return on_; }

  // Times the work enqueued until the end of the scope.
  class Scope {
   public:
    Scope(ZoneClock& clock, CudaZone zone, cudaStream_t stream)
        : clock_(clock.on_ ? &clock : nullptr), stream_(stream) {
      if (clock_ == nullptr) return;
      span_ = {zone, clock_->Take(), clock_->Take()};
      CUDA_CHECK(cudaEventRecord(span_.begin, stream_));
    }
    ~Scope() {
      if (clock_ == nullptr) return;
      CUDA_CHECK(cudaEventRecord(span_.end, stream_));
      clock_->spans_.push_back(span_);
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    ZoneClock* clock_;
    cudaStream_t stream_;
    Span span_{};
  };

  // Milliseconds since the last call, by zone. All timed work must be done.
  ZoneTimes Collect() {
    ZoneTimes times{};
    for (const Span& span : spans_) {
      float ms = 0;
      CUDA_CHECK(cudaEventSynchronize(span.end));
      CUDA_CHECK(cudaEventElapsedTime(&ms, span.begin, span.end));
      times[static_cast<size_t>(span.zone)] += ms;
      spare_.push_back(span.begin);
      spare_.push_back(span.end);
    }
    spans_.clear();
    return times;
  }

 private:
  cudaEvent_t Take() {
    if (spare_.empty()) {
      cudaEvent_t event = nullptr;
      CUDA_CHECK(cudaEventCreate(&event));
      return event;
    }
    const cudaEvent_t event = spare_.back();
    spare_.pop_back();
    return event;
  }

  bool on_ = false;
  std::vector<Span> spans_;
  std::vector<cudaEvent_t> spare_;
};

}  // namespace infinigen
