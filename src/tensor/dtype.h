// Element types of stored tensors and exact scalar conversions. SIMD conversions are part of the kernels.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"

namespace infinigen {

enum class DType : uint8_t { kF32, kF16, kBF16 };

constexpr size_t SizeOf(DType type) { return type == DType::kF32 ? 4 : 2; }

constexpr std::string_view Name(DType type) {
  switch (type) {
    case DType::kF32:
      return "f32";
    case DType::kF16:
      return "f16";
    case DType::kBF16:
      return "bf16";
  }
  return "?";
}

struct BF16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};

constexpr float ToFloat(float value) { return value; }
constexpr float ToFloat(BF16 value) { return std::bit_cast<float>(uint32_t{value.bits} << 16); }
constexpr float ToFloat(F16 value) {
  const uint32_t sign = (value.bits & 0x8000u) << 16;
  const uint32_t exponent = (value.bits >> 10) & 0x1f;
  const uint32_t mantissa = value.bits & 0x3ff;
  if (exponent == 0) {  // zero or subnormal: mantissa · 2^-24
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return sign != 0 ? -magnitude : magnitude;
  }
  const uint32_t bits = exponent == 31 ? 0x7f800000u | (mantissa << 13) : ((exponent + 112) << 23) | (mantissa << 13);
  return std::bit_cast<float>(sign | bits);
}

// Round to nearest, ties to even; NaN stays NaN.
constexpr BF16 ToBF16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((bits >> 16) | 0x40)};
  return {static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16)};
}
constexpr F16 ToF16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {static_cast<uint16_t>(sign | 0x7e00)};
  if (magnitude >= 0x477ff000u) return {static_cast<uint16_t>(sign | 0x7c00)};  // rounds to 2^16 or more: infinity
  if (magnitude < 0x38800000u) {  // below 2^-14: the result is subnormal; adding 0.5 lets the FPU round at bit 2^-24
    const float rounded = std::bit_cast<float>(magnitude) + 0.5f;
    return {static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(rounded) - 0x3f000000u))};
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1);
  return {static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13))};
}

// Calls f with a value of the C++ type for `type`: Dispatch(type, [&](auto tag) { using T = decltype(tag); … }).
template <class F>
decltype(auto) Dispatch(DType type, F&& f) {
  switch (type) {
    case DType::kF32:
      return f(float{});
    case DType::kF16:
      return f(F16{});
    case DType::kBF16:
      return f(BF16{});
  }
  CHECK(false);
}

}  // namespace infinigen
