// TurnHeads: the change of basis of int4 entries (kv/turn.h defines the arithmetic). One warp per head, which passes
// through shared memory, so the output may be the input. Numbers are f32 from the load to the final rounding.
#include "backend/cuda/context.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/numbers.cuh"
#include "kv/turn.h"

namespace infinigen {
namespace {

constexpr int kTurnWarps = 4;

template <class T>
__global__ void TurnKernel(const T* x, int64_t stride, T* out, int64_t out_stride, int64_t rows, int heads, int dim) {
  __shared__ float shared[kTurnWarps][kMaxHeadDim];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t item = int64_t{blockIdx.x} * kTurnWarps + warp, row = item / heads, column = item % heads * dim;
  if (row >= rows) return;
  float* numbers = shared[warp];
  for (int i = lane; i < dim; i += 32) numbers[i] = AsFloat(x[row * stride + column + i]);
  __syncwarp();
  for (int first = 0; first < dim;) {
    const int run = static_cast<int>(TurnRun(dim - first));
    for (int half = 1; half < run; half *= 2) {
      for (int pair = lane; pair < run / 2; pair += 32) {
        float* low = numbers + first + pair / half * 2 * half + pair % half;
        const float a = low[0], b = low[half];
        low[0] = a + b;
        low[half] = a - b;
      }
      __syncwarp();
    }
    const float scale = TurnScale(run);
    for (int i = first + lane; i < first + run; i += 32)
      out[row * out_stride + column + i] = FromFloat<T>(numbers[i] * scale);
    first += run;
  }
}

}  // namespace

void CudaBackend::TurnHeads(Queue queue, const ConstTensor& x, int64_t head_dim, const Tensor& out) {
  if (skipped_.compute) return;
  const ZoneClock::Scope timed(context_->zones, CudaZone::kRowwise, context_->stream(queue));
  CHECK(x.type == out.type && x.rows == out.rows && x.cols == out.cols);
  CHECK(head_dim > 0 && head_dim <= kMaxHeadDim && x.cols % head_dim == 0);
  const int64_t heads = x.cols / head_dim, items = x.rows * heads;
  if (items == 0) return;
  DispatchDevice(x.type, [&](auto of) {
    using T = decltype(of);
    TurnKernel<T>
        <<<static_cast<unsigned>((items + kTurnWarps - 1) / kTurnWarps), kTurnWarps * 32, 0, context_->stream(queue)>>>(
            reinterpret_cast<const T*>(x.data), x.stride, reinterpret_cast<T*>(out.data), out.stride, x.rows,
            static_cast<int>(heads), static_cast<int>(head_dim));
  });
  CUDA_CHECK_LAUNCH();
}

}  // namespace infinigen
