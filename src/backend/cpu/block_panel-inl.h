// Products of many rows with block-quantised weights. A panel of kWidth outputs is unpacked into cache, and tiles of
// rows are multiplied by it. A lane of a vector is an output. Included once per instruction set by block_product-inl.h,
// inside its namespace.
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
INFINIGEN_INLINE VI SubI(VI a, VI b) { return _mm512_sub_epi32(a, b); }
template <int kBits>
INFINIGEN_INLINE VI ShiftI(VI v) {
  return _mm512_slli_epi32(v, kBits);
}
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
INFINIGEN_INLINE VI SubI(VI a, VI b) { return _mm256_sub_epi32(a, b); }
template <int kBits>
INFINIGEN_INLINE VI ShiftI(VI v) {
  return _mm256_slli_epi32(v, kBits);
}
INFINIGEN_INLINE VF AddF(VF a, VF b) { return _mm256_add_ps(a, b); }
INFINIGEN_INLINE VF MulF(VF a, VF b) { return _mm256_mul_ps(a, b); }
INFINIGEN_INLINE VF FusedF(VF a, VF b, VF c) { return _mm256_fmadd_ps(a, b, c); }
INFINIGEN_INLINE VF ToF(VI v) { return _mm256_cvtepi32_ps(v); }
template <bool kSigned>
INFINIGEN_INLINE VI WideDotAdd(VI sum, VI weights, VI x) {
  return DotAdd<kSigned>(sum, weights, x);
}
#endif
// By shifts: a product of 32-bit integers takes two instructions of long latency.
template <int kBias>
INFINIGEN_INLINE VI TimesBias(VI v) {
  constexpr auto kBits = static_cast<unsigned>(kBias);
  constexpr int kHigh = std::bit_width(kBits) - 1, kLow = std::countr_zero(kBits);
  static_assert(kBits == (1u << kHigh | 1u << kLow));
  if constexpr (kHigh == kLow) return ShiftI<kHigh>(v);
  return AddI(ShiftI<kHigh>(v), ShiftI<kLow>(v));
}
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

// One tile of kTileRows rows of activations at one position.
struct TilePosition {
  const int8_t* codes;    // [high, low][8 quads][rows][4]
  const float* scales;    // [rows]
  const float* weighted;  // [rows]
  const int32_t* sums;    // [half 0, half 1, both][rows]
};

// Adds the terms of one group to acc [rows][kWidth outputs].
template <class L, int kRows>
INFINIGEN_INLINE void AddGroup(const TilePosition& x, const Panel& panel, int64_t position, VF (&acc)[kRows]) {
  const std::byte* codes = panel.codes + position * kPanelGroupBytes;
  VI sums[kRows], first[kRows];
  // Without halves both passes of `half` are one sum; all high codes come first, since the sum is then shifted.
  constexpr int kQuads = L::kHalves ? 4 : 8;
  INFINIGEN_BLOCK_UNROLL for (int half = 0; half < (L::kHalves ? 2 : 1); ++half) {
    INFINIGEN_BLOCK_UNROLL for (int r = 0; r < kRows; ++r) sums[r] = SetI(0);
    INFINIGEN_BLOCK_UNROLL for (int part = 0; part < 2; ++part) {  // high, low
      INFINIGEN_BLOCK_UNROLL for (int quad = kQuads * half; quad < kQuads * (half + 1); ++quad) {
        const VI weights = LoadI(codes + quad * kWidth * 4);
        INFINIGEN_BLOCK_UNROLL for (int r = 0; r < kRows; ++r) {
          int32_t four;
          std::memcpy(&four, x.codes + ((part * 8 + quad) * kTileRows + r) * 4, 4);
          sums[r] = WideDotAdd<L::kSigned>(sums[r], weights, SetI(four));
        }
      }
      if (part == 0) {
        INFINIGEN_BLOCK_UNROLL for (int r = 0; r < kRows; ++r) sums[r] = ShiftI<4>(sums[r]);
      }
    }
    if constexpr (L::kBias != 0) {
      const int32_t* all = x.sums + (L::kHalves ? half : 2) * kTileRows;
      INFINIGEN_BLOCK_UNROLL for (int r = 0; r < kRows; ++r) sums[r] = SubI(sums[r], TimesBias<L::kBias>(SetI(all[r])));
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
        all = MulF(x_scale, ToF(AddI(MulI(LoadI(multipliers), SetI(x.sums[r])),
                                     MulI(LoadI(multipliers + kWidth), SetI(x.sums[kTileRows + r])))));
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
  const int64_t groups = p.weight.cols / 32, first = tile * panel.positions;
  VF lanes[8][kRows];
  for (int64_t lane = 0; lane < 8; ++lane) {
    VF acc[kRows];
    INFINIGEN_BLOCK_UNROLL for (int r = 0; r < kRows; ++r) acc[r] = SetF(0);
    const int64_t begin = lane * x.chunks, end = begin + (groups - lane + 7) / 8;
    for (int64_t position = begin; position < end; ++position) {
      const int64_t at = first + position;
      AddGroup<L, kRows>({x.codes + at * kTileRows * 64, x.scales + at * kTileRows, x.weighted + at * kTileRows,
                          x.sums + at * 3 * kTileRows},
                         panel, position, acc);
    }
    INFINIGEN_BLOCK_UNROLL for (int r = 0; r < kRows; ++r) lanes[lane][r] = acc[r];
  }
  for (int64_t r = 0; r < std::min<int64_t>(kRows, x.rows - tile * kTileRows); ++r) {
    const VF low = AddF(AddF(lanes[0][r], lanes[1][r]), AddF(lanes[2][r], lanes[3][r]));
    const VF high = AddF(AddF(lanes[4][r], lanes[5][r]), AddF(lanes[6][r], lanes[7][r]));
    float sums[kWidth];
    StoreF(AddF(low, high), sums);
    FinishOutputs(p, tile * kTileRows + r, n, count, sums);
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
