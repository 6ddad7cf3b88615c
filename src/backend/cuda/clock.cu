// Measures how long steps wait for fetched entries. Each call launches a kernel of one thread, which takes about a
// microsecond of its queue.
#include "backend/cuda/clock.cuh"
#include "backend/cuda/context.h"
#include "backend/cuda/cuda_backend.h"

namespace infinigen {
namespace {

__global__ void NoteTime(uint64_t* at) { NoteLatest(at); }

__global__ void AddWaits(FetchClock* clocks, int64_t count) {
  for (int64_t i = threadIdx.x; i < count; i += blockDim.x) clocks[i].waited_ns += clocks[i].wait_ns();
}

}  // namespace

void CudaBackend::NoteArrived(Queue queue, FetchClock* clock) {
  NoteTime<<<1, 1, 0, context_->stream(queue)>>>(&clock->arrived_ns);
  CUDA_CHECK_LAUNCH();
}

void CudaBackend::NoteReady(Queue queue, FetchClock* clock) {
  NoteTime<<<1, 1, 0, context_->stream(queue)>>>(&clock->ready_ns);
  CUDA_CHECK_LAUNCH();
}

void CudaBackend::CountWaits(Queue queue, FetchClock* clocks, int64_t count) {
  AddWaits<<<1, 128, 0, context_->stream(queue)>>>(clocks, count);
  CUDA_CHECK_LAUNCH();
}

}  // namespace infinigen
