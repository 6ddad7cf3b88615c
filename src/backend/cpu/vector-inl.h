// Loads, stores, sums and exponentials shared by the CPU kernels, compiled once per SIMD target. Stored types are
// converted to f32 in registers, exactly.
#if defined(INFINIGEN_CPU_VECTOR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef INFINIGEN_CPU_VECTOR_INL_H_
#undef INFINIGEN_CPU_VECTOR_INL_H_
#else
#define INFINIGEN_CPU_VECTOR_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "tensor/dtype.h"

// Before a loop with a constant count: g++ does not unroll large bodies by itself, and then keeps arrays of vectors in
// memory instead of registers. The emulated target has no registers to keep them in, and would only compile more
// slowly.
#undef INFINIGEN_UNROLL
#if HWY_TARGET == HWY_EMU128
#define INFINIGEN_UNROLL _Pragma("GCC unroll 1")
#elif defined(__clang__)
#define INFINIGEN_UNROLL _Pragma("unroll")
#else
#define INFINIGEN_UNROLL _Pragma("GCC unroll 16")
#endif

HWY_BEFORE_NAMESPACE();
namespace infinigen::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using VF = hn::Vec<DF>;
using D4 = hn::Full128<float>;

inline constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(DF()));
inline constexpr int64_t kMostLanes = 16;  // of any target; block sizes are multiples of it

HWY_INLINE VF LoadF32(DF d, const float* p) { return hn::LoadU(d, p); }
HWY_INLINE VF LoadF32(DF d, const BF16* p) {
  const hn::Rebind<uint16_t, DF> d16;
  const hn::RebindToUnsigned<DF> d32;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, hn::LoadU(d16, reinterpret_cast<const uint16_t*>(p)))));
}
HWY_INLINE VF LoadF32(DF d, const F16* p) {
  const hn::Rebind<hwy::float16_t, DF> d16;
  return hn::PromoteTo(d, hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(p)));
}

// Elements [0, kLanes) and [kLanes, 2 kLanes) at p. Narrow types are read by one load of a whole vector (a cache line
// with AVX-512). From cache this is slower than two widening loads, but from memory it is one wait per line instead of
// two (measured on bf16 weights: 29 instead of 26 GB/s per core).
HWY_INLINE void LoadPair(DF d, const float* p, VF& low, VF& high) {
  low = hn::LoadU(d, p);
  high = hn::LoadU(d, p + kLanes);
}
HWY_INLINE void LoadPair(DF d, const BF16* p, VF& low, VF& high) {
  const hn::Repartition<uint16_t, DF> d16;
  const hn::Half<decltype(d16)> half;
  const hn::RebindToUnsigned<DF> d32;
  const auto both = hn::LoadU(d16, reinterpret_cast<const uint16_t*>(p));
  low = hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, hn::LowerHalf(half, both))));
  high = hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, hn::UpperHalf(half, both))));
}
HWY_INLINE void LoadPair(DF d, const F16* p, VF& low, VF& high) {
  const hn::Repartition<uint16_t, DF> d16;
  const hn::Half<decltype(d16)> half;
  const hn::Rebind<hwy::float16_t, DF> narrow;
  const auto both = hn::LoadU(d16, reinterpret_cast<const uint16_t*>(p));
  low = hn::PromoteTo(d, hn::BitCast(narrow, hn::LowerHalf(half, both)));
  high = hn::PromoteTo(d, hn::BitCast(narrow, hn::UpperHalf(half, both)));
}

HWY_INLINE void PrefetchL1(const void* p) { __builtin_prefetch(p, 0, 3); }
HWY_INLINE void PrefetchL2(const void* p) { __builtin_prefetch(p, 0, 2); }

// The last `count` < kLanes elements of a row; the other lanes are zero, and their memory is not touched.
template <class T>
HWY_INLINE VF LoadTail(DF d, const T* p, int64_t count) {
  HWY_ALIGN float lanes[kLanes] = {};
  for (int64_t i = 0; i < count; ++i) lanes[i] = ToFloat(p[i]);
  return hn::Load(d, lanes);
}
HWY_INLINE void StoreTail(DF d, VF v, float* p, int64_t count) {
  HWY_ALIGN float lanes[kLanes];
  hn::Store(v, d, lanes);
  std::copy_n(lanes, count, p);
}

// Sum over 128-bit blocks, halves first: a fixed tree.
template <class D>
HWY_INLINE hn::Vec<D4> SumBlocks(D d, hn::Vec<D> v) {
  if constexpr (hn::MaxLanes(D()) == 4) {
    (void)d;
    return v;
  } else {
    const hn::Half<D> half;
    return SumBlocks(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
}

// Maximum over 128-bit blocks, per lane.
template <class D>
HWY_INLINE hn::Vec<D4> MaxBlocks(D d, hn::Vec<D> v) {
  if constexpr (hn::MaxLanes(D()) == 4) {
    (void)d;
    return v;
  } else {
    const hn::Half<D> half;
    return MaxBlocks(half, hn::Max(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
}
// The largest lane of each of four vectors.
HWY_INLINE hn::Vec<D4> MaxLanesOfFour(DF d, VF a, VF b, VF c, VF e) {
  const hn::Repartition<uint64_t, DF> d64;
  const VF ab = hn::Max(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b));
  const VF ce = hn::Max(hn::InterleaveLower(d, c, e), hn::InterleaveUpper(d, c, e));
  const VF low = hn::BitCast(d, hn::InterleaveLower(d64, hn::BitCast(d64, ab), hn::BitCast(d64, ce)));
  const VF high = hn::BitCast(d, hn::InterleaveUpper(d64, hn::BitCast(d64, ab), hn::BitCast(d64, ce)));
  return MaxBlocks(d, hn::Max(low, high));
}

// {Σa, Σb, Σc, Σe}: the sums over the lanes of four vectors, all by the same fixed tree.
HWY_INLINE hn::Vec<D4> SumLanesOfFour(DF d, VF a, VF b, VF c, VF e) {
  const hn::Repartition<uint64_t, DF> d64;
  const VF ab = hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b));
  const VF ce = hn::Add(hn::InterleaveLower(d, c, e), hn::InterleaveUpper(d, c, e));
  const VF low = hn::BitCast(d, hn::InterleaveLower(d64, hn::BitCast(d64, ab), hn::BitCast(d64, ce)));
  const VF high = hn::BitCast(d, hn::InterleaveUpper(d64, hn::BitCast(d64, ab), hn::BitCast(d64, ce)));
  return SumBlocks(d, hn::Add(low, high));
}

// ---- exp and 2^x. Fixed polynomials, so that every path rounds alike: within 2 ulp if the result is a normal number;
// smaller results are zero. NaN stays NaN.

// 2^n for integral n in [-126, 127], by its exponent bits.
template <class D>
HWY_INLINE hn::Vec<D> PowerOfTwo(D d, hn::Vec<D> n) {
  const hn::RebindToSigned<D> di;
  return hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(hn::ConvertTo(di, n), hn::Set(di, 127))));
}

// 2^x for x <= 0, -inf included; 2^0 is exactly 1.
template <class D>
HWY_INLINE hn::Vec<D> Exp2NonPositive(D d, hn::Vec<D> x) {
  using V = hn::Vec<D>;
  // Adding 1.5 · 2^23 rounds to an integer, which is then in the low bits; adding 127 makes it a biased exponent.
  const hn::RebindToUnsigned<D> du;
  const V magic = hn::Set(d, 12582912.0f + 127.0f);
  const V shifted = hn::Add(x, magic);
  const V f = hn::Sub(x, hn::Sub(shifted, magic));  // [-0.5, 0.5]
  const V power = hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(du, shifted)));
  // Minimax polynomial of (2^f - 1) / f; relative error of the result 2e-9.
  V p = hn::Set(d, 1.535336188e-4f);
  p = hn::MulAdd(p, f, hn::Set(d, 1.339887442e-3f));
  p = hn::MulAdd(p, f, hn::Set(d, 9.618437358e-3f));
  p = hn::MulAdd(p, f, hn::Set(d, 5.550332471e-2f));
  p = hn::MulAdd(p, f, hn::Set(d, 0.2402264791f));
  p = hn::MulAdd(p, f, hn::Set(d, 0.6931472029f));
  p = hn::MulAdd(p, f, hn::Set(d, 1.0f));
  // Below -126 the power of two would be subnormal (and f is NaN for -inf): return zero.
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -126.0f)), hn::Mul(p, power));
}

HWY_INLINE VF Exp(DF d, VF x) {
  const VF n = hn::Round(hn::Mul(x, hn::Set(d, 1.44269504089f)));
  // x - n·ln 2 in two steps: the first constant has few bits, so its product with n is exact.
  VF r = hn::NegMulAdd(n, hn::Set(d, 0.693359375f), x);
  r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4f), r);
  // Minimax polynomial of (e^r - 1 - r) / r²; relative error of the result 3e-9.
  VF p = hn::Set(d, 1.381459847e-3f);
  p = hn::MulAdd(p, r, hn::Set(d, 8.368716887e-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 4.166838805e-2f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.1666652063f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.4999999345f));
  p = hn::Add(hn::MulAdd(p, hn::Mul(r, r), r), hn::Set(d, 1.0f));
  const VF y = hn::Mul(p, PowerOfTwo(d, n));
  const VF capped = hn::IfThenElse(hn::Gt(x, hn::Set(d, 88.3f)), hn::Set(d, std::numeric_limits<float>::infinity()), y);
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -87.3f)), capped);
}

// cap · tanh(x / cap); the error is below 1e-6 of the cap.
HWY_INLINE VF SoftCapped(DF d, VF x, float cap) {
  const VF t = Exp(d, hn::Mul(hn::Abs(x), hn::Set(d, -2.0f / cap))), one = hn::Set(d, 1.0f);
  return hn::CopySign(hn::Mul(hn::Set(d, cap), hn::Div(hn::Sub(one, t), hn::Add(one, t))), x);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace infinigen::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
