// Scores of sketches, compiled once per SIMD target: rows are in lanes, no sum crosses lanes. Integer types use exact
// integer sums, bf16 a chain of fused multiply-adds, ascending (kv/index.h).
#if defined(INFINIGEN_CPU_SKETCH_SCORE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef INFINIGEN_CPU_SKETCH_SCORE_INL_H_
#undef INFINIGEN_CPU_SKETCH_SCORE_INL_H_
#else
#define INFINIGEN_CPU_SKETCH_SCORE_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>

#include "backend/cpu/select.h"
#include "backend/cpu/sketch_query.h"
#include "backend/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace infinigen::HWY_NAMESPACE {

using DI = hn::RebindToSigned<DF>;
using VI = hn::Vec<DI>;
using DW = hn::RebindToUnsigned<DF>;

// Per 32-bit lane: low half · low half + high half · high half, signed.
HWY_INLINE VI MulPairs(VI a, VI b) {
#if HWY_TARGET == HWY_AVX3
  return VI{_mm512_madd_epi16(a.raw, b.raw)};
#elif HWY_TARGET == HWY_AVX2
  return VI{_mm256_madd_epi16(a.raw, b.raw)};
#else
  const auto low = [](VI v) { return hn::ShiftRight<16>(hn::ShiftLeft<16>(v)); };
  return hn::Add(hn::Mul(low(a), low(b)), hn::Mul(hn::ShiftRight<16>(a), hn::ShiftRight<16>(b)));
#endif
}

// The scales of kLanes rows, of one group of numbers.
HWY_INLINE VF LoadScales(const SketchLayout& layout, const std::byte* block, int64_t group, int64_t row) {
  return LoadF32(DF(), reinterpret_cast<const BF16*>(block + layout.scales_offset()) + group * kSketchBlock + row);
}

HWY_INLINE VI LoadUnits(const std::byte* block, int64_t unit, int64_t row) {
  return hn::LoadU(DI(), reinterpret_cast<const int32_t*>(block) + unit * kSketchBlock + row);
}

// Multiplies one unit's four (or eight) stored numbers with kHeads queries.
template <int kHeads>
HWY_INLINE void AddQuad(VI bytes, const int32_t* pairs, VI (&sums)[kHeads]) {
  const VI mask = hn::Set(DI(), 0x00ff00ff);
  const VI even = hn::And(bytes, mask), odd = hn::And(hn::ShiftRight<8>(bytes), mask);
  INFINIGEN_UNROLL for (int h = 0; h < kHeads; ++h) {
    sums[h] = hn::Add(sums[h], MulPairs(even, hn::Set(DI(), pairs[2 * h])));
    sums[h] = hn::Add(sums[h], MulPairs(odd, hn::Set(DI(), pairs[2 * h + 1])));
  }
}

// Query heads [first, first + kHeads) against one block of an integer type.
template <int kHeads, SketchType kType>
HWY_NOINLINE void ScoreIntegers(const SketchQuery& q, int64_t first, const std::byte* block, float* scores) {
  const DI d;
  const int64_t units = q.layout.units(), group_units = q.layout.group_dims() / q.layout.per_unit();
  for (int64_t row = 0; row < kSketchBlock; row += kLanes) {
    const int32_t* pairs = q.pairs + 2 * first;
    for (int64_t group = 0, unit = 0; unit < units; ++group) {
      VI sums[kHeads];
      INFINIGEN_UNROLL for (int h = 0; h < kHeads; ++h) sums[h] = hn::Set(d, -q.bias[group * q.group + first + h]);
      for (const int64_t end = std::min(unit + group_units, units); unit < end; ++unit) {
        const VI stored = LoadUnits(block, unit, row);
        if constexpr (kType == SketchType::kInt8) {
          AddQuad<kHeads>(stored, pairs, sums);
          pairs += 2 * q.group;
        } else {
          const VI mask = hn::Set(d, 0x0f0f0f0f);
          AddQuad<kHeads>(hn::And(stored, mask), pairs, sums);
          AddQuad<kHeads>(hn::And(hn::ShiftRight<4>(stored), mask), pairs + 2 * q.group, sums);
          pairs += 4 * q.group;
        }
      }
      const VF scales = LoadScales(q.layout, block, group, row);
      INFINIGEN_UNROLL for (int h = 0; h < kHeads; ++h) {
        float* score = scores + (first + h) * kScoreBlock + row;
        const VF part = hn::Mul(hn::Mul(hn::ConvertTo(DF(), sums[h]), hn::Set(DF(), q.scale[first + h])), scales);
        hn::Store(group == 0 ? part : hn::Add(hn::Load(DF(), score), part), DF(), score);
      }
    }
  }
}

template <int kHeads>
HWY_NOINLINE void ScoreBf16(const SketchQuery& q, int64_t first, const std::byte* block, float* scores) {
  const DF d;
  // Two vectors of rows hide part of the latency of multiply-adds.
  constexpr int64_t kStep = std::min(2 * kLanes, kSketchBlock), kVectors = kStep / kLanes;
  const float* numbers = q.numbers + first * q.layout.dims;
  for (int64_t row = 0; row < kSketchBlock; row += kStep) {
    VF sums[kHeads][kVectors];
    INFINIGEN_UNROLL for (int h = 0; h < kHeads; ++h) INFINIGEN_UNROLL for (int64_t v = 0; v < kVectors; ++v)
        sums[h][v] = hn::Zero(d);
    for (int64_t unit = 0; unit < q.layout.units(); ++unit) {
      VF even[kVectors], odd[kVectors];
      INFINIGEN_UNROLL for (int64_t v = 0; v < kVectors; ++v) {
        const VI units = LoadUnits(block, unit, row + v * kLanes);
        even[v] = hn::BitCast(d, hn::ShiftLeft<16>(units));
        odd[v] = hn::BitCast(d, hn::And(hn::BitCast(DW(), units), hn::Set(DW(), 0xffff0000u)));
      }
      INFINIGEN_UNROLL for (int h = 0; h < kHeads; ++h) {
        const VF a = hn::Set(d, numbers[h * q.layout.dims + 2 * unit]);
        const VF b = hn::Set(d, numbers[h * q.layout.dims + 2 * unit + 1]);
        INFINIGEN_UNROLL for (int64_t v = 0; v < kVectors; ++v) {
          sums[h][v] = hn::MulAdd(a, even[v], sums[h][v]);
          sums[h][v] = hn::MulAdd(b, odd[v], sums[h][v]);
        }
      }
    }
    INFINIGEN_UNROLL for (int h = 0; h < kHeads; ++h) INFINIGEN_UNROLL for (int64_t v = 0; v < kVectors; ++v)
        hn::Store(sums[h][v], d, scores + (first + h) * kScoreBlock + row + v * kLanes);
  }
}

template <int kHeads>
HWY_INLINE void ScoreHeads(const SketchQuery& q, int64_t first, const std::byte* block, float* scores) {
  switch (q.layout.type) {
    case SketchType::kBF16:
      return ScoreBf16<kHeads>(q, first, block, scores);
    case SketchType::kInt8:
      return ScoreIntegers<kHeads, SketchType::kInt8>(q, first, block, scores);
    case SketchType::kInt4:
      return ScoreIntegers<kHeads, SketchType::kInt4>(q, first, block, scores);
  }
}

// Scores [group][64] of one block. Scores past the last row are undefined.
HWY_INLINE void ScoreBlock(const SketchQuery& q, const std::byte* block, bool vnni, float* scores) {
  if (vnni && q.layout.has_scales()) return ScoreBlockVnni(q, block, scores);
  int64_t first = 0;
  for (; first + 4 <= q.group; first += 4) ScoreHeads<4>(q, first, block, scores);
  switch (q.group - first) {
    case 3:
      return ScoreHeads<3>(q, first, block, scores);
    case 2:
      return ScoreHeads<2>(q, first, block, scores);
    case 1:
      return ScoreHeads<1>(q, first, block, scores);
    default:
      return;
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace infinigen::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
