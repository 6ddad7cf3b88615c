// How sketches lie in memory, as plain structs for both kv and the backends.
//
// The sketch of a key is the few numbers (`dims` of them) that are enough to guess its score: k · basis, see
// kv/skew.h. Unlike entries, sketches are read from the first row to the last in every step, and never by row. So a
// head's sketches are one run of blocks of 64 rows, with rows innermost: a vector register holds one unit of
// consecutive rows, and a score needs no sum across lanes.
//
//     one layer: [slots][kv_heads][blocks]   block: [dims / per_unit][64 rows] units of 4 bytes, then [64] scales
//
// A unit holds per_unit consecutive numbers of one row:
//     bf16   2 numbers, no scales
//     int8   4 numbers, each stored as value + 128 in a byte
//     int4   8 numbers: byte b has number b in its low half and number 4 + b in its high half, each as value + 8
// number = value · scale, the row's scale being a bf16. Values stay within ±127 and ±7.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace infinigen {

enum class SketchType : uint8_t { kBF16, kInt8, kInt4 };

inline constexpr int64_t kSketchBlock = 64;
inline constexpr int64_t kSketchUnitBytes = 4;
// dims is a multiple of this, so that every type fills whole units.
inline constexpr int64_t kSketchDimStep = 8;
// Of queries that are compared with integer sketches (kv/sketch.h).
inline constexpr int32_t kLargestQueryValue = 16319;

struct SketchLayout {
  SketchType type = SketchType::kInt8;
  int64_t kv_heads = 0;
  int64_t dims = 0;

  constexpr int64_t per_unit() const { return type == SketchType::kBF16 ? 2 : type == SketchType::kInt8 ? 4 : 8; }
  constexpr int64_t units() const { return dims / per_unit(); }
  constexpr bool has_scales() const { return type != SketchType::kBF16; }
  // The largest value that a number is stored as.
  constexpr int32_t largest() const { return type == SketchType::kInt8 ? 127 : 7; }

  constexpr size_t scales_offset() const { return static_cast<size_t>(units() * kSketchBlock * kSketchUnitBytes); }
  constexpr size_t block_bytes() const {
    return scales_offset() + (has_scales() ? kSketchBlock * sizeof(uint16_t) : 0);
  }
  // Of one head with room for `rows` rows.
  constexpr size_t head_bytes(int64_t rows) const {
    return static_cast<size_t>((rows + kSketchBlock - 1) / kSketchBlock) * block_bytes();
  }
};

// Sketches of single rows, at their places in blocks: moved, or made one whose score is not a number.
inline void CopySketch(const SketchLayout& layout, const std::byte* from, int64_t from_row, std::byte* to,
                       int64_t to_row) {
  for (int64_t unit = 0; unit < layout.units(); ++unit)
    std::memcpy(to + (unit * kSketchBlock + to_row) * kSketchUnitBytes,
                from + (unit * kSketchBlock + from_row) * kSketchUnitBytes, kSketchUnitBytes);
  if (layout.has_scales())
    std::memcpy(to + layout.scales_offset() + to_row * 2, from + layout.scales_offset() + from_row * 2, 2);
}
inline void VoidSketch(const SketchLayout& layout, std::byte* block, int64_t row) {
  constexpr uint16_t kNotANumber[2] = {0x7fc0, 0x7fc0};  // bf16
  if (layout.has_scales())
    std::memcpy(block + layout.scales_offset() + row * 2, kNotANumber, 2);
  else
    for (int64_t unit = 0; unit < layout.units(); ++unit)
      std::memcpy(block + (unit * kSketchBlock + row) * kSketchUnitBytes, kNotANumber, kSketchUnitBytes);
}

// The sketches of one layer for every sequence slot; memory of the compute device.
struct LayerSketches {
  SketchLayout layout;
  std::byte* data = nullptr;
  size_t head_stride = 0;  // bytes from head to head
  size_t slot_stride = 0;  // bytes from slot to slot

  constexpr explicit operator bool() const { return data != nullptr; }
  constexpr std::byte* Head(int64_t slot, int64_t head) const {
    return data + static_cast<size_t>(slot) * slot_stride + static_cast<size_t>(head) * head_stride;
  }
  constexpr std::byte* Block(int64_t slot, int64_t head, int64_t block) const {
    return Head(slot, head) + static_cast<size_t>(block) * layout.block_bytes();
  }
};

// From a layer's queries and keys to their sketches:
//     query sketch = q · query              [dims] = [head_dim] · [head_dim][dims]
//     key sketch   = k · key − key_offset   (the offset centres keys; a constant changes no ranking)
// Memory of the compute device.
struct SketchBasis {
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t dims = 0;
  const float* query = nullptr;       // [slots or 1][kv_heads][head_dim][dims]
  const float* key = nullptr;         // the same shape
  const float* key_offset = nullptr;  // [slots or 1][kv_heads][dims]
  bool per_slot = false;              // columns of its own for every sequence

  constexpr const float* Query(int64_t slot, int64_t head) const {
    return query + ((per_slot ? slot : 0) * kv_heads + head) * head_dim * dims;
  }
  constexpr const float* Key(int64_t slot, int64_t head) const {
    return key + ((per_slot ? slot : 0) * kv_heads + head) * head_dim * dims;
  }
  constexpr const float* KeyOffset(int64_t slot, int64_t head) const {
    return key_offset + ((per_slot ? slot : 0) * kv_heads + head) * dims;
  }
};

}  // namespace infinigen
