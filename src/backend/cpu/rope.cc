// RopeTable and Rope. The table is made once per step and used by every layer, so its cosines come from the C library:
// exact range reduction matters at position 131,071, speed does not.
#include <cmath>

#include "backend/cpu/cpu_backend.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/rope.cc"
#include <hwy/foreach_target.h>
// After foreach_target.
#include <hwy/highway.h>

#include "backend/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace infinigen::HWY_NAMESPACE {

// One head: halves (a, b) → (a·cos − b·sin, b·cos + a·sin).
void RotateHead(const float* cosines, const float* sines, int64_t half, float* head) {
  const DF d;
  int64_t i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    const VF a = hn::LoadU(d, head + i), b = hn::LoadU(d, head + half + i);
    const VF c = hn::LoadU(d, cosines + i), s = hn::LoadU(d, sines + i);
    hn::StoreU(hn::MulSub(a, c, hn::Mul(b, s)), d, head + i);
    hn::StoreU(hn::MulAdd(b, c, hn::Mul(a, s)), d, head + half + i);
  }
  if (const int64_t rest = half - i; rest > 0) {
    const VF a = LoadTail(d, head + i, rest), b = LoadTail(d, head + half + i, rest);
    const VF c = LoadTail(d, cosines + i, rest), s = LoadTail(d, sines + i, rest);
    StoreTail(d, hn::MulSub(a, c, hn::Mul(b, s)), head + i, rest);
    StoreTail(d, hn::MulAdd(b, c, hn::Mul(a, s)), head + half + i, rest);
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace infinigen::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace infinigen {
namespace {

HWY_EXPORT(RotateHead);

}  // namespace

void CpuBackend::RopeTable(Queue, const TokenBatch& batch, const ConstTensor& frequencies, const Tensor& table) {
  const int64_t half = frequencies.cols;
  CHECK(frequencies.type == DType::kF32 && table.cols == 2 * half && table.rows >= batch.count);
  ForRows(batch.count, 32 * half, [&](int64_t first, int64_t count) {
    for (int64_t t = first; t < first + count; ++t) {
      for (int64_t i = 0; i < half; ++i) {
        const float angle = static_cast<float>(batch.Position(t)) * frequencies.as<float>()[i];
        table.as<float>(t)[i] = std::cos(angle);
        table.as<float>(t)[half + i] = std::sin(angle);
      }
    }
  });
}

void CpuBackend::Rope(Queue, const ConstTensor& table, const Tensor& x) {
  const int64_t half = table.cols / 2;
  CHECK(x.cols % table.cols == 0 && table.rows >= x.rows);
  ForRows(x.rows, x.cols, [&](int64_t first, int64_t count) {
    for (int64_t t = first; t < first + count; ++t) {
      const float* cosines = table.as<float>(t);
      for (int64_t head = 0; head < x.cols; head += 2 * half)
        HWY_DYNAMIC_DISPATCH(RotateHead)(cosines, cosines + half, half, x.as<float>(t) + head);
    }
  });
}

}  // namespace infinigen
#endif  // HWY_ONCE
