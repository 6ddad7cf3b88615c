// RmsNorm and LayerNorm. The sums of a row use kLanes interleaved chains, merged by a fixed tree.
#include <cmath>

#include "backend/cpu/cpu_backend.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/norm.cc"
#include <hwy/foreach_target.h>
// After foreach_target.
#include <hwy/highway.h>

#include "backend/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace infinigen::HWY_NAMESPACE {

HWY_INLINE float SumOfRow(const float* x, int64_t n) {
  const DF d;
  VF sum = hn::Zero(d);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) sum = hn::Add(sum, hn::LoadU(d, x + i));
  if (i < n) sum = hn::Add(sum, LoadTail(d, x + i, n - i));
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

// Σ (x - mean)².
HWY_INLINE float SumOfSquares(const float* x, int64_t n, float mean) {
  const DF d;
  const VF shift = hn::Set(d, mean);
  VF sum = hn::Zero(d);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const VF v = hn::Sub(hn::LoadU(d, x + i), shift);
    sum = hn::MulAdd(v, v, sum);
  }
  if (i < n) {
    const auto inside = hn::FirstN(d, static_cast<size_t>(n - i));
    const VF v = hn::IfThenElseZero(inside, hn::Sub(LoadTail(d, x + i, n - i), shift));
    sum = hn::MulAdd(v, v, sum);
  }
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

void RmsNormRow(const float* x, const float* weight, int64_t n, float eps, float* out) {
  const DF d;
  const VF scale = hn::Set(d, 1.0f / std::sqrt(SumOfSquares(x, n, 0.0f) / static_cast<float>(n) + eps));
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    hn::StoreU(hn::Mul(hn::Mul(hn::LoadU(d, x + i), scale), hn::LoadU(d, weight + i)), d, out + i);
  if (i < n) {
    const VF v = hn::Mul(hn::Mul(LoadTail(d, x + i, n - i), scale), LoadTail(d, weight + i, n - i));
    StoreTail(d, v, out + i, n - i);
  }
}

void LayerNormRow(const float* x, const float* weight, const float* bias, int64_t n, float eps, float* out) {
  const DF d;
  const float mean = SumOfRow(x, n) / static_cast<float>(n);
  const VF shift = hn::Set(d, mean);
  const VF scale = hn::Set(d, 1.0f / std::sqrt(SumOfSquares(x, n, mean) / static_cast<float>(n) + eps));
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const VF v = hn::Mul(hn::Sub(hn::LoadU(d, x + i), shift), scale);
    hn::StoreU(hn::MulAdd(v, hn::LoadU(d, weight + i), hn::LoadU(d, bias + i)), d, out + i);
  }
  if (i < n) {
    const VF v = hn::Mul(hn::Sub(LoadTail(d, x + i, n - i), shift), scale);
    StoreTail(d, hn::MulAdd(v, LoadTail(d, weight + i, n - i), LoadTail(d, bias + i, n - i)), out + i, n - i);
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace infinigen::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace infinigen {
namespace {

HWY_EXPORT(RmsNormRow);
HWY_EXPORT(LayerNormRow);

}  // namespace

void CpuBackend::RmsNorm(Queue, const Tensor& x, const ConstTensor& weight, float eps, const Tensor& out) {
  CHECK(weight.type == DType::kF32 && weight.cols == x.cols && out.cols == x.cols && out.rows >= x.rows);
  ForRows(x.rows, x.cols, [&](int64_t first, int64_t count) {
    for (int64_t r = first; r < first + count; ++r)
      HWY_DYNAMIC_DISPATCH(RmsNormRow)(x.as<float>(r), weight.as<float>(), x.cols, eps, out.as<float>(r));
  });
}

void CpuBackend::LayerNorm(Queue, const Tensor& x, const ConstTensor& weight, const ConstTensor& bias, float eps,
                           const Tensor& out) {
  CHECK(weight.type == DType::kF32 && weight.cols == x.cols && out.cols == x.cols && out.rows >= x.rows);
  CHECK(bias.type == DType::kF32 && bias.cols == x.cols);
  ForRows(x.rows, x.cols, [&](int64_t first, int64_t count) {
    for (int64_t r = first; r < first + count; ++r) {
      HWY_DYNAMIC_DISPATCH(LayerNormRow)
      (x.as<float>(r), weight.as<float>(), bias.as<float>(), x.cols, eps, out.as<float>(r));
    }
  });
}

}  // namespace infinigen
#endif  // HWY_ONCE
