// The outputs of a product with block-quantised weights: which output of which projection a warp computes, and how it
// is stored. Private to backend/cuda.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/backend.h"
#include "backend/cuda/numbers.cuh"

namespace infinigen {

inline constexpr int kMostProjections = 4;  // of one launch

struct BlockProjection {
  const uint8_t* weight;  // [outputs][row_bytes]
  int64_t row_bytes;
  const float* bias;  // [outputs] or null
  std::byte* out;     // [rows][out_stride]
  int64_t out_stride;
  DType out_type;
  Epilogue epilogue;
  int outputs;
};
struct BlockCall {
  BlockProjection projections[kMostProjections];
  int count;
  int outputs;  // of all projections
};

template <class T>
__device__ void StoreAs(const BlockProjection& p, int64_t row, int64_t n, float sum) {
  T& target = reinterpret_cast<T*>(p.out)[row * p.out_stride + n];
  if (p.epilogue == Epilogue::kAdd) sum += AsFloat(target);
  if (p.epilogue == Epilogue::kRelu) sum = fmaxf(sum, 0.0f);
  target = FromFloat<T>(sum);
}
__device__ inline void StoreOutput(const BlockProjection& p, int64_t row, int64_t n, float sum) {
  if (p.bias != nullptr) sum += p.bias[n];
  if (p.out_type == DType::kF32) return StoreAs<float>(p, row, n, sum);
  p.out_type == DType::kF16 ? StoreAs<__half>(p, row, n, sum) : StoreAs<__nv_bfloat16>(p, row, n, sum);
}

// The outputs of one warp, of all projections of a call: its number among the warps of the grid, and every `step`
// outputs from there.
class Outputs {
 public:
  __device__ Outputs(const BlockCall& call, int first, int step) : call_(&call), n_(first), step_(step) { Locate(); }

  __device__ bool done() const { return which_ == call_->count; }
  __device__ const BlockProjection& projection() const { return call_->projections[which_]; }
  __device__ int n() const { return n_; }  // output of the projection
  __device__ const uint8_t* weights() const { return projection().weight + n_ * projection().row_bytes; }
  __device__ void Next() {
    n_ += step_;
    Locate();
  }

 private:
  __device__ void Locate() {
    while (which_ < call_->count && n_ >= call_->projections[which_].outputs)
      n_ -= call_->projections[which_++].outputs;
  }

  const BlockCall* call_;
  int n_, step_, which_ = 0;
};

}  // namespace infinigen
