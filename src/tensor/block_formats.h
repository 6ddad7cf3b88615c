// The block formats of quantised weights, byte for byte as GGML and GGUF files store them. UnpackBlock is the
// definition of every format: DecodeRow and the reference products use it, and the tests compare the fast kernels with
// them. Pure functions, for any thread.
//
// A block holds 32 or 256 numbers. Numbers belong to groups of 32, and each group consists of two halves of 16:
//
//   number = scale[group] · multiplier[half] · code  [ + offset[group] · offset_multiplier[half] ]
//
// Codes and multipliers are integers. All multipliers are 1 in formats whose scales belong to 32 numbers. The products
// of an integer and an f16 field are exact in f32.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "tensor/weight_view.h"

namespace infinigen {

inline constexpr int64_t kGroupNumbers = 32;
inline constexpr int64_t kHalfNumbers = 16;
inline constexpr int64_t kMostBlockNumbers = 256;

struct UnpackedBlock {
  std::array<int8_t, kMostBlockNumbers> codes;
  std::array<float, kMostBlockNumbers / kGroupNumbers> scale;
  std::array<float, kMostBlockNumbers / kGroupNumbers> offset;  // only if HasOffsets(type)
  std::array<int8_t, kMostBlockNumbers / kHalfNumbers> multiplier;
  std::array<int8_t, kMostBlockNumbers / kHalfNumbers> offset_multiplier;  // only if HasOffsets(type)
};

// True for formats that store a minimum beside the scale.
constexpr bool HasOffsets(WeightType type) {
  return type == WeightType::kQ4_1 || type == WeightType::kQ5_1 || type == WeightType::kQ2_K ||
         type == WeightType::kQ4_K || type == WeightType::kQ5_K;
}

// Reads one block of a type that is not plain. `block` may have any alignment.
void UnpackBlock(WeightType type, const std::byte* block, UnpackedBlock& out);

// The sixteen numbers that a 4-bit code of iq4_nl and iq4_xs selects.
inline constexpr std::array<int8_t, 16> kIq4Numbers = {-127, -104, -83, -65, -49, -35, -22, -10,
                                                       1,    13,   25,  38,  53,  69,  89,  113};
// Twice the numbers of a 4-bit float (sign, two exponent bits, one mantissa bit), for mxfp4.
inline constexpr std::array<int8_t, 16> kMxfp4Numbers = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
// The scale of an mxfp4 block: half of two to the power of (exponent − 127).
float Mxfp4Scale(uint8_t exponent);

// Scales and minima of the eight groups of q4_k and q5_k, six bits each in twelve bytes: the low six bits of bytes 0-3
// and 4-7 are the scales and minima of groups 0-3; bytes 8-11 hold four bits of a scale and of a minimum of groups 4-7,
// whose upper two bits are the upper two bits of bytes 0-3 and 4-7.
struct GroupScales {
  std::array<uint8_t, 8> scale, minimum;
};
GroupScales UnpackGroupScales(const std::byte* packed);

}  // namespace infinigen
