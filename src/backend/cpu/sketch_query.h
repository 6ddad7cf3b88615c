// The query sketches of one KV head, prepared for scoring. For integer sketches kv/index.h defines the rounding of a
// query: to 15 bits, value = number / scale.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kv/index_view.h"

namespace infinigen {

inline constexpr float kSketchQueryRange = 16319.0f;  // 127 · 128 + 63: two bytes of 7 bits each

class SketchQuery {
 public:
  static int64_t Floats(const SketchLayout& layout, int64_t group) {
    return (2 * layout.dims + layout.groups() + 1) * group;
  }

  // numbers [group][dims]; scratch [Floats] receives the prepared form and must outlive this object.
  SketchQuery(const SketchLayout& l, int64_t g, const float* n, float* scratch) : layout(l), group(g), numbers(n) {
    if (!layout.has_scales()) return;
    values = reinterpret_cast<int32_t*>(scratch);
    quads = values + group * layout.dims;
    pairs = quads + group * layout.dims / 2;
    bias = pairs + group * layout.dims / 2;
    scale = reinterpret_cast<float*>(bias + layout.groups() * group);
    for (int64_t head = 0; head < group; ++head) Quantise(head);
  }

  SketchLayout layout;
  int64_t group;
  const float* numbers;       // [group][dims]
  int32_t* values = nullptr;  // [group][dims]; this and all below for integer types only
  // [dims / 4][group][2], words of four bytes: value = 128 · byte of the first word + byte of the second.
  int32_t* quads = nullptr;
  // [dims / 4][group][2], words of two halves: values 0 and 2 of the four, then 1 and 3.
  int32_t* pairs = nullptr;
  int32_t* bias = nullptr;  // [scale groups][group]: excess of a sum, since keys are stored as value + 128 or value + 8
  float* scale = nullptr;   // [group]

 private:
  void Quantise(int64_t head) {
    const float* from = numbers + head * layout.dims;
    int32_t* to = values + head * layout.dims;
    float largest = 0;
    for (int64_t i = 0; i < layout.dims; ++i)
      if (std::isfinite(from[i])) largest = std::max(largest, std::fabs(from[i]));
    scale[head] = largest / kSketchQueryRange;
    const float inverse = 1.0f / scale[head];
    const bool usable = scale[head] > 0 && std::isfinite(inverse);
    for (int64_t g = 0; g < layout.groups(); ++g) bias[g * group + head] = 0;
    const int32_t excess = layout.type == SketchType::kInt8 ? 128 : 8;
    for (int64_t i = 0; i < layout.dims; ++i) {
      to[i] = 0;
      if (usable && std::isfinite(from[i]))
        to[i] =
            static_cast<int32_t>(std::clamp(std::nearbyint(from[i] * inverse), -kSketchQueryRange, kSketchQueryRange));
      bias[i / layout.group_dims() * group + head] += to[i] * excess;
    }
    for (int64_t quad = 0; quad < layout.dims / 4; ++quad) {
      uint32_t high = 0, low = 0;
      for (int64_t b = 0; b < 4; ++b) {
        const int32_t value = to[4 * quad + b], rest = ((value + 64) & 127) - 64;
        high |= static_cast<uint32_t>(((value - rest) / 128) & 255) << (8 * b);
        low |= static_cast<uint32_t>(rest & 255) << (8 * b);
      }
      quads[(quad * group + head) * 2] = static_cast<int32_t>(high);
      quads[(quad * group + head) * 2 + 1] = static_cast<int32_t>(low);
      for (int64_t half = 0; half < 2; ++half)
        pairs[(quad * group + head) * 2 + half] = static_cast<int32_t>(
            static_cast<uint32_t>(to[4 * quad + half] & 0xffff) | static_cast<uint32_t>(to[4 * quad + half + 2]) << 16);
    }
  }
};

// ---- Scores of one block of an integer sketch by AVX512-VNNI, which Highway 1.0.3 has no operation for: a
// multiply-add of four bytes per 32-bit lane, u8 · s8, that is, one unit of the sketch times one word of `quads`.

// Whether the processor has VNNI and Highway may use it (tests restrict a backend to one target). May take
// microseconds: call it once.
bool HasVnni();
// scores [group][64]. Requires HasVnni().
void ScoreBlockVnni(const SketchQuery& query, const std::byte* block, float* scores);

}  // namespace infinigen
