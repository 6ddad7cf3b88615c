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
// The same for lanes whose sums of two fit 16 bits: two instructions per step instead of three.
INFINIGEN_INLINE __m256i SumSmallLanes(const __m256i (&v)[8]) {
  const __m256i one = _mm256_set1_epi16(1);
  __m256i pairs[4];
  INFINIGEN_BLOCK_UNROLL for (int i = 0; i < 4; ++i) pairs[i] =
      _mm256_madd_epi16(_mm256_packs_epi32(v[2 * i], v[2 * i + 1]), one);
  const __m256i a = _mm256_madd_epi16(_mm256_packs_epi32(pairs[0], pairs[1]), one);
  const __m256i b = _mm256_madd_epi16(_mm256_packs_epi32(pairs[2], pairs[3]), one);
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
      const __m256i products = _mm256_maddubs_epi16(chunk.codes[g], Load256(codes + g * 32));
      const __m256i both = _mm256_shuffle_epi8(split, _mm256_set1_epi16(static_cast<int16_t>(0x100 + 0x202 * g)));
      sums[g] = _mm256_madd_epi16(products, both);
    }
  } else {
    INFINIGEN_BLOCK_UNROLL for (int g = 0; g < 8; ++g) sums[g] =
        DotAdd<L::kSigned>(_mm256_setzero_si256(), chunk.codes[g], Load256(codes + g * 32));
  }
  constexpr bool kSmall = !L::kHalves && !L::kSigned && L::kBias <= 16;  // codes below 32: lanes of at most 15,748
  __m256i sum = kSmall ? SumSmallLanes(sums) : SumLanes(sums);
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
// never faults. Hardware prefetch alone reaches 0.65 of the read bandwidth for q8_0 and 0.56 for q4_k, because the
// arithmetic of few hundred bytes fills the reorder buffer. One row of q8_0 needs the most bytes per instruction: lines
// 16 KB ahead into L2 gave 0.90, 6 KB ahead into L1 0.68. For the others and for several rows L1 is better (q4_k: 0.71
// against 0.65).
template <class L, int kRows>
INFINIGEN_INLINE void PrefetchWeights(const std::byte* chunk) {
  constexpr int64_t kStep = RowChunks<L>::kStep;
  INFINIGEN_BLOCK_UNROLL for (int64_t line = 0; line < kStep; line += 64) {
    if constexpr (kRows == 1 && kStep > kChunkNumbers)
      __builtin_prefetch(chunk + 16384 + line, 0, 2);
    else
      __builtin_prefetch(chunk + 6144 + line, 0, 3);
  }
}

template <class L, int kRows>
void DirectRows(const BlockActivations& x, int64_t first_row, const Projection& p, int64_t begin, int64_t end) {
  alignas(32) float lanes[kRows][kFoldedOuts][8] = {};
  float sums[kFoldedOuts];
  const int8_t* codes = x.codes + first_row * x.chunks * kChunkNumbers;
  const float* scales = x.scales + first_row * x.chunks * kChunkGroups;
  const float* weighted = x.weighted + first_row * x.chunks * kChunkGroups;
  const int16_t* half_sums = x.half_sums + first_row * x.chunks * 2 * kChunkGroups;
  for (int64_t n = begin; n < end; ++n) {
    const RowChunks<L> row(p.weight, n);
    __m256 acc[kRows];
    INFINIGEN_BLOCK_UNROLL for (int r = 0; r < kRows; ++r) acc[r] = _mm256_setzero_ps();
    for (int64_t c = 0; c < x.chunks; ++c) {
      PrefetchWeights<L, kRows>(row.at + c * RowChunks<L>::kStep);
      const Chunk chunk = row.Load(c);
      INFINIGEN_BLOCK_UNROLL for (int r = 0; r < kRows; ++r) {
        const int64_t at = r * x.chunks + c;
        acc[r] = _mm256_add_ps(acc[r], Terms<L>(chunk, codes + at * kChunkNumbers, scales + at * kChunkGroups,
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

// ---- Many rows: outputs are lanes

#if INFINIGEN_HAS_AVX512
inline constexpr int64_t kWidth = 16, kTileRows = 8;
using VI = __m512i;
using VF = __m512;
INFINIGEN_INLINE VI LoadI(const void* from) { return _mm512_loadu_si512(from); }
INFINIGEN_INLINE VF LoadF(const float* from) { return _mm512_loadu_ps(from); }
INFINIGEN_INLINE void StoreF(VF v, float* to) { _mm512_storeu_ps(to, v); }
INFINIGEN_INLINE VI SetI(int32_t v) { return _mm512_set1_epi32(v); }
INFINIGEN_INLINE VF SetF(float v) { return _mm512_set1_ps(v); }
INFINIGEN_INLINE VI AddI(VI a, VI b) { return _mm512_add_epi32(a, b); }
INFINIGEN_INLINE VI MulI(VI a, VI b) { return _mm512_mullo_epi32(a, b); }
INFINIGEN_INLINE VF AddF(VF a, VF b) { return _mm512_add_ps(a, b); }
INFINIGEN_INLINE VF MulF(VF a, VF b) { return _mm512_mul_ps(a, b); }
INFINIGEN_INLINE VF FusedF(VF a, VF b, VF c) { return _mm512_fmadd_ps(a, b, c); }
INFINIGEN_INLINE VF ToF(VI v) { return _mm512_cvtepi32_ps(v); }
template <bool kSigned>
INFINIGEN_INLINE VI WideDotAdd(VI sum, VI weights, VI x) {
  static_assert(!kSigned);
  return _mm512_dpbusd_epi32(sum, weights, x);
}
#else
inline constexpr int64_t kWidth = 8, kTileRows = 4;
using VI = __m256i;
using VF = __m256;
INFINIGEN_INLINE VI LoadI(const void* from) { return Load256(from); }
INFINIGEN_INLINE VF LoadF(const float* from) { return _mm256_loadu_ps(from); }
INFINIGEN_INLINE void StoreF(VF v, float* to) { _mm256_storeu_ps(to, v); }
INFINIGEN_INLINE VI SetI(int32_t v) { return _mm256_set1_epi32(v); }
INFINIGEN_INLINE VF SetF(float v) { return _mm256_set1_ps(v); }
INFINIGEN_INLINE VI AddI(VI a, VI b) { return _mm256_add_epi32(a, b); }
INFINIGEN_INLINE VI MulI(VI a, VI b) { return _mm256_mullo_epi32(a, b); }
INFINIGEN_INLINE VF AddF(VF a, VF b) { return _mm256_add_ps(a, b); }
INFINIGEN_INLINE VF MulF(VF a, VF b) { return _mm256_mul_ps(a, b); }
INFINIGEN_INLINE VF FusedF(VF a, VF b, VF c) { return _mm256_fmadd_ps(a, b, c); }
INFINIGEN_INLINE VF ToF(VI v) { return _mm256_cvtepi32_ps(v); }
template <bool kSigned>
INFINIGEN_INLINE VI WideDotAdd(VI sum, VI weights, VI x) {
  return DotAdd<kSigned>(sum, weights, x);
}
#endif
inline constexpr int64_t kPanelGroupBytes = 32 * kWidth;

// kWidth outputs, unpacked; positions in the order of the lanes (PackedActivations).
struct Panel {
  Panel(float* scratch, int64_t chunks) : positions(chunks * kChunkGroups) {
    const auto take = [&](int64_t floats) { return std::exchange(scratch, scratch + floats); };
    codes = reinterpret_cast<std::byte*>(take(positions * kPanelGroupBytes / 4));
    scale = take(positions * kWidth);
    offset = take(positions * kWidth);
    multiplier = reinterpret_cast<int32_t*>(take(positions * kWidth * 2));
    offset_multiplier = reinterpret_cast<int32_t*>(take(positions * kWidth * 2));
  }
  int64_t positions;
  std::byte* codes;            // [positions][8 quads][kWidth][4]
  float* scale;                // [positions][kWidth]
  float* offset;               // [positions][kWidth]
  int32_t* multiplier;         // [positions][2][kWidth]
  int32_t* offset_multiplier;  // [positions][2][kWidth]
};

INFINIGEN_INLINE void Transpose(__m256i (&v)[8]) {
  __m256i a[8], b[8];
  INFINIGEN_BLOCK_UNROLL for (int i = 0; i < 8; i += 2) {
    a[i] = _mm256_unpacklo_epi32(v[i], v[i + 1]);
    a[i + 1] = _mm256_unpackhi_epi32(v[i], v[i + 1]);
  }
  INFINIGEN_BLOCK_UNROLL for (int i = 0; i < 8; i += 4) {
    b[i] = _mm256_unpacklo_epi64(a[i], a[i + 2]);
    b[i + 1] = _mm256_unpackhi_epi64(a[i], a[i + 2]);
    b[i + 2] = _mm256_unpacklo_epi64(a[i + 1], a[i + 3]);
    b[i + 3] = _mm256_unpackhi_epi64(a[i + 1], a[i + 3]);
  }
  INFINIGEN_BLOCK_UNROLL for (int i = 0; i < 4; ++i) {
    v[i] = _mm256_permute2x128_si256(b[i], b[i + 4], 0x20);
    v[i + 4] = _mm256_permute2x128_si256(b[i], b[i + 4], 0x31);
  }
}
INFINIGEN_INLINE void Store256(__m256i v, void* to) { _mm256_storeu_si256(static_cast<__m256i*>(to), v); }

// Writes chunk c of eight outputs to columns [column, column + 8) of the panel.
template <class L>
INFINIGEN_INLINE void UnpackChunk(const Chunk (&chunks)[8], int64_t c, int64_t column, const Panel& panel) {
  const int64_t stride = panel.positions / kChunkGroups;
  __m256i v[8];
  INFINIGEN_BLOCK_UNROLL for (int g = 0; g < 8; ++g) {
    std::byte* to = panel.codes + (g * stride + c) * kPanelGroupBytes + column * 4;
    INFINIGEN_BLOCK_UNROLL for (int o = 0; o < 8; ++o) v[o] = chunks[o].codes[g];
    Transpose(v);
    INFINIGEN_BLOCK_UNROLL for (int quad = 0; quad < 8; ++quad) Store256(v[quad], to + quad * kWidth * 4);
  }
  INFINIGEN_BLOCK_UNROLL for (int o = 0; o < 8; ++o) v[o] = _mm256_castps_si256(chunks[o].scale);
  Transpose(v);
  INFINIGEN_BLOCK_UNROLL for (int g = 0; g < 8; ++g) Store256(v[g], panel.scale + (g * stride + c) * kWidth + column);
  if constexpr (L::kOffsets) {
    INFINIGEN_BLOCK_UNROLL for (int o = 0; o < 8; ++o) v[o] = _mm256_castps_si256(chunks[o].offset);
    Transpose(v);
    INFINIGEN_BLOCK_UNROLL for (int g = 0; g < 8; ++g)
        Store256(v[g], panel.offset + (g * stride + c) * kWidth + column);
  }
  if constexpr (!L::kHalves) return;
  const auto spread = [&](const __m256i& halves, int64_t o, int32_t* to) {
    alignas(32) int16_t numbers[16];
    Store256(halves, numbers);
    for (int64_t half = 0; half < 16; ++half)
      to[((half / 2 * stride + c) * 2 + half % 2) * kWidth + column + o] = numbers[half];
  };
  for (int64_t o = 0; o < 8; ++o) {
    spread(chunks[o].multiplier, o, panel.multiplier);
    if constexpr (L::kOffsets) spread(chunks[o].offset_multiplier, o, panel.offset_multiplier);
  }
}

// Outputs [n, n + kWidth) of the matrix; those past `end` repeat the last one.
template <class L>
void UnpackPanel(const WeightView& weight, int64_t n, int64_t end, int64_t chunks, const Panel& panel) {
  for (int64_t column = 0; column < kWidth; column += 8) {
    const auto row = [&](int64_t o) { return RowChunks<L>(weight, std::min(n + column + o, end - 1)); };
    const RowChunks<L> rows[8] = {row(0), row(1), row(2), row(3), row(4), row(5), row(6), row(7)};
    for (int64_t c = 0; c < chunks; ++c) {
      // The same part of the next panel. A prefetch past the end of the matrix never faults.
      for (int64_t o = 0; o < 8; ++o)
        for (int64_t line = 0; line < RowChunks<L>::kStep; line += 64)
          __builtin_prefetch(rows[o].at + kWidth * weight.row_bytes + c * RowChunks<L>::kStep + line, 0, 2);
      const Chunk unpacked[8] = {rows[0].Load(c), rows[1].Load(c), rows[2].Load(c), rows[3].Load(c),
                                 rows[4].Load(c), rows[5].Load(c), rows[6].Load(c), rows[7].Load(c)};
      UnpackChunk<L>(unpacked, c, column, panel);
    }
  }
}

// One tile of activations at one position.
struct TilePosition {
  const int8_t* codes;       // [8 quads][rows][4]
  const float* scales;       // [rows]
  const float* weighted;     // [rows]
  const int32_t* half_sums;  // [2][rows]
};

// Adds the terms of one group to acc [rows][kWidth outputs].
template <class L, int kRows>
INFINIGEN_INLINE void AddGroup(const TilePosition& x, int64_t tile_rows, const Panel& panel, int64_t position,
                               VF (&acc)[kRows]) {
  const std::byte* codes = panel.codes + position * kPanelGroupBytes;
  VI sums[kRows], first[kRows];
  INFINIGEN_BLOCK_UNROLL for (int half = 0; half < 2; ++half) {
    if (half == 0 || L::kHalves) {
      INFINIGEN_BLOCK_UNROLL for (int r = 0; r < kRows; ++r) {
        const int32_t all =
            L::kHalves ? x.half_sums[half * tile_rows + r] : x.half_sums[r] + x.half_sums[tile_rows + r];
        sums[r] = SetI(L::kBias == 0 ? 0 : -L::kBias * all);
      }
    }
    INFINIGEN_BLOCK_UNROLL for (int quad = 4 * half; quad < 4 * half + 4; ++quad) {
      const VI weights = LoadI(codes + quad * kWidth * 4);
      INFINIGEN_BLOCK_UNROLL for (int r = 0; r < kRows; ++r) {
        int32_t four;
        std::memcpy(&four, x.codes + (quad * tile_rows + r) * 4, 4);
        sums[r] = WideDotAdd<L::kSigned>(sums[r], weights, SetI(four));
      }
    }
    if constexpr (L::kHalves) {
      const VI multiplier = LoadI(panel.multiplier + (position * 2 + half) * kWidth);
      INFINIGEN_BLOCK_UNROLL for (int r = 0; r < kRows; ++r) {
        if (half == 0) first[r] = MulI(sums[r], multiplier);
        if (half == 1) sums[r] = AddI(first[r], MulI(sums[r], multiplier));
      }
    }
  }
  const VF scale = LoadF(panel.scale + position * kWidth);
  INFINIGEN_BLOCK_UNROLL for (int r = 0; r < kRows; ++r) {
    const VF x_scale = SetF(x.scales[r]), scaled = MulF(x_scale, ToF(sums[r]));
    if constexpr (!L::kOffsets) {
      acc[r] = AddF(acc[r], MulF(scale, scaled));
    } else {
      VF all;
      if constexpr (L::kHalves) {
        const int32_t* multipliers = panel.offset_multiplier + position * 2 * kWidth;
        all = MulF(x_scale, ToF(AddI(MulI(LoadI(multipliers), SetI(x.half_sums[r])),
                                     MulI(LoadI(multipliers + kWidth), SetI(x.half_sums[tile_rows + r])))));
      } else {
        all = SetF(x.weighted[r]);
      }
      acc[r] = AddF(acc[r], FusedF(scale, scaled, MulF(LoadF(panel.offset + position * kWidth), all)));
    }
  }
}

// Outputs [n, n + count) of the first kRows rows of one tile.
template <class L, int kRows>
void MultiplyTile(const PackedActivations& x, int64_t tile, const Panel& panel, const Projection& p, int64_t n,
                  int64_t count) {
  const int64_t groups = p.weight.cols / 32, first = tile * panel.positions, rows = x.tile_rows;
  VF lanes[8][kRows];
  for (int64_t lane = 0; lane < 8; ++lane) {
    VF acc[kRows];
    INFINIGEN_BLOCK_UNROLL for (int r = 0; r < kRows; ++r) acc[r] = SetF(0);
    const int64_t begin = lane * x.chunks, end = begin + (groups - lane + 7) / 8;
    for (int64_t position = begin; position < end; ++position) {
      const int64_t at = first + position;
      AddGroup<L, kRows>(
          {x.codes + at * rows * 32, x.scales + at * rows, x.weighted + at * rows, x.half_sums + at * 2 * rows}, rows,
          panel, position, acc);
    }
    INFINIGEN_BLOCK_UNROLL for (int r = 0; r < kRows; ++r) lanes[lane][r] = acc[r];
  }
  for (int64_t r = 0; r < std::min<int64_t>(kRows, x.rows - tile * rows); ++r) {
    const VF low = AddF(AddF(lanes[0][r], lanes[1][r]), AddF(lanes[2][r], lanes[3][r]));
    const VF high = AddF(AddF(lanes[4][r], lanes[5][r]), AddF(lanes[6][r], lanes[7][r]));
    float sums[kWidth];
    StoreF(AddF(low, high), sums);
    FinishOutputs(p, tile * rows + r, n, count, sums);
  }
}

template <class L>
void PanelOuts(const PackedActivations& x, const Projection& p, int64_t begin, int64_t end, float* scratch) {
  const Panel panel(scratch, x.chunks);
  for (int64_t n = begin; n < end; n += kWidth) {
    const int64_t count = std::min(kWidth, end - n);
    UnpackPanel<L>(p.weight, n, end, x.chunks, panel);
    for (int64_t tile = 0; tile < x.tiles(); ++tile) {
      if (x.rows - tile * kTileRows <= kTileRows / 2)
        MultiplyTile<L, kTileRows / 2>(x, tile, panel, p, n, count);
      else
        MultiplyTile<L, kTileRows>(x, tile, panel, p, n, count);
    }
  }
}

// ---- Activations

// One group of 32 numbers.
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
  *scale = zero ? 0.0f : finite ? most / 127.0f : std::numeric_limits<float>::quiet_NaN();
  const __m256 inverse = _mm256_set1_ps(zero ? 0.0f : 127.0f / most);
  __m256i rounded[4];
  INFINIGEN_BLOCK_UNROLL for (int i = 0; i < 4; ++i) rounded[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], inverse));
  // Packs work in each half of 128 bits; the permutation restores the order.
  const __m256i packed =
      _mm256_packs_epi16(_mm256_packs_epi32(rounded[0], rounded[1]), _mm256_packs_epi32(rounded[2], rounded[3]));
  const __m256i ordered = _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  Store256(ordered, codes);
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), ordered);
  const __m256i quads = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
  const __m256i twice = _mm256_hadd_epi32(quads, quads);
  const __m256i halves = _mm256_hadd_epi32(twice, twice);
  const int low = _mm256_extract_epi32(halves, 0), high = _mm256_extract_epi32(halves, 4);
  half_sums[0] = static_cast<int16_t>(low);
  half_sums[1] = static_cast<int16_t>(high);
  *weighted = *scale * static_cast<float>(low + high);
}

void Quantise(const ConstTensor& x, int64_t row, const BlockActivations& out) {
  const float* from = x.as<float>(row);
  const int64_t groups = x.cols / 32, all = out.chunks * kChunkGroups, first = row * all;
  for (int64_t g = 0; g < groups; ++g)
    QuantiseGroup(from + g * 32, out.codes + (first + g) * 32, out.scales + first + g, out.weighted + first + g,
                  out.half_sums + (first + g) * 2);
  const auto rest = static_cast<size_t>(all - groups);
  std::memset(out.codes + (first + groups) * 32, 0, rest * 32);
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
      int8_t* codes = out.codes + position * rows * 32 + r * 4;
      for (int64_t quad = 0; quad < 8; ++quad) {
        int32_t four = 0;
        if (present) std::memcpy(&four, in.codes + at * 32 + quad * 4, 4);
        std::memcpy(codes + quad * rows * 4, &four, 4);
      }
      out.scales[position * rows + r] = present ? in.scales[at] : 0;
      out.weighted[position * rows + r] = present ? in.weighted[at] : 0;
      for (int64_t half = 0; half < 2; ++half)
        out.half_sums[(position * 2 + half) * rows + r] = present ? in.half_sums[at * 2 + half] : 0;
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
