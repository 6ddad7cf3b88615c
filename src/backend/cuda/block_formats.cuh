// Block formats of quantised weights on the device (tensor/block_formats.h defines them). A thread reads a unit at a
// time: two halves of 16 codes, in q4_k and q5_k of 32, packed four to a register, each half with its own scale and
// offset. Private to backend/cuda.
//
//   number = scale[half] · (code − kCentre) + offset[half]
//
// Blocks may be in global or shared memory. They start at multiples of DeviceAlignmentOf, which is more than the host
// needs (AlignmentOf): CheckAlignment is called with each matrix. Two bytes before a block that starts between
// multiples of four can be read.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "base/check.h"
#include "tensor/block_formats.h"

namespace infinigen {

// The largest power of two, up to 16, that divides the size of a block. So if a matrix starts at a multiple of it, all
// its blocks and rows do.
constexpr int DeviceAlignmentOf(WeightType type) {
  const auto bytes = static_cast<int>(FormatOf(type).block_bytes), power = bytes & -bytes;
  return power < 16 ? power : 16;
}
inline void CheckAlignment(const WeightView& weight) {
  CHECK(reinterpret_cast<uintptr_t>(weight.data) % static_cast<uintptr_t>(DeviceAlignmentOf(weight.type)) == 0);
}

template <int kHalfWords>
struct BlockUnitOf {
  static constexpr int kWords = kHalfWords;        // of a half
  static constexpr int kNumbers = 8 * kHalfWords;  // of the unit
  uint32_t codes[2][kHalfWords];                   // [half][four codes of 8 bits]
  float scale[2];
  float offset[2];  // only for formats with kOffsets
  int at[2];        // the first number of each half, counted from the block's first number
};
using BlockUnit = BlockUnitOf<4>;

__device__ inline float HalfAt(const uint8_t* from) { return __half2float(*reinterpret_cast<const __half*>(from)); }

// Reads 16 bytes that start at a multiple of kAlignment.
template <int kAlignment>
__device__ inline void Load16(const uint8_t* from, uint32_t (&to)[4]) {
  if constexpr (kAlignment >= 16) {
    const uint4 words = *reinterpret_cast<const uint4*>(from);
    to[0] = words.x, to[1] = words.y, to[2] = words.z, to[3] = words.w;
  } else if constexpr (kAlignment == 8) {
    const uint2 low = *reinterpret_cast<const uint2*>(from), high = reinterpret_cast<const uint2*>(from)[1];
    to[0] = low.x, to[1] = low.y, to[2] = high.x, to[3] = high.y;
  } else if constexpr (kAlignment == 4) {
    for (int i = 0; i < 4; ++i) to[i] = reinterpret_cast<const uint32_t*>(from)[i];
  } else if constexpr (kAlignment == 2) {
    // Whole words, shifted together.
    const bool odd = (reinterpret_cast<uintptr_t>(from) & 2) != 0;
    const auto* words = reinterpret_cast<const uint32_t*>(from - (odd ? 2 : 0));
    uint32_t word = words[0];
    for (int i = 0; i < 4; ++i) {
      const uint32_t next = i < 3 ? words[i + 1] : odd ? *reinterpret_cast<const uint16_t*>(from + 14) : 0;
      to[i] = __funnelshift_r(word, next, odd ? 16 : 0);
      word = next;
    }
  } else {
    for (int i = 0; i < 4; ++i) {
      to[i] = 0;
      for (int byte = 0; byte < 4; ++byte) to[i] |= uint32_t{from[4 * i + byte]} << (8 * byte);
    }
  }
}
__device__ inline uint32_t Load4ByTwo(const uint8_t* from) {
  const auto* halves = reinterpret_cast<const uint16_t*>(from);
  return halves[0] | uint32_t{halves[1]} << 16;
}

// Four bits, one in each byte.
__device__ inline uint32_t SpreadBits(uint32_t four) { return ((four & 15) * 0x00204081u) & 0x01010101u; }

// 16 bytes of nibbles: low halves are the codes of half 0, high halves those of half 1.
__device__ inline void SplitNibbles(const uint32_t (&bytes)[4], BlockUnit& unit) {
  for (int i = 0; i < 4; ++i) {
    unit.codes[0][i] = bytes[i] & 0x0f0f0f0fu;
    unit.codes[1][i] = (bytes[i] >> 4) & 0x0f0f0f0fu;
  }
}
__device__ inline void SetSmall(BlockUnit& unit, float scale, float offset) {
  unit.scale[0] = unit.scale[1] = scale;
  unit.offset[0] = unit.offset[1] = offset;
  unit.at[0] = 0, unit.at[1] = 16;
}

// Four numbers of a table of sixteen, selected by four nibbles.
__device__ inline uint32_t LookUpFour(const uint32_t (&table)[4], uint32_t nibbles) {
  const uint32_t low = __byte_perm(table[0], table[1], nibbles & 0x7777u);
  const uint32_t high = __byte_perm(table[2], table[3], nibbles & 0x7777u);
  const uint32_t mask = __byte_perm(0xff00u, 0, (nibbles & 0x8888u) >> 3);
  return low ^ ((low ^ high) & mask);
}
__device__ inline void LookUpNibbles(const uint32_t (&table)[4], const uint32_t (&bytes)[4], BlockUnit& unit) {
  for (int i = 0; i < 4; ++i) {
    const uint32_t first = LookUpFour(table, bytes[i] & 0xffffu), second = LookUpFour(table, bytes[i] >> 16);
    unit.codes[0][i] = __byte_perm(first, second, 0x6420);
    unit.codes[1][i] = __byte_perm(first, second, 0x7531);
  }
}
constexpr uint32_t PackFour(const std::array<int8_t, 16>& table, size_t first) {
  uint32_t packed = 0;
  for (size_t i = 0; i < 4; ++i) packed |= uint32_t{static_cast<uint8_t>(table[first + i])} << (8 * i);
  return packed;
}

// The formats of the same kind share a reader. kUnits: units of a block, kBytes: its size. Read fills `unit` from
// number `index` of them.
template <WeightType kType, int kHalfWords = 4>
struct BlockFormat {
  using Unit = BlockUnitOf<kHalfWords>;
  static constexpr int kBytes = static_cast<int>(FormatOf(kType).block_bytes);
  static constexpr int kUnits = static_cast<int>(FormatOf(kType).block_numbers) / Unit::kNumbers;
  static constexpr int kCentre = 0;
  static constexpr bool kOffsets = false;
  static constexpr bool kUnsigned = false;  // codes have eight bits without a sign
};

template <WeightType kType>
struct DeviceFormat;

// What the readers below load at once.
static_assert(DeviceAlignmentOf(WeightType::kQ4_K) == 16 && DeviceAlignmentOf(WeightType::kQ5_K) == 16 &&
              DeviceAlignmentOf(WeightType::kQ5_1) == 8 && DeviceAlignmentOf(WeightType::kIq4Xs) == 8 &&
              DeviceAlignmentOf(WeightType::kQ4_1) == 4 && DeviceAlignmentOf(WeightType::kQ2_K) == 4);
static_assert(DeviceAlignmentOf(WeightType::kQ4_0) == 2 && DeviceAlignmentOf(WeightType::kQ5_0) == 2 &&
              DeviceAlignmentOf(WeightType::kQ8_0) == 2 && DeviceAlignmentOf(WeightType::kQ3_K) == 2 &&
              DeviceAlignmentOf(WeightType::kQ6_K) == 2 && DeviceAlignmentOf(WeightType::kIq4Nl) == 2 &&
              DeviceAlignmentOf(WeightType::kMxfp4) == 1);

template <>
struct DeviceFormat<WeightType::kQ4_0> : BlockFormat<WeightType::kQ4_0> {
  static constexpr int kCentre = 8;
  __device__ static void Read(const uint8_t* block, int, BlockUnit& unit) {
    uint32_t bytes[4];
    Load16<2>(block + 2, bytes);
    SplitNibbles(bytes, unit);
    SetSmall(unit, HalfAt(block), 0);
  }
};
template <>
struct DeviceFormat<WeightType::kQ4_1> : BlockFormat<WeightType::kQ4_1> {
  static constexpr bool kOffsets = true;
  __device__ static void Read(const uint8_t* block, int, BlockUnit& unit) {
    uint32_t bytes[4];
    Load16<4>(block + 4, bytes);
    SplitNibbles(bytes, unit);
    const float2 both = __half22float2(*reinterpret_cast<const __half2*>(block));
    SetSmall(unit, both.x, both.y);
  }
};

__device__ inline void AddFifthBits(uint32_t fifth, BlockUnit& unit) {
  for (int i = 0; i < 4; ++i) {
    unit.codes[0][i] |= SpreadBits(fifth >> (4 * i)) << 4;
    unit.codes[1][i] |= SpreadBits(fifth >> (16 + 4 * i)) << 4;
  }
}
template <>
struct DeviceFormat<WeightType::kQ5_0> : BlockFormat<WeightType::kQ5_0> {
  static constexpr int kCentre = 16;
  __device__ static void Read(const uint8_t* block, int, BlockUnit& unit) {
    uint32_t bytes[4];
    Load16<2>(block + 6, bytes);
    SplitNibbles(bytes, unit);
    AddFifthBits(Load4ByTwo(block + 2), unit);
    SetSmall(unit, HalfAt(block), 0);
  }
};
template <>
struct DeviceFormat<WeightType::kQ5_1> : BlockFormat<WeightType::kQ5_1> {
  static constexpr bool kOffsets = true;
  __device__ static void Read(const uint8_t* block, int, BlockUnit& unit) {
    uint32_t bytes[4];
    Load16<8>(block + 8, bytes);
    SplitNibbles(bytes, unit);
    AddFifthBits(*reinterpret_cast<const uint32_t*>(block + 4), unit);
    const float2 both = __half22float2(*reinterpret_cast<const __half2*>(block));
    SetSmall(unit, both.x, both.y);
  }
};
template <>
struct DeviceFormat<WeightType::kQ8_0> : BlockFormat<WeightType::kQ8_0> {
  __device__ static void Read(const uint8_t* block, int, BlockUnit& unit) {
    Load16<2>(block + 2, unit.codes[0]);
    Load16<2>(block + 18, unit.codes[1]);
    SetSmall(unit, HalfAt(block), 0);
  }
};

// The 2-bit codes of q2_k and q3_k: group `index` of 32 numbers.
__device__ inline void ReadPairs(const uint32_t (&bytes)[4], int shift, uint32_t (&codes)[4]) {
  for (int i = 0; i < 4; ++i) codes[i] = (bytes[i] >> shift) & 0x03030303u;
}
template <>
struct DeviceFormat<WeightType::kQ2_K> : BlockFormat<WeightType::kQ2_K> {
  static constexpr bool kOffsets = true;
  __device__ static void Read(const uint8_t* block, int index, BlockUnit& unit) {
    const float2 both = __half22float2(*reinterpret_cast<const __half2*>(block + 80));
    for (int half = 0; half < 2; ++half) {
      uint32_t bytes[4];
      Load16<4>(block + 16 + index / 4 * 32 + half * 16, bytes);
      ReadPairs(bytes, index % 4 * 2, unit.codes[half]);
      const int scales = block[2 * index + half];
      unit.scale[half] = both.x * static_cast<float>(scales & 15);
      unit.offset[half] = -both.y * static_cast<float>(scales >> 4);
      unit.at[half] = index * 32 + half * 16;
    }
  }
};
template <>
struct DeviceFormat<WeightType::kQ3_K> : BlockFormat<WeightType::kQ3_K> {
  static constexpr int kCentre = 4;
  __device__ static void Read(const uint8_t* block, int index, BlockUnit& unit) {
    const float scale = HalfAt(block + 108);
    const uint8_t* scales = block + 96;
    for (int half = 0; half < 2; ++half) {
      uint32_t bytes[4], third[4];
      Load16<2>(block + 32 + index / 4 * 32 + half * 16, bytes);
      ReadPairs(bytes, index % 4 * 2, unit.codes[half]);
      Load16<2>(block + half * 16, third);
      for (int i = 0; i < 4; ++i) unit.codes[half][i] |= ((third[i] >> index) & 0x01010101u) << 2;
      const int which = 2 * index + half;
      const int low = which < 8 ? scales[which] & 15 : scales[which - 8] >> 4;
      const int high = (scales[8 + which % 4] >> (which / 4 * 2)) & 3;
      unit.scale[half] = scale * static_cast<float>((low | high << 4) - 32);
      unit.at[half] = index * 32 + half * 16;
    }
  }
};

// q4_k and q5_k: unit `index` is 32 bytes of codes. Their low halves are one group, their high halves the next, so that
// a group's scale and offset are unpacked once. The high halves of q4_k stay where they are: codes are then 16 times as
// large and the scale is a sixteenth.
template <WeightType kType, bool kFifthBits>
struct Format45K : BlockFormat<kType, 8> {
  static constexpr bool kOffsets = true;
  static constexpr bool kUnsigned = true;
  __device__ static void Read(const uint8_t* block, int index, BlockUnitOf<8>& unit) {
    uint32_t header[4];
    Load16<16>(block, header);
    for (int part = 0; part < 2; ++part) {
      uint32_t bytes[4], fifth[4] = {};
      Load16<16>(block + (kFifthBits ? 48 : 16) + index * 32 + part * 16, bytes);
      if constexpr (kFifthBits) Load16<16>(block + 16 + part * 16, fifth);
      for (int i = 0; i < 4; ++i) {
        uint32_t low = bytes[i] & 0x0f0f0f0fu, high = bytes[i] & 0xf0f0f0f0u;
        if constexpr (kFifthBits) {
          low |= ((fifth[i] >> (2 * index)) & 0x01010101u) << 4;
          high = (high >> 4) | ((fifth[i] >> (2 * index + 1)) & 0x01010101u) << 4;
        }
        unit.codes[0][4 * part + i] = low;
        unit.codes[1][4 * part + i] = high;
      }
    }
    // Groups 2 · index and the next: six bits each of scale and minimum, as two bytes side by side.
    const int shift = index % 2 * 16;
    const uint32_t low = header[1] >> shift, middle = header[2] >> shift, high = header[3] >> shift;
    const uint32_t scales = index < 2 ? low & 0x3f3fu : (high & 0x0f0fu) | ((low >> 2) & 0x3030u);
    const uint32_t minima = index < 2 ? middle & 0x3f3fu : ((high >> 4) & 0x0f0fu) | ((middle >> 2) & 0x3030u);
    const float2 both = __half22float2(*reinterpret_cast<const __half2*>(&header[0]));
    unit.scale[0] = both.x * static_cast<float>(scales & 255u);
    unit.scale[1] = both.x * (kFifthBits ? 1.0f : 0x1p-4f) * static_cast<float>((scales >> 8) & 255u);
    unit.offset[0] = -both.y * static_cast<float>(minima & 255u);
    unit.offset[1] = -both.y * static_cast<float>((minima >> 8) & 255u);
    unit.at[0] = index * 64, unit.at[1] = index * 64 + 32;
  }
};
template <>
struct DeviceFormat<WeightType::kQ4_K> : Format45K<WeightType::kQ4_K, false> {};
template <>
struct DeviceFormat<WeightType::kQ5_K> : Format45K<WeightType::kQ5_K, true> {};

// Unit `index`: 16 bytes of low bits, whose low halves are numbers 16 · (index % 4) of a run of 128 and whose high
// halves are the numbers 64 later.
template <>
struct DeviceFormat<WeightType::kQ6_K> : BlockFormat<WeightType::kQ6_K> {
  static constexpr int kCentre = 32;
  __device__ static void Read(const uint8_t* block, int index, BlockUnit& unit) {
    const int run = index / 4, part = index % 4;
    uint32_t low[4], high[4];
    Load16<2>(block + index * 16, low);
    Load16<2>(block + 128 + run * 32 + part % 2 * 16, high);
    SplitNibbles(low, unit);
    const float scale = HalfAt(block + 208);
    for (int half = 0; half < 2; ++half) {
      for (int i = 0; i < 4; ++i) unit.codes[half][i] |= ((high[i] >> (part / 2 * 2 + half * 4)) & 0x03030303u) << 4;
      unit.at[half] = run * 128 + half * 64 + part * 16;
      const auto multiplier = static_cast<int8_t>(block[192 + unit.at[half] / 16]);
      unit.scale[half] = scale * static_cast<float>(multiplier);
    }
  }
};

template <>
struct DeviceFormat<WeightType::kIq4Nl> : BlockFormat<WeightType::kIq4Nl> {
  __device__ static void Read(const uint8_t* block, int, BlockUnit& unit) {
    constexpr uint32_t kTable[4] = {PackFour(kIq4Numbers, 0), PackFour(kIq4Numbers, 4), PackFour(kIq4Numbers, 8),
                                    PackFour(kIq4Numbers, 12)};
    uint32_t bytes[4];
    Load16<2>(block + 2, bytes);
    LookUpNibbles(kTable, bytes, unit);
    SetSmall(unit, HalfAt(block), 0);
  }
};
template <>
struct DeviceFormat<WeightType::kIq4Xs> : BlockFormat<WeightType::kIq4Xs> {
  __device__ static void Read(const uint8_t* block, int index, BlockUnit& unit) {
    constexpr uint32_t kTable[4] = {PackFour(kIq4Numbers, 0), PackFour(kIq4Numbers, 4), PackFour(kIq4Numbers, 8),
                                    PackFour(kIq4Numbers, 12)};
    uint32_t bytes[4];
    Load16<8>(block + 8 + index * 16, bytes);
    LookUpNibbles(kTable, bytes, unit);
    const int low = (block[4 + index / 2] >> (index % 2 * 4)) & 15;
    const int high = (*reinterpret_cast<const uint16_t*>(block + 2) >> (2 * index)) & 3;
    SetSmall(unit, HalfAt(block) * static_cast<float>((low | high << 4) - 32), 0);
    unit.at[0] = index * 32, unit.at[1] = index * 32 + 16;
  }
};
template <>
struct DeviceFormat<WeightType::kMxfp4> : BlockFormat<WeightType::kMxfp4> {
  __device__ static void Read(const uint8_t* block, int, BlockUnit& unit) {
    constexpr uint32_t kTable[4] = {PackFour(kMxfp4Numbers, 0), PackFour(kMxfp4Numbers, 4), PackFour(kMxfp4Numbers, 8),
                                    PackFour(kMxfp4Numbers, 12)};
    uint32_t bytes[4];
    Load16<1>(block + 1, bytes);
    LookUpNibbles(kTable, bytes, unit);
    const uint32_t exponent = block[0];
    SetSmall(unit, __uint_as_float(exponent < 2 ? 0x00200000u << exponent : (exponent - 1) << 23), 0);
  }
};

// Calls f with a DeviceFormat for a type that is not plain.
template <class F>
void DispatchBlocks(WeightType type, F&& f) {
  switch (type) {
#define INFINIGEN_FORMAT(name) \
  case WeightType::name:       \
    return f(DeviceFormat<WeightType::name>{})
    INFINIGEN_FORMAT(kQ4_0);
    INFINIGEN_FORMAT(kQ4_1);
    INFINIGEN_FORMAT(kQ5_0);
    INFINIGEN_FORMAT(kQ5_1);
    INFINIGEN_FORMAT(kQ8_0);
    INFINIGEN_FORMAT(kQ2_K);
    INFINIGEN_FORMAT(kQ3_K);
    INFINIGEN_FORMAT(kQ4_K);
    INFINIGEN_FORMAT(kQ5_K);
    INFINIGEN_FORMAT(kQ6_K);
    INFINIGEN_FORMAT(kIq4Nl);
    INFINIGEN_FORMAT(kIq4Xs);
    INFINIGEN_FORMAT(kMxfp4);
#undef INFINIGEN_FORMAT
    case WeightType::kF32:
    case WeightType::kF16:
    case WeightType::kBF16:
      break;
  }
  CHECK(false);
}

}  // namespace infinigen
