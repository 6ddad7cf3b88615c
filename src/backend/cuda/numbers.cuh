// Conversions between stored types and f32 on the device, and sums across a warp or block. Private to backend/cuda.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "base/check.h"
#include "tensor/dtype.h"

namespace infinigen {

// Calls f with the C++ element type that kernels use for a DType.
template <class F>
decltype(auto) DispatchDevice(DType type, F&& f) {
  switch (type) {
    case DType::kF32:
      return f(float{});
    case DType::kF16:
      return f(__half{});
    case DType::kBF16:
      return f(__nv_bfloat16{});
  }
  CHECK(false);
}

// cap · tanh(score / cap)
__device__ inline float SoftCapped(float score, float cap) { return cap * tanhf(score / cap); }

__device__ inline float AsFloat(float x) { return x; }
__device__ inline float AsFloat(__half x) { return __half2float(x); }
__device__ inline float AsFloat(__nv_bfloat16 x) { return __bfloat162float(x); }

template <class T>
__device__ inline T FromFloat(float x);
template <>
__device__ inline float FromFloat<float>(float x) {
  return x;
}
template <>
__device__ inline __half FromFloat<__half>(float x) {
  return __float2half_rn(x);
}
template <>
__device__ inline __nv_bfloat16 FromFloat<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}

// Sums in a fixed order, so that the same numbers give the same result. All lanes get it.
__device__ inline float WarpSum(float x) {
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}
__device__ inline float WarpMax(float x) {
  for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
  return x;
}

}  // namespace infinigen
