// Quantised rows: how a key or value of `dim` numbers lies in memory as int8 or int4, and what its codes mean. Below
// both kv and the backends.
//
//     row: [groups]{scale f16, minimum f16}, then [dim] codes          groups of 64 numbers, the last may be shorter
//
// int8 codes are bytes; int4 codes are two to a byte, the even number in the low half, and an odd row's last high half
// is zero. A row has no alignment. number = code · scale + minimum, as one fused multiply-add in f32; the product is
// exact (8 bits by 11), so that a multiplication and an addition give the same number.
//
// The minimum of a group is rounded down and the scale up, so no number is clipped: it comes back within half a scale.
// Beforehand a NaN becomes zero, and what f16 cannot hold becomes the largest that it can (±65504).
#pragma once

#include <algorithm>

#include "kv/view.h"

namespace infinigen {

inline constexpr float kLargestStored = 65504.0f;

constexpr int32_t LargestCode(StoreType type) { return type == StoreType::kInt8 ? 255 : 15; }

struct GroupHeader {
  F16 scale, minimum;
};
static_assert(sizeof(GroupHeader) == 4);

// The header of a group whose numbers span [low, high], both within ±kLargestStored.
constexpr GroupHeader FitGroup(float low, float high, int32_t largest_code) {
  GroupHeader header;
  header.minimum = ToF16(low + 0.0f);  // adding zero: of two zeros it is the positive one that is stored
  if (ToFloat(header.minimum) > low) {
    const uint16_t bits = header.minimum.bits;
    header.minimum.bits = static_cast<uint16_t>((bits & 0x7fff) == 0   ? 0x8001
                                                : (bits & 0x8000) != 0 ? bits + 1
                                                                       : bits - 1);
  }
  const float scale = (high - ToFloat(header.minimum)) / static_cast<float>(largest_code) + 0.0f;
  header.scale = ToF16(scale);
  if (ToFloat(header.scale) < scale) ++header.scale.bits;
  return header;
}

}  // namespace infinigen
