#include "tensor/block_encode.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "tensor/block_formats.h"

namespace infinigen {
namespace {

using Codes = std::array<uint8_t, kMostBlockNumbers>;  // as stored: unsigned

// Writes an f16 and returns its value.
float PutF16(float value, std::byte* to) {
  const F16 stored = ToF16(value);
  std::memcpy(to, &stored, sizeof(stored));
  return ToFloat(stored);
}
int Nearest(float value) { return static_cast<int>(std::lrint(value)); }
// The nearest integer of a small number; unlike std::rint this is no call, so loops over it become vectors.
float RoundSmall(float value) { return (value + 0x1.8p23f) - 0x1.8p23f; }
// Zero for numbers so small that their inverse is infinite: their f16 is zero.
float Inverse(float value) {
  const float inverse = 1 / value;
  return std::isfinite(inverse) ? inverse : 0;
}
// More than any type here can hold: the largest f16 · 128 · 32 of q6_k is 2.7e8. Squares and cubes of numbers up to it
// are finite in f32.
constexpr float kMostNumber = 0x1p30f;

// The number of largest magnitude, with its sign.
float LargestOf(std::span<const float> x) {
  float largest = 0;
  for (const float v : x)
    if (std::fabs(v) > std::fabs(largest)) largest = v;
  return largest;
}

// A scale s such that s · code, with codes in [−steps, steps), is near x. The errors are weighted by x². Infinite if a
// number is too large for every type.
float FitScale(std::span<const float> x, int steps) {
  const float largest = LargestOf(x);
  if (largest == 0) return 0;
  if (std::fabs(largest) > kMostNumber) return INFINITY;
  float best_scale = 0, best_gain = -1;
  for (int trial = -9; trial <= 9; ++trial) {
    const float inverse = -(static_cast<float>(steps) + 0.1f * static_cast<float>(trial)) / largest;
    float products = 0, squares = 0;  // weighted sums of x · code and code²
    for (const float v : x) {
      const float code = RoundSmall(std::clamp(v * inverse, static_cast<float>(-steps), static_cast<float>(steps - 1)));
      products += v * v * v * code;
      squares += v * v * code * code;
    }
    // The scale of least error is products / squares; it reduces the error by products² / squares.
    if (squares > 0 && products * products > best_gain * squares) {
      best_gain = products * products / squares;
      best_scale = products / squares;
    }
  }
  return best_scale;
}

struct Line {
  float scale = 0, minimum = 0;  // x ≈ scale · code + minimum
};

// Scale and minimum for codes in [0, most]. If `below_zero`, the minimum is at most zero, as K types store it. The
// scale is infinite if a number is too large for every type.
Line FitLine(std::span<const float> x, int most, bool below_zero) {
  float low = x[0], high = x[0], energy = 0;
  for (const float v : x) {
    low = std::min(low, v);
    high = std::max(high, v);
    energy += v * v;
  }
  if (std::max(-low, high) > kMostNumber) return {INFINITY, 0};
  if (below_zero) low = std::min(low, 0.0f);
  if (high <= low) return {0, low};
  const float base = std::sqrt(energy / static_cast<float>(x.size()));
  Line best;
  float best_error = INFINITY;
  for (int trial = -10; trial <= 10; ++trial) {
    const float inverse = (static_cast<float>(most) + 0.1f * static_cast<float>(trial)) / (high - low);
    const auto code_of = [&](float v) {
      return RoundSmall(std::clamp((v - low) * inverse, 0.0f, static_cast<float>(most)));
    };
    float w = 0, wc = 0, wcc = 0, wx = 0, wxc = 0;  // weighted sums
    for (const float v : x) {
      const float weight = base + std::fabs(v), code = code_of(v);
      w += weight;
      wc += weight * code;
      wcc += weight * code * code;
      wx += weight * v;
      wxc += weight * v * code;
    }
    const float determinant = w * wcc - wc * wc;
    Line line{(w * wxc - wx * wc) / determinant, (wcc * wx - wc * wxc) / determinant};
    if (!(determinant > 0)) line = {0, wx / w};  // all codes are equal
    if (below_zero && line.minimum > 0) line = {wcc > 0 ? wxc / wcc : 0, 0};
    float error = 0;
    for (const float v : x) {
      const float difference = line.scale * code_of(v) + line.minimum - v;
      error += (base + std::fabs(v)) * difference * difference;
    }
    if (error < best_error) {
      best_error = error;
      best = line;
    }
  }
  return best;
}

// The squared error, weighted by magnitude, of x rounded to scale · code + minimum.
float RoundingError(std::span<const float> x, float scale, float minimum, int most) {
  const float inverse = Inverse(scale);
  float energy = 0, errors = 0, weighted = 0;
  for (const float v : x) {
    const float code = RoundSmall(std::clamp((v - minimum) * inverse, 0.0f, static_cast<float>(most)));
    const float difference = scale * code + minimum - v;
    energy += v * v;
    errors += difference * difference;
    weighted += std::fabs(v) * difference * difference;
  }
  return std::sqrt(energy / static_cast<float>(x.size())) * errors + weighted;
}

// codes = the nearest of x ≈ scale · (code − centre) + minimum, in [0, most].
void Round(std::span<const float> x, float scale, float minimum, int centre, int most, uint8_t* codes) {
  const float inverse = Inverse(scale);
  for (size_t i = 0; i < x.size(); ++i)
    codes[i] = static_cast<uint8_t>(std::clamp(Nearest((x[i] - minimum) * inverse) + centre, 0, most));
}

void PackNibbles(const uint8_t* low, const uint8_t* high, size_t count, std::byte* out) {
  for (size_t i = 0; i < count; ++i) out[i] = static_cast<std::byte>((low[i] & 15) | (high[i] & 15) << 4);
}

// Byte for byte what GGML's own quantiser writes.
void EncodeQ8_0(std::span<const float> x, std::byte* out) {
  const float scale = std::fabs(LargestOf(x)) / 127.0f, inverse = Inverse(scale);
  if (!std::isfinite(PutF16(scale, out))) return;
  for (size_t i = 0; i < x.size(); ++i)
    out[2 + i] = static_cast<std::byte>(static_cast<int8_t>(std::round(x[i] * inverse)));
}

void EncodeSmall(std::span<const float> x, bool minimum, bool fifth_bits, std::byte* out) {
  const int most = fifth_bits ? 31 : 15, centre = minimum ? 0 : (most + 1) / 2;
  Codes codes;
  float scale = 0, low = 0;
  if (minimum) {
    const Line line = FitLine(x, most, false);
    scale = PutF16(line.scale, out);
    low = PutF16(line.minimum, out + 2);
    out += 4;
  } else {
    scale = PutF16(FitScale(x, centre), out);
    out += 2;
  }
  if (!std::isfinite(scale) || !std::isfinite(low)) return;
  Round(x, scale, low, centre, most, codes.data());
  if (fifth_bits) {
    uint32_t bits = 0;
    for (size_t i = 0; i < 32; ++i) bits |= static_cast<uint32_t>(codes[i] >> 4) << i;
    std::memcpy(out, &bits, sizeof(bits));
    out += sizeof(bits);
  }
  PackNibbles(codes.data(), codes.data() + 16, 16, out);
}

// The inverse of UnpackGroupScales.
void PackGroupScales(const GroupScales& groups, std::byte* out) {
  for (size_t i = 0; i < 4; ++i) {
    out[i] = static_cast<std::byte>(groups.scale[i] | (groups.scale[i + 4] >> 4) << 6);
    out[i + 4] = static_cast<std::byte>(groups.minimum[i] | (groups.minimum[i + 4] >> 4) << 6);
    out[i + 8] = static_cast<std::byte>((groups.scale[i + 4] & 15) | (groups.minimum[i + 4] & 15) << 4);
  }
}

// The scale and minimum of a group as multiples of the block's: those nearest to the line, or a neighbour with a
// smaller error.
void ChooseGroup(std::span<const float> x, const Line& line, float scale, float minimum, int most, uint8_t& scale_code,
                 uint8_t& minimum_code) {
  const int s = std::clamp(Nearest(line.scale * Inverse(scale)), 0, 63);
  const int m = std::clamp(Nearest(-line.minimum * Inverse(minimum)), 0, 63);
  float best = INFINITY;
  for (int i = std::max(s - 1, 0); i <= std::min(s + 1, 63); ++i) {
    for (int j = std::max(m - 1, 0); j <= std::min(m + 1, 63); ++j) {
      const float error = RoundingError(x, scale * static_cast<float>(i), -minimum * static_cast<float>(j), most);
      if (error >= best) continue;
      best = error;
      scale_code = static_cast<uint8_t>(i);
      minimum_code = static_cast<uint8_t>(j);
    }
  }
}

void EncodeQ45_K(std::span<const float> x, bool fifth_bits, std::byte* out) {
  constexpr float kMostScale = 63;
  const int most = fifth_bits ? 31 : 15;
  std::array<Line, 8> lines;
  float largest_scale = 0, largest_minimum = 0;
  for (size_t g = 0; g < 8; ++g) {
    lines[g] = FitLine(x.subspan(g * 32, 32), most, true);
    largest_scale = std::max(largest_scale, lines[g].scale);
    largest_minimum = std::max(largest_minimum, -lines[g].minimum);
  }
  const float scale = PutF16(largest_scale / kMostScale, out), minimum = PutF16(largest_minimum / kMostScale, out + 2);
  if (!std::isfinite(scale) || !std::isfinite(minimum)) return;
  GroupScales groups;
  Codes codes;
  for (size_t g = 0; g < 8; ++g) {
    ChooseGroup(x.subspan(g * 32, 32), lines[g], scale, minimum, most, groups.scale[g], groups.minimum[g]);
    Round(x.subspan(g * 32, 32), scale * groups.scale[g], -minimum * groups.minimum[g], 0, most, &codes[g * 32]);
  }
  PackGroupScales(groups, out + 4);
  out += 16;
  if (fifth_bits) {
    for (size_t i = 0; i < 32; ++i) {
      uint32_t bits = 0;
      for (size_t g = 0; g < 8; ++g) bits |= static_cast<uint32_t>(codes[g * 32 + i] >> 4) << g;
      out[i] = static_cast<std::byte>(bits);
    }
    out += 32;
  }
  for (size_t pair = 0; pair < 4; ++pair) PackNibbles(&codes[pair * 64], &codes[pair * 64 + 32], 32, out + pair * 32);
}

void EncodeQ6_K(std::span<const float> x, std::byte* out) {
  std::array<float, 16> scales;
  for (size_t half = 0; half < 16; ++half) scales[half] = FitScale(x.subspan(half * 16, 16), 32);
  // The largest scale becomes −128, the multiplier of largest magnitude.
  const float scale = PutF16(LargestOf(scales) / -128.0f, out + 208);
  if (!std::isfinite(scale)) return;
  Codes codes;
  for (size_t half = 0; half < 16; ++half) {
    const int multiplier = std::clamp(Nearest(scales[half] * Inverse(scale)), -128, 127);
    out[192 + half] = static_cast<std::byte>(static_cast<int8_t>(multiplier));
    Round(x.subspan(half * 16, 16), scale * static_cast<float>(multiplier), 0, 32, 63, &codes[half * 16]);
  }
  for (size_t run = 0; run < 2; ++run) {
    const uint8_t* numbers = &codes[run * 128];
    PackNibbles(numbers, numbers + 64, 64, out + run * 64);
    for (size_t i = 0; i < 32; ++i) {
      uint32_t bits = 0;
      for (size_t part = 0; part < 4; ++part) bits |= static_cast<uint32_t>(numbers[part * 32 + i] >> 4) << (2 * part);
      out[128 + run * 32 + i] = static_cast<std::byte>(bits);
    }
  }
}

void EncodeBlock(WeightType type, std::span<const float> x, std::byte* out) {
  switch (type) {
    case WeightType::kQ8_0:
      return EncodeQ8_0(x, out);
    case WeightType::kQ4_0:
      return EncodeSmall(x, false, false, out);
    case WeightType::kQ4_1:
      return EncodeSmall(x, true, false, out);
    case WeightType::kQ5_0:
      return EncodeSmall(x, false, true, out);
    case WeightType::kQ5_1:
      return EncodeSmall(x, true, true, out);
    case WeightType::kQ4_K:
      return EncodeQ45_K(x, false, out);
    case WeightType::kQ5_K:
      return EncodeQ45_K(x, true, out);
    case WeightType::kQ6_K:
      return EncodeQ6_K(x, out);
    default:
      CHECK(false);
  }
}

}  // namespace

bool CanEncode(WeightType type) {
  switch (type) {
    case WeightType::kQ8_0:
    case WeightType::kQ4_0:
    case WeightType::kQ4_1:
    case WeightType::kQ5_0:
    case WeightType::kQ5_1:
    case WeightType::kQ4_K:
    case WeightType::kQ5_K:
    case WeightType::kQ6_K:
      return true;
    default:
      return false;
  }
}

void EncodeRow(WeightType type, std::span<const float> numbers, std::byte* out) {
  const WeightFormat& format = FormatOf(type);
  const auto block = static_cast<size_t>(format.block_numbers);
  CHECK(CanEncode(type) && numbers.size() % block == 0);
  for (size_t first = 0; first < numbers.size(); first += block, out += format.block_bytes)
    EncodeBlock(type, numbers.subspan(first, block), out);
}

}  // namespace infinigen
