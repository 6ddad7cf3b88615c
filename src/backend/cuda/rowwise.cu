// Norms: one block per row. A row is read twice (the second time from the cache) and written once. Sums have a fixed
// order: within threads, within warps, over warps.
#include "backend/cuda/context.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/numbers.cuh"

namespace infinigen {
namespace {

constexpr int kRowwiseThreads = 512;

// Sum of one number per thread; all threads get it.
__device__ float BlockSum(float x) {
  __shared__ float parts[kRowwiseThreads / 32];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  x = WarpSum(x);
  __syncthreads();  // the parts of the previous sum have been read
  if (lane == 0) parts[warp] = x;
  __syncthreads();
  return WarpSum(lane < kRowwiseThreads / 32 ? parts[lane] : 0.0f);
}

template <class In, class Out>
__global__ void RmsNormRow(const In* x, int64_t x_stride, const float* weight, float eps, Out* out, int64_t out_stride,
                           int64_t cols) {
  x += blockIdx.x * x_stride;
  out += blockIdx.x * out_stride;
  float sum = 0;
  for (int64_t c = threadIdx.x; c < cols; c += kRowwiseThreads) {
    const float number = AsFloat(x[c]);
    sum += number * number;
  }
  const float factor = rsqrtf(BlockSum(sum) / static_cast<float>(cols) + eps);
  for (int64_t c = threadIdx.x; c < cols; c += kRowwiseThreads)
    out[c] = FromFloat<Out>(AsFloat(x[c]) * factor * weight[c]);
}

template <class In, class Out>
__global__ void LayerNormRow(const In* x, int64_t x_stride, const float* weight, const float* bias, float eps, Out* out,
                             int64_t out_stride, int64_t cols) {
  x += blockIdx.x * x_stride;
  out += blockIdx.x * out_stride;
  float sum = 0;
  for (int64_t c = threadIdx.x; c < cols; c += kRowwiseThreads) sum += AsFloat(x[c]);
  const float mean = BlockSum(sum) / static_cast<float>(cols);
  float squares = 0;  // deviations from the mean: no cancellation
  for (int64_t c = threadIdx.x; c < cols; c += kRowwiseThreads) {
    const float number = AsFloat(x[c]) - mean;
    squares += number * number;
  }
  const float factor = rsqrtf(BlockSum(squares) / static_cast<float>(cols) + eps);
  for (int64_t c = threadIdx.x; c < cols; c += kRowwiseThreads)
    out[c] = FromFloat<Out>((AsFloat(x[c]) - mean) * factor * weight[c] + bias[c]);
}

}  // namespace

void CudaBackend::RmsNorm(Queue queue, const Tensor& x, const ConstTensor& weight, float eps, const Tensor& out) {
  if (skipped_.compute) return;
  const ZoneClock::Scope timed(context_->zones, CudaZone::kRowwise, context_->stream(queue));
  CHECK(x.rows == out.rows && x.cols == out.cols && weight.cols == x.cols && weight.type == DType::kF32);
  DispatchDevice(x.type, [&](auto in) {
    DispatchDevice(out.type, [&](auto to) {
      using In = decltype(in);
      using Out = decltype(to);
      RmsNormRow<In, Out><<<static_cast<unsigned>(x.rows), kRowwiseThreads, 0, context_->stream(queue)>>>(
          reinterpret_cast<const In*>(x.data), x.stride, weight.as<float>(), eps, reinterpret_cast<Out*>(out.data),
          out.stride, x.cols);
    });
  });
  CUDA_CHECK_LAUNCH();
}

void CudaBackend::LayerNorm(Queue queue, const Tensor& x, const ConstTensor& weight, const ConstTensor& bias, float eps,
                            const Tensor& out) {
  if (skipped_.compute) return;
  const ZoneClock::Scope timed(context_->zones, CudaZone::kRowwise, context_->stream(queue));
  CHECK(x.rows == out.rows && x.cols == out.cols && weight.cols == x.cols && bias.cols == x.cols);
  DispatchDevice(x.type, [&](auto in) {
    DispatchDevice(out.type, [&](auto to) {
      using In = decltype(in);
      using Out = decltype(to);
      LayerNormRow<In, Out><<<static_cast<unsigned>(x.rows), kRowwiseThreads, 0, context_->stream(queue)>>>(
          reinterpret_cast<const In*>(x.data), x.stride, weight.as<float>(), bias.as<float>(), eps,
          reinterpret_cast<Out*>(out.data), out.stride, x.cols);
    });
  });
  CUDA_CHECK_LAUNCH();
}

}  // namespace infinigen
