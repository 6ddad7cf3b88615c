#include "tensor/block_formats.h"

#include <bit>
#include <cstring>

namespace infinigen {
namespace {

// Byte offsets of the fields of a block are written where they are read; sizes are in kWeightFormats.

float ReadF16(const std::byte* from) {
  F16 value;
  std::memcpy(&value, from, sizeof(value));
  return ToFloat(value);
}
uint32_t ReadU32(const std::byte* from) {
  uint32_t value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}
uint8_t At(const std::byte* from, size_t i) { return std::to_integer<uint8_t>(from[i]); }

// Code i of a group of 32 whose low halves of bytes are codes 0-15 and whose high halves are codes 16-31.
uint8_t Nibble(const std::byte* bytes, size_t i) {
  return i < 16 ? At(bytes, i) & 15 : static_cast<uint8_t>(At(bytes, i - 16) >> 4);
}
// Code i of 64 codes in 32 bytes: low halves of the bytes, then high halves.
uint8_t WideNibble(const std::byte* bytes, size_t i) {
  return i < 32 ? At(bytes, i) & 15 : static_cast<uint8_t>(At(bytes, i - 32) >> 4);
}
// Bits `2 · shift` of byte i.
uint8_t Pair(const std::byte* bytes, size_t i, size_t shift) { return (At(bytes, i) >> (2 * shift)) & 3; }

// q4_0: f16 scale, 16 bytes of codes. q4_1: f16 scale, f16 minimum, codes. q5_0 and q5_1: the same with 32 fifth bits
// before the codes.
void UnpackSmall(const std::byte* block, bool minimum, bool fifth_bits, UnpackedBlock& out) {
  out.scale[0] = ReadF16(block);
  block += 2;
  if (minimum) {
    out.offset[0] = ReadF16(block);
    block += 2;
  }
  const uint32_t fifth = fifth_bits ? ReadU32(block) : 0;
  if (fifth_bits) block += 4;
  const int centre = minimum ? 0 : fifth_bits ? 16 : 8;
  for (size_t i = 0; i < 32; ++i) {
    const uint32_t code = Nibble(block, i) | ((fifth >> i) & 1) << 4;
    out.codes[i] = static_cast<int8_t>(static_cast<int>(code) - centre);
  }
}

void UnpackQ8_0(const std::byte* block, UnpackedBlock& out) {
  out.scale[0] = ReadF16(block);
  std::memcpy(out.codes.data(), block + 2, 32);
}

void UnpackTable(const std::byte* bytes, const std::array<int8_t, 16>& table, int8_t* codes) {
  for (size_t i = 0; i < 32; ++i) codes[i] = table[Nibble(bytes, i)];
}

// Scales and minima of 16 halves (four bits each), 64 bytes of 2-bit codes, f16 scale, f16 scale of the minima. A run
// of 32 code bytes holds 128 numbers: bits 0-1 of all bytes, then bits 2-3, and so on.
void UnpackQ2_K(const std::byte* block, UnpackedBlock& out) {
  for (size_t half = 0; half < 16; ++half) {
    out.multiplier[half] = static_cast<int8_t>(At(block, half) & 15);
    out.offset_multiplier[half] = static_cast<int8_t>(At(block, half) >> 4);
  }
  for (size_t i = 0; i < 256; ++i)
    out.codes[i] = static_cast<int8_t>(Pair(block + 16 + i / 128 * 32, i % 32, i / 32 % 4));
  out.scale.fill(ReadF16(block + 80));
  out.offset.fill(-ReadF16(block + 82));
}

// 32 bytes of third bits (bit g of byte i belongs to number i of group g; a zero subtracts 4), 64 bytes of 2-bit codes
// as in q2_k, sixteen 6-bit scales, f16 scale.
void UnpackQ3_K(const std::byte* block, UnpackedBlock& out) {
  const std::byte* scales = block + 96;
  for (size_t half = 0; half < 16; ++half) {
    const int low = half < 8 ? At(scales, half) & 15 : At(scales, half - 8) >> 4;
    const int high = Pair(scales + 8, half % 4, half / 4);
    out.multiplier[half] = static_cast<int8_t>((low | high << 4) - 32);
  }
  for (size_t i = 0; i < 256; ++i) {
    const int low = Pair(block + 32 + i / 128 * 32, i % 32, i / 32 % 4);
    const bool third = ((At(block, i % 32) >> (i / 32)) & 1) != 0;
    out.codes[i] = static_cast<int8_t>(low - (third ? 0 : 4));
  }
  out.scale.fill(ReadF16(block + 108));
}

// f16 scale, f16 scale of the minima, 12 bytes of group scales, (q5_k: 32 bytes of fifth bits, bit g of byte i belongs
// to number i of group g,) 128 bytes of codes: 32 bytes for two groups.
void UnpackQ45_K(const std::byte* block, bool fifth_bits, UnpackedBlock& out) {
  const float scale = ReadF16(block), minimum = ReadF16(block + 2);
  const GroupScales groups = UnpackGroupScales(block + 4);
  for (size_t group = 0; group < 8; ++group) {
    out.scale[group] = scale * static_cast<float>(groups.scale[group]);
    out.offset[group] = -(minimum * static_cast<float>(groups.minimum[group]));
  }
  const std::byte* fifth = block + 16;
  const std::byte* codes = fifth_bits ? fifth + 32 : fifth;
  for (size_t i = 0; i < 256; ++i) {
    const int high = fifth_bits ? (At(fifth, i % 32) >> (i / 32)) & 1 : 0;
    out.codes[i] = static_cast<int8_t>(WideNibble(codes + i / 64 * 32, i % 64) | high << 4);
  }
}

// 128 bytes of low four bits, 64 bytes of upper two bits, 16 int8 scales, f16 scale. Numbers come in two runs of 128: a
// run has 64 bytes of low bits (low halves, then high halves) and 32 bytes of upper bits, as the codes of q2_k.
void UnpackQ6_K(const std::byte* block, UnpackedBlock& out) {
  for (size_t i = 0; i < 256; ++i) {
    const size_t run = i / 128, at = i % 128;
    const std::byte* bytes = block + run * 64;
    const int low = at < 64 ? At(bytes, at) & 15 : At(bytes, at - 64) >> 4;
    out.codes[i] = static_cast<int8_t>((low | Pair(block + 128 + run * 32, at % 32, at / 32) << 4) - 32);
  }
  std::memcpy(out.multiplier.data(), block + 192, 16);
  out.scale.fill(ReadF16(block + 208));
}

// f16 scale, upper two bits of eight 6-bit scales, their low four bits, eight groups of 16 bytes of codes.
void UnpackIq4_Xs(const std::byte* block, UnpackedBlock& out) {
  const float scale = ReadF16(block);
  for (size_t group = 0; group < 8; ++group) {
    const int low = (At(block, 4 + group / 2) >> (group % 2 * 4)) & 15;
    const int high = Pair(block + 2, group / 4, group % 4);
    out.scale[group] = scale * static_cast<float>((low | high << 4) - 32);
    UnpackTable(block + 8 + group * 16, kIq4Numbers, out.codes.data() + group * 32);
  }
}

}  // namespace

float Mxfp4Scale(uint8_t exponent) {
  // Two to the power of (exponent − 128); the two smallest are subnormal.
  return std::bit_cast<float>(exponent < 2 ? 0x00200000u << exponent : (uint32_t{exponent} - 1) << 23);
}

GroupScales UnpackGroupScales(const std::byte* packed) {
  GroupScales out;
  for (size_t i = 0; i < 4; ++i) {
    const uint8_t scale = At(packed, i), minimum = At(packed, i + 4), both = At(packed, i + 8);
    out.scale[i] = scale & 63;
    out.minimum[i] = minimum & 63;
    out.scale[i + 4] = static_cast<uint8_t>((both & 15) | (scale >> 6) << 4);
    out.minimum[i + 4] = static_cast<uint8_t>((both >> 4) | (minimum >> 6) << 4);
  }
  return out;
}

void UnpackBlock(WeightType type, const std::byte* block, UnpackedBlock& out) {
  out.multiplier.fill(1);
  out.offset_multiplier.fill(1);
  switch (type) {
    case WeightType::kQ4_0:
      return UnpackSmall(block, false, false, out);
    case WeightType::kQ4_1:
      return UnpackSmall(block, true, false, out);
    case WeightType::kQ5_0:
      return UnpackSmall(block, false, true, out);
    case WeightType::kQ5_1:
      return UnpackSmall(block, true, true, out);
    case WeightType::kQ8_0:
      return UnpackQ8_0(block, out);
    case WeightType::kQ2_K:
      return UnpackQ2_K(block, out);
    case WeightType::kQ3_K:
      return UnpackQ3_K(block, out);
    case WeightType::kQ4_K:
      return UnpackQ45_K(block, false, out);
    case WeightType::kQ5_K:
      return UnpackQ45_K(block, true, out);
    case WeightType::kQ6_K:
      return UnpackQ6_K(block, out);
    case WeightType::kIq4Nl:
      out.scale[0] = ReadF16(block);
      return UnpackTable(block + 2, kIq4Numbers, out.codes.data());
    case WeightType::kIq4Xs:
      return UnpackIq4_Xs(block, out);
    case WeightType::kMxfp4:
      out.scale[0] = Mxfp4Scale(At(block, 0));
      return UnpackTable(block + 1, kMxfp4Numbers, out.codes.data());
    case WeightType::kF32:
    case WeightType::kF16:
    case WeightType::kBF16:
      break;
  }
  CHECK(false);
}

}  // namespace infinigen
