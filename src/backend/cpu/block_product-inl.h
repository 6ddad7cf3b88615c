// Kernels of block_product.h, included once per instruction set by block_kernels.cc, which defines
//   INFINIGEN_ISA_NAMESPACE   the namespace of this copy
//   INFINIGEN_HAS_VNNI        1: dot products of bytes by one instruction
//   INFINIGEN_HAS_AVX512      1: vectors of 512 bits in the panel kernel
// and sets the compiler's target. No header may be included here: its inline functions would be compiled for the
// target.
namespace infinigen {
namespace INFINIGEN_ISA_NAMESPACE {

#include "backend/cpu/block_load-inl.h"

// ---- Integer sums

// Eight sums of four products: unsigned (or, if kSigned, signed) weights times signed activations.
template <bool kSigned>
INFINIGEN_INLINE __m256i DotAdd(__m256i sum, __m256i weights, __m256i x) {
#if INFINIGEN_HAS_VNNI
  static_assert(!kSigned);
#if INFINIGEN_HAS_AVX512
  return _mm256_dpbusd_epi32(sum, weights, x);
#else
  return _mm256_dpbusd_avx_epi32(sum, weights, x);
#endif
#else
  const __m256i pairs = kSigned ? _mm256_maddubs_epi16(_mm256_abs_epi8(weights), _mm256_sign_epi8(x, weights))
                                : _mm256_maddubs_epi16(weights, x);
  return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
#endif
}

// The sum over the eight lanes of each of eight vectors.
INFINIGEN_INLINE __m256i SumLanes(const __m256i (&v)[8]) {
  const __m256i a = _mm256_hadd_epi32(_mm256_hadd_epi32(v[0], v[1]), _mm256_hadd_epi32(v[2], v[3]));
  const __m256i b = _mm256_hadd_epi32(_mm256_hadd_epi32(v[4], v[5]), _mm256_hadd_epi32(v[6], v[7]));
  return _mm256_add_epi32(_mm256_permute2x128_si256(a, b, 0x20), _mm256_permute2x128_si256(a, b, 0x31));
}
// [even halves | odd halves] of 16 int16.
INFINIGEN_INLINE __m256i SplitHalves(__m256i v) {
  const __m256i order =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
  return _mm256_permute4x64_epi64(_mm256_shuffle_epi8(v, order), 0xd8);
}

// The terms of eight groups for one row of activations (block_product.h).
template <class L>
INFINIGEN_INLINE __m256 Terms(const Chunk& chunk, const int8_t* codes, const float* scales, const float* weighted,
                              const int16_t* half_sums) {
  __m256i sums[8];
  if constexpr (L::kHalves) {
    const __m256i split = SplitHalves(chunk.multiplier);
    INFINIGEN_BLOCK_UNROLL for (int g = 0; g < 8; ++g) {
      const __m256i high = _mm256_maddubs_epi16(chunk.codes[g], Load256(codes + g * 32));
      const __m256i low = _mm256_maddubs_epi16(chunk.codes[g], Load256(codes + kChunkNumbers + g * 32));
      const __m256i both = _mm256_shuffle_epi8(split, _mm256_set1_epi16(static_cast<int16_t>(0x100 + 0x202 * g)));
      sums[g] = _mm256_add_epi32(_mm256_slli_epi32(_mm256_madd_epi16(high, both), 4), _mm256_madd_epi16(low, both));
    }
  } else {
    INFINIGEN_BLOCK_UNROLL for (int g = 0; g < 8; ++g) {
      const __m256i high = DotAdd<L::kSigned>(_mm256_setzero_si256(), chunk.codes[g], Load256(codes + g * 32));
      sums[g] = DotAdd<L::kSigned>(_mm256_slli_epi32(high, 4), chunk.codes[g], Load256(codes + kChunkNumbers + g * 32));
    }
  }
  __m256i sum = SumLanes(sums);
  const __m256i halves = Load256(half_sums);
  if constexpr (L::kBias != 0) {
    const __m256i factor = L::kHalves ? chunk.multiplier : _mm256_set1_epi16(1);
    const __m256i activations = _mm256_madd_epi16(factor, halves);
    sum = _mm256_sub_epi32(sum, _mm256_mullo_epi32(activations, _mm256_set1_epi32(L::kBias)));
  }
  const __m256 scale = _mm256_loadu_ps(scales);
  const __m256 scaled = _mm256_mul_ps(scale, _mm256_cvtepi32_ps(sum));
  if constexpr (!L::kOffsets) return _mm256_mul_ps(chunk.scale, scaled);
  const __m256 all = L::kHalves
                         ? _mm256_mul_ps(scale, _mm256_cvtepi32_ps(_mm256_madd_epi16(chunk.offset_multiplier, halves)))
                         : _mm256_loadu_ps(weighted);
  return _mm256_fmadd_ps(chunk.scale, scaled, _mm256_mul_ps(chunk.offset, all));
}

// ---- Loads at the end of a row

// Chunks of one row of weights. The last chunk of a row may be short (32 numbers a block); the scales of the missing
// groups are zero. It is read in place, with bytes of the next row, except in the last row of the matrix.
template <class L>
struct RowChunks {
  static constexpr int64_t kStep = L::kBytes * (kChunkNumbers / L::kNumbers);
  RowChunks(const WeightView& weight, int64_t n) : at(weight.row(n)), whole(weight.cols / kChunkNumbers) {
    const int64_t blocks = weight.cols / L::kNumbers - whole * (kChunkNumbers / L::kNumbers);
    if (L::kNumbers == kChunkNumbers || blocks == 0) return;
    static constexpr int32_t kMask[16] = {-1, -1, -1, -1, -1, -1, -1, -1};
    mask = Load256(kMask + 8 - blocks);
    if (n + 1 < weight.rows && weight.row_bytes >= kStep) return;
    std::memset(buffer, 0, sizeof(buffer));
    std::memcpy(buffer, at + whole * kStep, static_cast<size_t>(blocks * L::kBytes));
    copied = true;
  }
  INFINIGEN_INLINE Chunk Load(int64_t c) const {
    if (L::kNumbers == kChunkNumbers || c < whole) return L::Load(at + c * kStep);
    Chunk chunk = L::Load(copied ? buffer : at + c * kStep);
    const __m256 kept = _mm256_castsi256_ps(mask);
    chunk.scale = _mm256_and_ps(chunk.scale, kept);
    if constexpr (L::kOffsets) chunk.offset = _mm256_and_ps(chunk.offset, kept);
    return chunk;
  }

  const std::byte* at;
  int64_t whole;  // chunks
  bool copied = false;
  __m256i mask;
  std::byte buffer[L::kNumbers == kChunkNumbers ? 1 : kStep];
};

// ---- Few rows

// Outputs whose lanes are added together.
inline constexpr int64_t kFoldedOuts = 16;

// sums[o] = the sum over the lanes of output o, four outputs at a time.
INFINIGEN_INLINE void FoldLanes(const float (&lanes)[kFoldedOuts][8], int64_t count, float* sums) {
  for (int64_t o = 0; o < count; o += 4) {
    const __m256 a = _mm256_hadd_ps(_mm256_load_ps(lanes[o]), _mm256_load_ps(lanes[o + 1]));
    const __m256 b = _mm256_hadd_ps(_mm256_load_ps(lanes[o + 2]), _mm256_load_ps(lanes[o + 3]));
    const __m256 both = _mm256_hadd_ps(a, b);
    _mm_storeu_ps(sums + o, _mm_add_ps(_mm256_castps256_ps128(both), _mm256_extractf128_ps(both, 1)));
  }
}

// Prefetches what the same stream of weights reads next, also past the end of a task, where a prefetch costs little and
// never faults. Weights are read once in a step and do not fit the caches, so the lines are marked as such: on Zen 4
// they then stay out of L2 and L3, which would evict something for each of them. From memory of 24 GB/s (a plain read
// loop, two threads) q4_k came at 32 GB/s this way and at 23 with lines for all levels, q6_k at 34 and 25, q8_0 at 32
// and 26; 4 KB ahead is as good as 6, 16 KB is worse.
template <class L>
INFINIGEN_INLINE void PrefetchWeights(const std::byte* chunk) {
  INFINIGEN_BLOCK_UNROLL for (int64_t line = 0; line < RowChunks<L>::kStep; line += 64)
      __builtin_prefetch(chunk + 6144 + line, 0, 0);
}

template <class L, int kRows>
void DirectRows(const BlockActivations& x, int64_t first_row, const Projection& p, int64_t begin, int64_t end) {
  alignas(32) float lanes[kRows][kFoldedOuts][8] = {};
  float sums[kFoldedOuts];
  const int8_t* codes = x.codes + first_row * x.chunks * kChunkCodes;
  const float* scales = x.scales + first_row * x.chunks * kChunkGroups;
  const float* weighted = x.weighted + first_row * x.chunks * kChunkGroups;
  const int16_t* half_sums = x.half_sums + first_row * x.chunks * 2 * kChunkGroups;
  for (int64_t n = begin; n < end; ++n) {
    const RowChunks<L> row(p.weight, n);
    __m256 acc[kRows];
    INFINIGEN_BLOCK_UNROLL for (int r = 0; r < kRows; ++r) acc[r] = _mm256_setzero_ps();
    for (int64_t c = 0; c < x.chunks; ++c) {
      PrefetchWeights<L>(row.at + c * RowChunks<L>::kStep);
      const Chunk chunk = row.Load(c);
      INFINIGEN_BLOCK_UNROLL for (int r = 0; r < kRows; ++r) {
        const int64_t at = r * x.chunks + c;
        acc[r] = _mm256_add_ps(acc[r], Terms<L>(chunk, codes + at * kChunkCodes, scales + at * kChunkGroups,
                                                weighted + at * kChunkGroups, half_sums + at * 2 * kChunkGroups));
      }
    }
    const int64_t slot = (n - begin) % kFoldedOuts;
    INFINIGEN_BLOCK_UNROLL for (int r = 0; r < kRows; ++r) _mm256_store_ps(lanes[r][slot], acc[r]);
    if (slot + 1 < kFoldedOuts && n + 1 < end) continue;
    for (int r = 0; r < kRows; ++r) {
      FoldLanes(lanes[r], slot + 1, sums);
      FinishOutputs(p, first_row + r, n - slot, slot + 1, sums);
    }
  }
}

template <class L>
void Direct(const BlockActivations& x, const Projection& p, int64_t begin, int64_t end) {
  int64_t row = 0;
  for (; row + 4 <= x.rows; row += 4) DirectRows<L, 4>(x, row, p, begin, end);
  for (; row + 2 <= x.rows; row += 2) DirectRows<L, 2>(x, row, p, begin, end);
  if (row < x.rows) DirectRows<L, 1>(x, row, p, begin, end);
}

#include "backend/cpu/block_panel-inl.h"

// ---- Activations

// 32 numbers of 32 bits as bytes. Packs work in each half of 128 bits; the permutation restores the order.
INFINIGEN_INLINE __m256i PackBytes(const __m256i (&v)[4]) {
  const __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(v[0], v[1]), _mm256_packs_epi32(v[2], v[3]));
  return _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

// One group of 32 numbers. The low codes are kChunkNumbers behind the high ones.
INFINIGEN_INLINE void QuantiseGroup(const float* from, int8_t* codes, float* scale, float* weighted,
                                    int16_t* half_sums) {
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  __m256 v[4];
  __m256i largest = _mm256_setzero_si256();
  INFINIGEN_BLOCK_UNROLL for (int i = 0; i < 4; ++i) {
    v[i] = _mm256_loadu_ps(from + 8 * i);
    // Magnitudes compare as integers, and NaN is the largest.
    largest = _mm256_max_epi32(largest, _mm256_and_si256(_mm256_castps_si256(v[i]), magnitude));
  }
  __m128i four = _mm_max_epi32(_mm256_castsi256_si128(largest), _mm256_extracti128_si256(largest, 1));
  four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0xb1));
  const float most = _mm_cvtss_f32(_mm_castsi128_ps(four));
  const bool zero = most < kSmallestMagnitude;
  const bool finite = most <= std::numeric_limits<float>::max();
  *scale = zero ? 0.0f : finite ? most / kLargestCode : std::numeric_limits<float>::quiet_NaN();
  const __m256 inverse = _mm256_set1_ps(zero ? 0.0f : kLargestCode / most);
  __m256i high[4], low[4], sums[2];
  INFINIGEN_BLOCK_UNROLL for (int i = 0; i < 4; ++i) {
    const __m256i code = finite ? _mm256_cvtps_epi32(_mm256_mul_ps(v[i], inverse)) : _mm256_setzero_si256();
    high[i] = _mm256_srai_epi32(_mm256_add_epi32(code, _mm256_set1_epi32(8)), 4);
    low[i] = _mm256_sub_epi32(code, _mm256_slli_epi32(high[i], 4));
    sums[i / 2] = i % 2 == 0 ? code : _mm256_add_epi32(sums[i / 2], code);
  }
  Store256(PackBytes(high), codes);
  Store256(PackBytes(low), codes + kChunkNumbers);
  const __m256i twice = _mm256_hadd_epi32(sums[0], sums[1]);
  const __m256i halves =
      _mm256_hadd_epi32(twice, twice);  // [half 0, half 1, …] of the lower numbers, then of the upper
  const int first = _mm256_extract_epi32(halves, 0) + _mm256_extract_epi32(halves, 4);
  const int second = _mm256_extract_epi32(halves, 1) + _mm256_extract_epi32(halves, 5);
  half_sums[0] = static_cast<int16_t>(first);
  half_sums[1] = static_cast<int16_t>(second);
  *weighted = *scale * static_cast<float>(first + second);
}

void Quantise(const ConstTensor& x, int64_t row, const BlockActivations& out) {
  const float* from = x.as<float>(row);
  const int64_t groups = x.cols / 32, all = out.chunks * kChunkGroups, first = row * all;
  // The last chunk may have groups that the row does not have.
  std::memset(out.codes + (row + 1) * out.chunks * kChunkCodes - kChunkCodes, 0, kChunkCodes);
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t at = first + g;
    QuantiseGroup(from + g * 32, out.codes + at / kChunkGroups * kChunkCodes + at % kChunkGroups * 32, out.scales + at,
                  out.weighted + at, out.half_sums + at * 2);
  }
  const auto rest = static_cast<size_t>(all - groups);
  std::memset(out.scales + first + groups, 0, rest * sizeof(float));
  std::memset(out.weighted + first + groups, 0, rest * sizeof(float));
  std::memset(out.half_sums + (first + groups) * 2, 0, rest * 2 * sizeof(int16_t));
}

void Pack(const BlockActivations& in, int64_t tile, const PackedActivations& out) {
  const int64_t positions = in.chunks * kChunkGroups, rows = out.tile_rows, first = tile * positions;
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t row = tile * rows + r;
    for (int64_t g = 0; g < positions; ++g) {
      const int64_t position = first + g % kChunkGroups * in.chunks + g / kChunkGroups, at = row * positions + g;
      const bool present = row < in.rows;
      int8_t* codes = out.codes + position * rows * 64 + r * 4;
      const int8_t* from = in.codes + at / kChunkGroups * kChunkCodes + at % kChunkGroups * 32;
      for (int64_t quad = 0; quad < 16; ++quad) {  // high, then low
        int32_t four = 0;
        if (present) std::memcpy(&four, from + quad / 8 * kChunkNumbers + quad % 8 * 4, 4);
        std::memcpy(codes + quad * rows * 4, &four, 4);
      }
      out.scales[position * rows + r] = present ? in.scales[at] : 0;
      out.weighted[position * rows + r] = present ? in.weighted[at] : 0;
      const int32_t first_half = present ? in.half_sums[at * 2] : 0, second = present ? in.half_sums[at * 2 + 1] : 0;
      int32_t* sums = out.sums + position * 3 * rows + r;
      sums[0] = first_half, sums[rows] = second, sums[2 * rows] = first_half + second;
    }
  }
}

// ---- Types

template <class F>
INFINIGEN_INLINE void WithLoader(WeightType type, const F& f) {
  switch (type) {
    case WeightType::kQ8_0:
      return f(Q8_0Loader());
    case WeightType::kQ4_0:
      return f(Q4_0Loader());
    case WeightType::kQ4_1:
      return f(Q4_1Loader());
    case WeightType::kQ5_0:
      return f(Q5_0Loader());
    case WeightType::kQ5_1:
      return f(Q5_1Loader());
    case WeightType::kQ2_K:
      return f(Q2_KLoader());
    case WeightType::kQ3_K:
      return f(Q3_KLoader());
    case WeightType::kQ4_K:
      return f(Q4_KLoader());
    case WeightType::kQ5_K:
      return f(Q5_KLoader());
    case WeightType::kQ6_K:
      return f(Q6_KLoader());
    case WeightType::kIq4Nl:
      return f(Iq4NlLoader());
    case WeightType::kIq4Xs:
      return f(Iq4XsLoader());
    case WeightType::kMxfp4:
      return f(Mxfp4Loader());
    case WeightType::kF32:
    case WeightType::kF16:
    case WeightType::kBF16:
      break;
  }
  CHECK(false);
}

void DirectOfType(const BlockActivations& x, const Projection& p, int64_t begin, int64_t end) {
  WithLoader(p.weight.type, [&](auto loader) { Direct<decltype(loader)>(x, p, begin, end); });
}
void PanelOfType(const PackedActivations& x, const Projection& p, int64_t begin, int64_t end, float* scratch) {
  WithLoader(p.weight.type, [&](auto loader) { PanelOuts<decltype(loader)>(x, p, begin, end, scratch); });
}

}  // namespace INFINIGEN_ISA_NAMESPACE
}  // namespace infinigen
