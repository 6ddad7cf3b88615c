// Sums of the tail (kv/tail.h) over a chunk of rows, compiled once per SIMD target. Rows are in lanes; a chunk's sums
// cross lanes once, at its end. Two passes over the chunk, whose scores stay in L1: scores become weights, then weights
// multiply the numbers of values, which are unpacked once for all query heads. The means of blocks are multiplied by
// the sums of weights of their blocks.
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

inline constexpr int64_t kHalfValues = SketchLayout::kInt4PerUnit / 2;
inline constexpr int64_t kHeadsTogether = 4;  // query heads that share unpacked values: 16 sums stay in registers

// 2^x for x <= 0 by a polynomial of degree 4: within 3e-6, where sketches of 4 bits are wrong by percents. Zero for
// -inf and NaN, and below 2^-126.
HWY_INLINE VF TailPower(VF x) {
  const DF d;
  const hn::RebindToSigned<DF> di;
  // Adding 1.5 · 2^23 rounds to an integer, which is then in the low bits; shifted, it adds to an exponent.
  const VF magic = hn::Set(d, 12582912.0f), shifted = hn::Add(x, magic);
  const VF f = hn::Sub(x, hn::Sub(shifted, magic));  // [-0.5, 0.5]
  VF p = hn::Set(d, 9.582853792e-3f);
  p = hn::MulAdd(p, f, hn::Set(d, 5.590642784e-2f));
  p = hn::MulAdd(p, f, hn::Set(d, 0.2402409862f));
  p = hn::MulAdd(p, f, hn::Set(d, 0.6931241930f));
  p = hn::MulAdd(p, f, hn::Set(d, 1.0f));
  const auto power = hn::Add(hn::BitCast(di, p), hn::ShiftLeft<23>(hn::BitCast(di, shifted)));
  return hn::IfThenElseZero(hn::Ge(x, hn::Set(d, -126.0f)), hn::BitCast(d, power));
}

// The number in the low four bits of each lane.
HWY_INLINE VF LowNumber(hn::Vec<hn::RebindToSigned<DF>> bits) {
#if HWY_TARGET == HWY_AVX3
  // The lookup reads no other bits of an index.
  const __m512 numbers = _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
  return VF{_mm512_permutexvar_ps(bits.raw, numbers)};
#else
  const hn::RebindToSigned<DF> di;
  return hn::ConvertTo(DF(), hn::Sub(hn::And(bits, hn::Set(di, 15)), hn::Set(di, 8)));
#endif
}

// The largest score of one query head in a chunk; −inf if all are NaN.
HWY_INLINE float LargestScore(const float* scores, int64_t blocks, int64_t stride) {
  const DF d;
  VF best = hn::Set(d, -std::numeric_limits<float>::infinity());
  for (int64_t b = 0; b < blocks; ++b, scores += stride)
    for (int64_t v = 0; v < kSketchBlock; v += kLanes) best = hn::Max(hn::Load(d, scores + v), best);  // NaN: best
  return hn::GetLane(hn::MaxOfLanes(d, best));
}

// `count` numbers of a block's mean, without its scale.
HWY_INLINE VF LoadMean(const int8_t* numbers, int64_t count) {
  const DF d;
  if (count < kLanes) {
    HWY_ALIGN float lanes[kLanes] = {};
    for (int64_t i = 0; i < count; ++i) lanes[i] = static_cast<float>(numbers[i]);
    return hn::Load(d, lanes);
  }
  const hn::RebindToSigned<DF> di;
  const hn::Rebind<int8_t, DF> d8;
  return hn::ConvertTo(d, hn::PromoteTo(di, hn::LoadU(d8, numbers)));
}

// Some query heads of one chunk.
struct TailChunk {
  const SketchLayout& layout;
  const std::byte* from;  // the chunk's first block
  int64_t blocks;
  int64_t complete;  // the first blocks, which have a mean
  float* scores;     // [blocks][group][64] of the first of these query heads
  int64_t stride;    // floats from block to block
  float* parts;      // [heads][floats]
  int64_t floats;

  const std::byte* Block(int64_t b) const { return from + static_cast<size_t>(b) * layout.block_bytes(); }
};

// Replaces scores by weight · scale of the value, where weight = e^{score − maximum}, and sums the weights.
// block_sums [blocks][kHeads]: the sums of each block.
template <int kHeads>
HWY_INLINE void WeighRows(const TailChunk& chunk, float* block_sums) {
  const DF d;
  const VF log2e = hn::Set(d, 1.44269504089f);
  VF largest[kHeads], sums[kHeads];
  INFINIGEN_UNROLL for (int h = 0; h < kHeads; ++h) {
    chunk.parts[h * chunk.floats] = LargestScore(chunk.scores + h * kSketchBlock, chunk.blocks, chunk.stride);
    largest[h] = hn::Set(d, chunk.parts[h * chunk.floats]);
    sums[h] = hn::Zero(d);
  }
  const size_t value_bytes = chunk.layout.block_bytes() - chunk.layout.values_offset();
  for (int64_t b = 0; b < chunk.blocks; ++b) {
    const std::byte* block = chunk.Block(b);
    // The same block of the next chunk: the hardware does not predict the distance between the values of blocks.
    const std::byte* ahead = chunk.Block(b + kTailChunk / kSketchBlock) + chunk.layout.values_offset();
    for (size_t byte = 0; byte < value_bytes; byte += 64) PrefetchL2(ahead + byte);
    const auto* scales = reinterpret_cast<const BF16*>(block + chunk.layout.value_scales_offset());
    VF before[kHeads];
    INFINIGEN_UNROLL for (int h = 0; h < kHeads; ++h) before[h] = sums[h], sums[h] = hn::Zero(d);
    for (int64_t v = 0; v < kSketchBlock; v += kLanes) {
      // Memory of a row that has no sketch yet may hold anything; its weight is zero, so its scale need only be finite.
      const VF stored = LoadF32(d, scales + v);
      const VF scale =
          hn::IfThenElseZero(hn::Le(hn::Abs(stored), hn::Set(d, std::numeric_limits<float>::max())), stored);
      INFINIGEN_UNROLL for (int h = 0; h < kHeads; ++h) {
        float* at = chunk.scores + b * chunk.stride + h * kSketchBlock + v;
        const VF weight = TailPower(hn::Mul(hn::Sub(hn::Load(d, at), largest[h]), log2e));
        sums[h] = hn::Add(sums[h], weight);
        hn::Store(hn::Mul(weight, scale), d, at);
      }
    }
    INFINIGEN_UNROLL for (int h = 0; h < kHeads; ++h) {
      if (b < chunk.complete) block_sums[b * kHeads + h] = hn::GetLane(hn::SumOfLanes(d, sums[h]));
      sums[h] = hn::Add(before[h], sums[h]);
    }
  }
  INFINIGEN_UNROLL for (int h = 0; h < kHeads; ++h) chunk.parts[h * chunk.floats + 1] =
      hn::GetLane(hn::SumOfLanes(d, sums[h]));
}

// Sums the numbers of half a unit of values: those in the low or in the high halves of the unit's bytes.
template <int kHeads, bool kHigh>
HWY_INLINE void SumHalfUnit(const TailChunk& chunk, int64_t unit) {
  const DF d;
  const hn::RebindToSigned<DF> di;
  VF sums[kHeads][kHalfValues];
  INFINIGEN_UNROLL for (int h = 0; h < kHeads; ++h) INFINIGEN_UNROLL for (int64_t i = 0; i < kHalfValues; ++i)
      sums[h][i] = hn::Zero(d);
  for (int64_t b = 0; b < chunk.blocks; ++b) {
    const auto* units =
        reinterpret_cast<const int32_t*>(chunk.Block(b) + chunk.layout.values_offset()) + unit * kSketchBlock;
    const float* weights = chunk.scores + b * chunk.stride;
    for (int64_t v = 0; v < kSketchBlock; v += kLanes) {
      auto bits = hn::LoadU(di, units + v);
      if constexpr (kHigh) bits = hn::ShiftRight<4>(bits);
      VF weight[kHeads];
      INFINIGEN_UNROLL for (int h = 0; h < kHeads; ++h) weight[h] = hn::Load(d, weights + h * kSketchBlock + v);
      INFINIGEN_UNROLL for (int64_t i = 0; i < kHalfValues; ++i) {
        const VF number = LowNumber(bits);
        bits = hn::ShiftRight<8>(bits);
        INFINIGEN_UNROLL for (int h = 0; h < kHeads; ++h) sums[h][i] = hn::MulAdd(weight[h], number, sums[h][i]);
      }
    }
  }
  INFINIGEN_UNROLL for (int h = 0; h < kHeads; ++h) {
    float* to = chunk.parts + h * chunk.floats + 2 + unit * 2 * kHalfValues + (kHigh ? kHalfValues : 0);
    INFINIGEN_UNROLL for (int64_t i = 0; i < kHalfValues; ++i) to[i] = hn::GetLane(hn::SumOfLanes(d, sums[h][i]));
  }
}

// Sums the means of the chunk's complete blocks, a vector of dimensions at a time.
template <int kHeads>
HWY_INLINE void SumMeans(const TailChunk& chunk, float* block_sums) {
  const DF d;
  const SketchLayout& layout = chunk.layout;
  for (int64_t b = 0; b < chunk.complete; ++b) {
    const float scale = ToFloat(*reinterpret_cast<const BF16*>(chunk.Block(b) + layout.mean_scale_offset()));
    INFINIGEN_UNROLL for (int h = 0; h < kHeads; ++h) block_sums[b * kHeads + h] *= scale;
  }
  for (int64_t i = 0; i < layout.mean_dims; i += kLanes) {
    const int64_t count = std::min<int64_t>(kLanes, layout.mean_dims - i);
    VF sums[kHeads];
    INFINIGEN_UNROLL for (int h = 0; h < kHeads; ++h) sums[h] = hn::Zero(d);
    for (int64_t b = 0; b < chunk.complete; ++b) {
      const auto* mean = reinterpret_cast<const int8_t*>(chunk.Block(b) + layout.means_offset()) + i;
      const VF number = LoadMean(mean, count);
      INFINIGEN_UNROLL for (int h = 0; h < kHeads; ++h) sums[h] =
          hn::MulAdd(hn::Set(d, block_sums[b * kHeads + h]), number, sums[h]);
    }
    INFINIGEN_UNROLL for (int h = 0; h < kHeads; ++h) {
      float* to = chunk.parts + h * chunk.floats + 2 + layout.value_dims + i;
      if (count == kLanes)
        hn::StoreU(sums[h], d, to);
      else
        StoreTail(d, sums[h], to, count);
    }
  }
}

template <int kHeads>
HWY_NOINLINE void SumTailHeads(const TailChunk& chunk) {
  float block_sums[kTailBlocks * kHeads];
  WeighRows<kHeads>(chunk, block_sums);
  SumMeans<kHeads>(chunk, block_sums);
  for (int64_t unit = 0; unit < chunk.layout.value_units(); ++unit) {
    SumHalfUnit<kHeads, false>(chunk, unit);
    SumHalfUnit<kHeads, true>(chunk, unit);
  }
}

// The tail of rows [first, last), which are one chunk, or its part that exists. scores [blocks][group][64] of these
// rows: NaN for selected rows and for rows without a score; overwritten. Blocks before row `complete` have a mean.
// parts [group][2 + value_dims + mean_dims].
inline void SumTailRows(const SketchLayout& layout, const std::byte* head, int64_t group, int64_t first, int64_t last,
                        int64_t complete, float* scores, float* parts) {
  const int64_t floats = 2 + layout.value_dims + layout.mean_dims;
  const int64_t blocks = (last - first + kSketchBlock - 1) / kSketchBlock;
  for (int64_t g = 0; g < group; g += kHeadsTogether) {
    const TailChunk chunk{.layout = layout,
                          .from = head + static_cast<size_t>(first / kSketchBlock) * layout.block_bytes(),
                          .blocks = blocks,
                          .complete = std::clamp<int64_t>((complete - first) / kSketchBlock, 0, blocks),
                          .scores = scores + g * kSketchBlock,
                          .stride = group * kSketchBlock,
                          .parts = parts + g * floats,
                          .floats = floats};
    switch (group - g) {
      case 1:
        SumTailHeads<1>(chunk);
        break;
      case 2:
        SumTailHeads<2>(chunk);
        break;
      case 3:
        SumTailHeads<3>(chunk);
        break;
      default:
        SumTailHeads<kHeadsTogether>(chunk);
        break;
    }
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace infinigen::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
