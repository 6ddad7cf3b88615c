// Loads 256 numbers of block-quantised weights into registers: eight groups of 32 codes with their scales. Included
// once per instruction set by block_product-inl.h, inside its namespace; x86 only. INFINIGEN_ISA is the instruction
// set.
//
// Codes are unsigned, larger than the stored format's codes by kBias: the dot-product instructions multiply unsigned
// weights by signed activations, and kBias · Σ activations is subtracted from the sum. Without VNNI a sum of two
// products must fit 16 bits, so codes of eight bits stay signed there (kSigned) and their signs move to the
// activations.
//
// A loader is a struct with
//   kNumbers, kBytes   of a block
//   kBias, kSigned     of its codes
//   kOffsets           the format has offsets
//   kHalves            the format has multipliers
//   Load(from)         reads 256 numbers at `from`: one block, or eight

struct Chunk {
  __m256i codes[8];           // [groups] of 32 bytes
  __m256 scale, offset;       // [groups]
  __m256i multiplier;         // [16 halves] int16
  __m256i offset_multiplier;  // [16 halves] int16
};

INFINIGEN_INLINE uint32_t Read32(const std::byte* from) {
  uint32_t value;
  std::memcpy(&value, from, 4);
  return value;
}
INFINIGEN_INLINE uint64_t Read64(const std::byte* from) {
  uint64_t value;
  std::memcpy(&value, from, 8);
  return value;
}
INFINIGEN_INLINE __m128i Load128(const std::byte* from) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
}
INFINIGEN_INLINE __m256i Load256(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }
INFINIGEN_INLINE float ReadHalf(const std::byte* from) {
  uint16_t bits;
  std::memcpy(&bits, from, 2);
  return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(bits)));
}
#if INFINIGEN_HAS_AVX512
// Words kFirst, kFirst + kStride / 2, … of three vectors that start at bytes 0, 3 · kStride and 8 · kStride − 64 of
// eight blocks: three, three and two blocks. kStride ≤ 28.
template <int kStride, int kFirst>
INFINIGEN_INLINE __m128i EightWords(const std::byte* from) {
  constexpr int kLast = 8 * kStride - 64;
  const auto word = [](int block) constexpr {
    return static_cast<short>(block < 3   ? (block * kStride + kFirst) / 2
                              : block < 6 ? 32 + ((block - 3) * kStride + kFirst) / 2
                                          : 0);
  };
  const __m512i first =
      _mm512_castsi128_si512(_mm_setr_epi16(word(0), word(1), word(2), word(3), word(4), word(5), 0, 0));
  const __m512i last = _mm512_castsi128_si512(_mm_setr_epi16(0, 1, 2, 3, 4, 5, 32 + (6 * kStride - kLast + kFirst) / 2,
                                                             32 + (7 * kStride - kLast + kFirst) / 2));
  const __m512i six =
      _mm512_permutex2var_epi16(_mm512_loadu_si512(from), first, _mm512_loadu_si512(from + 3 * kStride));
  return _mm512_castsi512_si128(_mm512_permutex2var_epi16(six, last, _mm512_loadu_si512(from + kLast)));
}
#endif
// Eight words, kStride bytes apart. Elsewhere integer registers collect them, because loads into the lanes of a vector
// occupy its shuffle unit.
template <int kStride, int kFirst = 0>
INFINIGEN_INLINE __m256 EightHalves(const std::byte* from) {
#if INFINIGEN_HAS_AVX512
  if constexpr (kStride <= 28 && kStride % 2 == 0) return _mm256_cvtph_ps(EightWords<kStride, kFirst>(from));
#endif
  uint64_t four[2];
  INFINIGEN_BLOCK_UNROLL for (int i = 0; i < 2; ++i) {
    uint16_t bits[4];
    INFINIGEN_BLOCK_UNROLL for (int j = 0; j < 4; ++j) std::memcpy(&bits[j], from + (4 * i + j) * kStride + kFirst, 2);
    four[i] = bits[0] | uint64_t{bits[1]} << 16 | uint64_t{bits[2]} << 32 | uint64_t{bits[3]} << 48;
  }
  return _mm256_cvtph_ps(_mm_set_epi64x(static_cast<int64_t>(four[1]), static_cast<int64_t>(four[0])));
}
// The first eight bytes.
INFINIGEN_INLINE __m256 FloatsOfBytes(__m128i bytes) { return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)); }
INFINIGEN_INLINE __m256i Low4(__m256i bytes) { return _mm256_and_si256(bytes, _mm256_set1_epi8(15)); }
INFINIGEN_INLINE __m256i High4(__m256i bytes) { return Low4(_mm256_srli_epi16(bytes, 4)); }
// Low halves of 16 bytes, then high halves.
INFINIGEN_INLINE __m256i Nibbles(const std::byte* from) {
  const __m256i twice = _mm256_broadcastsi128_si256(Load128(from));
  return Low4(_mm256_srlv_epi64(twice, _mm256_setr_epi64x(0, 0, 4, 4)));
}
// 0x10 in byte i where bit i is set.
INFINIGEN_INLINE __m256i FifthBits(uint32_t bits) {
  const __m256i index = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
  const __m256i mask = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201u));
  const __m256i spread = _mm256_shuffle_epi8(_mm256_set1_epi32(static_cast<int>(bits)), index);
  const __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(spread, mask), mask);
  return _mm256_and_si256(set, _mm256_set1_epi8(16));
}
// Codes of 4 bits that select from a table of 16 bytes.
INFINIGEN_INLINE __m256i Lookup(__m256i nibbles, const std::array<int8_t, 16>& table, int bias) {
  const __m128i row = _mm_add_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table.data())),
                                   _mm_set1_epi8(static_cast<char>(bias)));
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(row), nibbles);
}

// Formats of 32 numbers: four or five bits, with or without a minimum.
template <int kBytesOf, bool kMinimum, bool kFifth>
struct SmallLoader {
  static constexpr int kNumbers = 32, kBytes = kBytesOf, kBias = kMinimum ? 0 : kFifth ? 16 : 8;
  static constexpr bool kSigned = false, kOffsets = kMinimum, kHalves = false;
  INFINIGEN_INLINE static Chunk Load(const std::byte* from) {
    constexpr int kFifthAt = kMinimum ? 4 : 2, kCodesAt = kFifthAt + (kFifth ? 4 : 0);
    Chunk chunk;
    INFINIGEN_BLOCK_UNROLL for (int g = 0; g < 8; ++g) {
      chunk.codes[g] = Nibbles(from + g * kBytes + kCodesAt);
      if constexpr (kFifth)
        chunk.codes[g] = _mm256_or_si256(chunk.codes[g], FifthBits(Read32(from + g * kBytes + kFifthAt)));
    }
    chunk.scale = EightHalves<kBytes>(from);
    if constexpr (kMinimum) chunk.offset = EightHalves<kBytes, 2>(from);
    return chunk;
  }
};
using Q4_0Loader = SmallLoader<18, false, false>;
using Q4_1Loader = SmallLoader<20, true, false>;
using Q5_0Loader = SmallLoader<22, false, true>;
using Q5_1Loader = SmallLoader<24, true, true>;

struct Q8_0Loader {
  static constexpr int kNumbers = 32, kBytes = 34, kBias = INFINIGEN_HAS_VNNI ? 128 : 0;
  static constexpr bool kSigned = !INFINIGEN_HAS_VNNI, kOffsets = false, kHalves = false;
  INFINIGEN_INLINE static Chunk Load(const std::byte* from) {
    Chunk chunk;
    INFINIGEN_BLOCK_UNROLL for (int g = 0; g < 8; ++g) {
      chunk.codes[g] = Load256(from + g * kBytes + 2);
      if constexpr (!kSigned) chunk.codes[g] = _mm256_xor_si256(chunk.codes[g], _mm256_set1_epi8(-128));
    }
    chunk.scale = EightHalves<kBytes>(from);
    return chunk;
  }
};

struct Iq4NlLoader {
  static constexpr int kNumbers = 32, kBytes = 18, kBias = INFINIGEN_HAS_VNNI ? 128 : 0;
  static constexpr bool kSigned = !INFINIGEN_HAS_VNNI, kOffsets = false, kHalves = false;
  INFINIGEN_INLINE static Chunk Load(const std::byte* from) {
    Chunk chunk;
    INFINIGEN_BLOCK_UNROLL for (int g = 0; g < 8; ++g) chunk.codes[g] =
        Lookup(Nibbles(from + g * kBytes + 2), kIq4Numbers, kBias);
    chunk.scale = EightHalves<kBytes>(from);
    return chunk;
  }
};

struct Mxfp4Loader {
  static constexpr int kNumbers = 32, kBytes = 17, kBias = 12;
  static constexpr bool kSigned = false, kOffsets = false, kHalves = false;
  INFINIGEN_INLINE static Chunk Load(const std::byte* from) {
    Chunk chunk;
    alignas(32) float scales[8];
    INFINIGEN_BLOCK_UNROLL for (int g = 0; g < 8; ++g) {
      chunk.codes[g] = Lookup(Nibbles(from + g * kBytes + 1), kMxfp4Numbers, kBias);
      const auto exponent = std::to_integer<uint32_t>(from[g * kBytes]);
      const uint32_t bits = exponent < 2 ? 0x00200000u << exponent : (exponent - 1) << 23;
      std::memcpy(&scales[g], &bits, 4);
    }
    chunk.scale = _mm256_load_ps(scales);
    return chunk;
  }
};

// Two bits per number, 32 bytes for four groups.
INFINIGEN_INLINE void LoadPairs(const std::byte* from, __m256i* codes) {
  const __m256i three = _mm256_set1_epi8(3);
  INFINIGEN_BLOCK_UNROLL for (int run = 0; run < 2; ++run) {
    const __m256i bytes = Load256(from + run * 32);
    codes[run * 4] = _mm256_and_si256(bytes, three);
    codes[run * 4 + 1] = _mm256_and_si256(_mm256_srli_epi16(bytes, 2), three);
    codes[run * 4 + 2] = _mm256_and_si256(_mm256_srli_epi16(bytes, 4), three);
    codes[run * 4 + 3] = _mm256_and_si256(_mm256_srli_epi16(bytes, 6), three);
  }
}

struct Q2_KLoader {
  static constexpr int kNumbers = 256, kBytes = 84, kBias = 0;
  static constexpr bool kSigned = false, kOffsets = true, kHalves = true;
  INFINIGEN_INLINE static Chunk Load(const std::byte* from) {
    Chunk chunk;
    LoadPairs(from + 16, chunk.codes);
    const __m256i both = _mm256_cvtepu8_epi16(Load128(from));
    chunk.multiplier = _mm256_and_si256(both, _mm256_set1_epi16(15));
    chunk.offset_multiplier = _mm256_srli_epi16(both, 4);
    chunk.scale = _mm256_set1_ps(ReadHalf(from + 80));
    chunk.offset = _mm256_set1_ps(-ReadHalf(from + 82));
    return chunk;
  }
};

struct Q3_KLoader {
  static constexpr int kNumbers = 256, kBytes = 110, kBias = 4;
  static constexpr bool kSigned = false, kOffsets = false, kHalves = true;
  INFINIGEN_INLINE static Chunk Load(const std::byte* from) {
    Chunk chunk;
    LoadPairs(from + 32, chunk.codes);
    const __m256i third = Load256(from), four = _mm256_set1_epi8(4);
    INFINIGEN_BLOCK_UNROLL for (int g = 0; g < 8; ++g) {
      const __m256i shifted = g < 2 ? _mm256_slli_epi16(third, 2 - g) : _mm256_srli_epi16(third, g - 2);
      chunk.codes[g] = _mm256_or_si256(chunk.codes[g], _mm256_and_si256(shifted, four));
    }
    const uint64_t low = Read64(from + 96), high = Read32(from + 104);
    constexpr uint64_t kLow4 = 0x0f0f0f0f0f0f0f0fu, kLow2 = 0x0303030303030303u;
    const uint64_t first = (low & kLow4) | ((high | (high >> 2) << 32) & kLow2) << 4;
    const uint64_t second = ((low >> 4) & kLow4) | (((high >> 4) | (high >> 6) << 32) & kLow2) << 4;
    const __m128i scales = _mm_set_epi64x(static_cast<int64_t>(second), static_cast<int64_t>(first));
    chunk.multiplier = _mm256_sub_epi16(_mm256_cvtepu8_epi16(scales), _mm256_set1_epi16(32));
    chunk.scale = _mm256_set1_ps(ReadHalf(from + 108));
    return chunk;
  }
};

template <bool kFifth>
struct Q45_KLoader {
  static constexpr int kNumbers = 256, kBytes = kFifth ? 176 : 144, kBias = 0;
  static constexpr bool kSigned = false, kOffsets = true, kHalves = false;
  INFINIGEN_INLINE static Chunk Load(const std::byte* from) {
    Chunk chunk;
    const std::byte* codes = from + (kFifth ? 48 : 16);
    INFINIGEN_BLOCK_UNROLL for (int pair = 0; pair < 4; ++pair) {
      const __m256i bytes = Load256(codes + pair * 32);
      chunk.codes[2 * pair] = Low4(bytes);
      chunk.codes[2 * pair + 1] = High4(bytes);
    }
    if constexpr (kFifth) {
      const __m256i fifth = Load256(from + 16), sixteen = _mm256_set1_epi8(16);
      INFINIGEN_BLOCK_UNROLL for (int g = 0; g < 8; ++g) {
        const __m256i shifted = g < 4 ? _mm256_slli_epi16(fifth, 4 - g) : _mm256_srli_epi16(fifth, g - 4);
        chunk.codes[g] = _mm256_or_si256(chunk.codes[g], _mm256_and_si256(shifted, sixteen));
      }
    }
    // UnpackGroupScales: a, b and c are four bytes each, behind both factors.
    const __m128i header = Load128(from);
    const __m128i low = _mm_and_si128(
        _mm_srlv_epi32(_mm_shuffle_epi32(header, _MM_SHUFFLE(3, 2, 3, 1)), _mm_setr_epi32(0, 0, 0, 4)),  // a c b c
        _mm_setr_epi32(0x3f3f3f3f, 0x0f0f0f0f, 0x3f3f3f3f, 0x0f0f0f0f));
    const __m128i high = _mm_and_si128(_mm_srli_epi32(_mm_shuffle_epi32(header, _MM_SHUFFLE(2, 2, 1, 1)), 2),
                                       _mm_setr_epi32(0, 0x30303030, 0, 0x30303030));
    const __m128i bytes = _mm_or_si128(low, high);  // eight scales, eight minima
    const __m128 factors = _mm_xor_ps(_mm_cvtph_ps(header), _mm_setr_ps(0, -0.0f, 0, 0));
    chunk.scale = _mm256_mul_ps(_mm256_broadcastss_ps(factors), FloatsOfBytes(bytes));
    chunk.offset =
        _mm256_mul_ps(_mm256_broadcastss_ps(_mm_movehdup_ps(factors)), FloatsOfBytes(_mm_unpackhi_epi64(bytes, bytes)));
    return chunk;
  }
};
using Q4_KLoader = Q45_KLoader<false>;
using Q5_KLoader = Q45_KLoader<true>;

struct Q6_KLoader {
  static constexpr int kNumbers = 256, kBytes = 210, kBias = 32;
  static constexpr bool kSigned = false, kOffsets = false, kHalves = true;
  INFINIGEN_INLINE static Chunk Load(const std::byte* from) {
    Chunk chunk;
    const __m256i mask = _mm256_set1_epi8(0x30);
    INFINIGEN_BLOCK_UNROLL for (int run = 0; run < 2; ++run) {
      const __m256i first = Load256(from + run * 64), second = Load256(from + run * 64 + 32);
      const __m256i high = Load256(from + 128 + run * 32);
      __m256i* codes = chunk.codes + run * 4;
      codes[0] = _mm256_or_si256(Low4(first), _mm256_and_si256(_mm256_slli_epi16(high, 4), mask));
      codes[1] = _mm256_or_si256(Low4(second), _mm256_and_si256(_mm256_slli_epi16(high, 2), mask));
      codes[2] = _mm256_or_si256(High4(first), _mm256_and_si256(high, mask));
      codes[3] = _mm256_or_si256(High4(second), _mm256_and_si256(_mm256_srli_epi16(high, 2), mask));
    }
    chunk.multiplier = _mm256_cvtepi8_epi16(Load128(from + 192));
    chunk.scale = _mm256_set1_ps(ReadHalf(from + 208));
    return chunk;
  }
};

struct Iq4XsLoader {
  static constexpr int kNumbers = 256, kBytes = 136, kBias = INFINIGEN_HAS_VNNI ? 128 : 0;
  static constexpr bool kSigned = !INFINIGEN_HAS_VNNI, kOffsets = false, kHalves = false;
  INFINIGEN_INLINE static Chunk Load(const std::byte* from) {
    Chunk chunk;
    INFINIGEN_BLOCK_UNROLL for (int g = 0; g < 8; ++g) chunk.codes[g] =
        Lookup(Nibbles(from + 8 + g * 16), kIq4Numbers, kBias);
    const __m256i places = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
    const __m256i low = _mm256_srlv_epi32(_mm256_set1_epi32(static_cast<int>(Read32(from + 4))), places);
    const uint32_t upper = Read32(from) >> 16;
    const __m256i high = _mm256_srlv_epi32(_mm256_set1_epi32(static_cast<int>(upper)), _mm256_srli_epi32(places, 1));
    const __m256i scales = _mm256_or_si256(_mm256_and_si256(low, _mm256_set1_epi32(15)),
                                           _mm256_slli_epi32(_mm256_and_si256(high, _mm256_set1_epi32(3)), 4));
    chunk.scale = _mm256_mul_ps(_mm256_set1_ps(ReadHalf(from)),
                                _mm256_cvtepi32_ps(_mm256_sub_epi32(scales, _mm256_set1_epi32(32))));
    return chunk;
  }
};
