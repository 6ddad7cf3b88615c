// exp and 2^x for vectors, our own so that every path rounds alike: fixed polynomials, within 2 ulp where the result is
// a normal number; smaller results are zero. NaN stays NaN.
#if defined(INFINIGEN_CPU_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef INFINIGEN_CPU_MATH_INL_H_
#undef INFINIGEN_CPU_MATH_INL_H_
#else
#define INFINIGEN_CPU_MATH_INL_H_
#endif

#include <hwy/highway.h>

#include <limits>

#include "backend/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace infinigen::HWY_NAMESPACE {

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
  // Adding 1.5 · 2^23 rounds to an integer, which is then in the low bits; 127 more makes it a biased exponent.
  const hn::RebindToUnsigned<D> du;
  const V magic = hn::Set(d, 12582912.0f + 127.0f);
  const V shifted = hn::Add(x, magic);
  const V f = hn::Sub(x, hn::Sub(shifted, magic));  // [-0.5, 0.5]
  const V power = hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(du, shifted)));
  // Minimax of (2^f - 1) / f, relative error of the whole 2e-9.
  V p = hn::Set(d, 1.535336188e-4f);
  p = hn::MulAdd(p, f, hn::Set(d, 1.339887442e-3f));
  p = hn::MulAdd(p, f, hn::Set(d, 9.618437358e-3f));
  p = hn::MulAdd(p, f, hn::Set(d, 5.550332471e-2f));
  p = hn::MulAdd(p, f, hn::Set(d, 0.2402264791f));
  p = hn::MulAdd(p, f, hn::Set(d, 0.6931472029f));
  p = hn::MulAdd(p, f, hn::Set(d, 1.0f));
  // Below -126 the power of two would be subnormal (and f is NaN for -inf): zero.
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -126.0f)), hn::Mul(p, power));
}

HWY_INLINE VF Exp(DF d, VF x) {
  const VF n = hn::Round(hn::Mul(x, hn::Set(d, 1.44269504089f)));
  // x - n·ln 2 in two steps: the first constant has few bits, so n times it is exact.
  VF r = hn::NegMulAdd(n, hn::Set(d, 0.693359375f), x);
  r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4f), r);
  // Minimax of (e^r - 1 - r) / r², relative error of the whole 3e-9.
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

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace infinigen::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
