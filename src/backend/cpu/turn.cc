// TurnHeads: the change of basis of int4 entries. kv/turn.h defines the arithmetic; the additions are the same here,
// so the bits are, too.
#include "kv/turn.h"

#include <algorithm>

#include "backend/cpu/cpu_backend.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/turn.cc"
#include <hwy/foreach_target.h>
// After foreach_target.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace infinigen::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The stages of halves 1, 2 and 4 for eight numbers.
HWY_INLINE void TurnEight(float* x) {
  float y[8];
  for (int i = 0; i < 8; i += 2) y[i] = x[i] + x[i + 1], y[i + 1] = x[i] - x[i + 1];
  for (int i = 0; i < 8; i += 4)
    for (int j = i; j < i + 2; ++j) x[j] = y[j] + y[j + 2], x[j + 2] = y[j] - y[j + 2];
  for (int i = 0; i < 4; ++i) y[i] = x[i] + x[i + 4], y[i + 4] = x[i] - x[i + 4];
  std::copy_n(y, 8, x);
}

// A run of at least 8 numbers.
void TurnLongRun(int64_t run, float* numbers) {
  const hn::CappedTag<float, 8> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t i = 0; i < run; i += 8) TurnEight(numbers + i);
  for (int64_t half = 8; half < run; half *= 2) {
    for (int64_t pair = 0; pair < run; pair += 2 * half) {
      for (int64_t i = pair; i < pair + half; i += lanes) {
        const auto a = hn::LoadU(d, numbers + i), b = hn::LoadU(d, numbers + half + i);
        hn::StoreU(hn::Add(a, b), d, numbers + i);
        hn::StoreU(hn::Sub(a, b), d, numbers + half + i);
      }
    }
  }
  const auto scale = hn::Set(d, TurnScale(run));
  for (int64_t i = 0; i < run; i += lanes) hn::StoreU(hn::Mul(hn::LoadU(d, numbers + i), scale), d, numbers + i);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace infinigen::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace infinigen {
namespace {

HWY_EXPORT(TurnLongRun);

void TurnOne(int64_t dim, float* head) {
  while (dim > 0) {
    const int64_t run = TurnRun(dim);
    if (run >= 8)
      HWY_DYNAMIC_DISPATCH(TurnLongRun)(run, head);
    else
      TurnHead({head, static_cast<size_t>(run)});
    dim -= run;
    head += run;
  }
}

}  // namespace

void CpuBackend::TurnHeads(Queue, const ConstTensor& x, int64_t head_dim, const Tensor& out) {
  CHECK(x.type == DType::kF32 && out.type == DType::kF32 && x.rows == out.rows && x.cols == out.cols);
  CHECK(head_dim > 0 && x.cols % head_dim == 0);
  ForRows(x.rows, 4 * x.cols, [&](int64_t first, int64_t count) {
    for (int64_t r = first; r < first + count; ++r) {
      if (out.as<float>(r) != x.as<float>(r)) std::copy_n(x.as<float>(r), x.cols, out.as<float>(r));
      for (int64_t head = 0; head < x.cols; head += head_dim) TurnOne(head_dim, out.as<float>(r) + head);
    }
  });
}

}  // namespace infinigen
#endif  // HWY_ONCE
