// Sums of the tail (kv/tail.h) over a chunk of rows, compiled once per SIMD target. Rows are in lanes; a chunk's sums
// cross lanes once, at its end.
#if defined(INFINIGEN_CPU_TAIL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef INFINIGEN_CPU_TAIL_INL_H_
#undef INFINIGEN_CPU_TAIL_INL_H_
#else
#define INFINIGEN_CPU_TAIL_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <limits>

#include "backend/cpu/select.h"
#include "backend/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace infinigen::HWY_NAMESPACE {

inline constexpr int64_t kUnitValues = SketchLayout::kInt4PerUnit;
inline constexpr int64_t kHeadsTogether = 8;  // query heads that share unpacked values

// One unit of a block's value sketches as numbers: out [kUnitValues][64].
HWY_INLINE void LoadValueUnit(const SketchLayout& layout, const std::byte* block, int64_t unit, float* out) {
  const DF d;
  const hn::RebindToSigned<DF> di;
  const auto* units = reinterpret_cast<const int32_t*>(block + layout.values_offset()) + unit * kSketchBlock;
  const auto* scales = reinterpret_cast<const BF16*>(block + layout.value_scales_offset());
  const auto nibble = hn::Set(di, 15), bias = hn::Set(di, 8);
  for (int64_t v = 0; v < kSketchBlock; v += kLanes) {
    // Memory of a row that has no sketch yet may hold anything; its weight is zero, so its number need only be finite.
    const VF stored = LoadF32(d, scales + v);
    const VF scale = hn::IfThenElseZero(hn::Le(hn::Abs(stored), hn::Set(d, std::numeric_limits<float>::max())), stored);
    auto low = hn::LoadU(di, units + v);
    auto high = hn::ShiftRight<4>(low);
    for (int64_t b = 0; b < 4; ++b) {
      const auto number = [&](auto bits) HWY_ATTR {
        return hn::Mul(hn::ConvertTo(d, hn::Sub(hn::And(bits, nibble), bias)), scale);
      };
      hn::Store(number(low), d, out + b * kSketchBlock + v);
      hn::Store(number(high), d, out + (4 + b) * kSketchBlock + v);
      low = hn::ShiftRight<8>(low);
      high = hn::ShiftRight<8>(high);
    }
  }
}

// Adds the weights e^{score − maximum} of a block's rows, and their values [kUnitValues][64], to sums per lane. Rows
// whose score is NaN have no weight.
struct TailLanes {
  HWY_ALIGN float weights[kMostLanes] = {};
  HWY_ALIGN float values[kUnitValues * kMostLanes] = {};

  HWY_INLINE void Add(const float* scores, float maximum, const float* block_values) {
    const DF d;
    const VF largest = hn::Set(d, maximum), log2e = hn::Set(d, 1.44269504089f);
    VF sum = hn::Load(d, weights), sums[kUnitValues];
    INFINIGEN_UNROLL for (int64_t i = 0; i < kUnitValues; ++i) sums[i] = hn::Load(d, values + i * kMostLanes);
    for (int64_t v = 0; v < kSketchBlock; v += kLanes) {
      const VF score = hn::Load(d, scores + v);
      const VF weight =
          hn::IfThenElseZero(hn::Eq(score, score), Exp2NonPositive(d, hn::Mul(hn::Sub(score, largest), log2e)));
      sum = hn::Add(sum, weight);
      INFINIGEN_UNROLL for (int64_t i = 0; i < kUnitValues; ++i) sums[i] =
          hn::MulAdd(weight, hn::Load(d, block_values + i * kSketchBlock + v), sums[i]);
    }
    hn::Store(sum, d, weights);
    INFINIGEN_UNROLL for (int64_t i = 0; i < kUnitValues; ++i) hn::Store(sums[i], d, values + i * kMostLanes);
  }
  static HWY_INLINE float Total(const float* lanes) { return hn::GetLane(hn::SumOfLanes(DF(), hn::Load(DF(), lanes))); }
};

// The largest score of one query head in a chunk; −inf if all are NaN.
HWY_INLINE float LargestScore(const float* scores, int64_t blocks, int64_t stride) {
  const DF d;
  VF best = hn::Set(d, -std::numeric_limits<float>::infinity());
  for (int64_t b = 0; b < blocks; ++b, scores += stride)
    for (int64_t v = 0; v < kSketchBlock; v += kLanes) best = hn::Max(hn::Load(d, scores + v), best);  // NaN: best
  return hn::GetLane(hn::MaxOfLanes(d, best));
}

// The tail of rows [first, last), which are one chunk, or its part that exists. scores [blocks][group][64] of these
// rows: NaN for selected rows and for rows without a score. parts [group][2 + value_dims].
inline void SumTailRows(const SketchLayout& layout, const std::byte* head, int64_t group, int64_t first, int64_t last,
                        const float* scores, float* parts) {
  const int64_t blocks = (last - first + kSketchBlock - 1) / kSketchBlock, stride = group * kSketchBlock;
  const int64_t floats = 2 + layout.value_dims;
  const std::byte* from = head + static_cast<size_t>(first / kSketchBlock) * layout.block_bytes();
  for (int64_t g = 0; g < group; ++g) {
    float* part = parts + g * floats;
    std::fill_n(part, floats, 0.0f);
    part[0] = LargestScore(scores + g * kSketchBlock, blocks, stride);
  }
  HWY_ALIGN float values[kUnitValues * kSketchBlock];
  for (int64_t unit = 0; unit < layout.value_units(); ++unit) {
    for (int64_t g0 = 0; g0 < group; g0 += kHeadsTogether) {
      TailLanes lanes[kHeadsTogether];
      const int64_t heads = std::min<int64_t>(kHeadsTogether, group - g0);
      for (int64_t b = 0; b < blocks; ++b) {
        LoadValueUnit(layout, from + static_cast<size_t>(b) * layout.block_bytes(), unit, values);
        for (int64_t g = 0; g < heads; ++g) {
          const float maximum = parts[(g0 + g) * floats];
          if (maximum == -std::numeric_limits<float>::infinity()) continue;
          lanes[g].Add(scores + b * stride + (g0 + g) * kSketchBlock, maximum, values);
        }
      }
      for (int64_t g = 0; g < heads; ++g) {
        float* part = parts + (g0 + g) * floats;
        part[1] = TailLanes::Total(lanes[g].weights);
        for (int64_t i = 0; i < kUnitValues; ++i)
          part[2 + unit * kUnitValues + i] = TailLanes::Total(lanes[g].values + i * kMostLanes);
      }
    }
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace infinigen::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
