// The index of a cache: what a selection method stores beside the entries to score rows without reading keys. Sketches
// are InfiniGen's index, page bounds are Quest's. Plain data for both kv and the backends; kv/index.h defines what the
// numbers mean.
//
// An index belongs to rows as entries do: it is appended, shared and saved together with them. It differs in two ways:
// it always lies in memory of the compute device, and a step reads all of it, from the first row to the last. So the
// index of one head is a contiguous run of blocks:
//
//     one layer: [slots][kv_heads][blocks]       block: block_rows rows in block_bytes bytes
//
// Sketches. The sketch of a key is `dims` numbers, k · basis (kv/skew.h), that are enough to estimate its score. The
// sketch of a value, if the method has a tail (kv/tail.h), is `value_dims` numbers that are enough to estimate the
// value. A block has 64 rows with rows innermost, so that a vector register holds one unit of consecutive rows and a
// score needs no sum across lanes:
//
//     block: [dims / per_unit][64 rows] units of 4 bytes, [scale groups][64] scales        of keys
//            [value_dims / 8][64 rows] int4 units, [64] scales                             of values
//            [mean_dims] int8, padded to 4 bytes, scale, padded to 16 bytes                mean of the block's values
//
// A unit holds per_unit consecutive numbers of one row:
//     bf16   2 numbers, no scales
//     int8   4 numbers, each stored as value + 128 in a byte
//     int4   8 numbers: byte b has number b in its low half and number 4 + b in its high half, each as value + 8
// number = value · scale. Scales are bf16; `scale_dims` consecutive numbers of a key share one (the last group may be
// shorter), and all numbers of a value do. Values stay within ±127 and ±7.
//
// The mean is that of the block's 64 values as stored, less the mean of all values (TailBasis::value_mean). It is
// written when the block's last row is appended, and is read only where all 64 rows are visible. Layers that evict have
// none: their rows are replaced one by one.
//
// Page bounds. A page is 16 rows of one KV head; its bounds are the least and the greatest key component in every
// dimension:
//
//     page: [2: least, greatest][head_dim] bf16
//
// So a page is one vector of 2 · head_dim numbers, and its score is one dot product with (negative parts of the query,
// positive parts of the query).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kv/view.h"
#include "tensor/dtype.h"

namespace infinigen {

struct IndexLayout {
  int64_t block_rows = 1;  // divides kExtentTokens, so that an extent's rows are whole blocks
  size_t block_bytes = 0;  // 0: the method has no index

  // Bytes of one head with room for `rows` rows.
  constexpr size_t head_bytes(int64_t rows) const {
    return static_cast<size_t>((rows + block_rows - 1) / block_rows) * block_bytes;
  }
};

// The index of one layer for every slot; memory of the compute device.
struct LayerIndex {
  std::byte* data = nullptr;
  size_t head_stride = 0;  // bytes from head to head
  size_t slot_stride = 0;  // bytes from slot to slot

  constexpr explicit operator bool() const { return data != nullptr; }
  constexpr std::byte* Head(int64_t slot, int64_t head) const {
    return data + static_cast<size_t>(slot) * slot_stride + static_cast<size_t>(head) * head_stride;
  }
};

// Sizes and addresses of a whole index, for the code that allocates, shares or saves it without knowing the method.
struct IndexGeometry {
  IndexLayout layout;
  int64_t layers = 0;  // layers that have an index, which are the layers that select
  int64_t kv_heads = 0;
  int64_t sequences = 0;  // slots
  int64_t rows = 0;       // of the longest sequence

  // One sequence in one layer.
  size_t slot_bytes() const { return static_cast<size_t>(kv_heads) * layout.head_bytes(rows); }
  size_t layer_bytes() const { return static_cast<size_t>(sequences) * slot_bytes(); }
  size_t total_bytes() const { return static_cast<size_t>(layers) * layer_bytes(); }
  // One extent's rows: of one KV head, and of all heads and layers, which is what is stored with a shared extent.
  size_t head_extent_bytes() const { return layout.head_bytes(kExtentTokens); }
  size_t extent_bytes() const { return static_cast<size_t>(layers * kv_heads) * head_extent_bytes(); }
  // One token in all layers.
  size_t token_bytes() const {
    return static_cast<size_t>(layers * kv_heads) * layout.block_bytes / static_cast<size_t>(layout.block_rows);
  }

  // The index of the n-th layer that has one, in memory of total_bytes().
  LayerIndex Layer(std::byte* memory, int64_t n) const {
    return {.data = memory + static_cast<size_t>(n) * layer_bytes(),
            .head_stride = layout.head_bytes(rows),
            .slot_stride = slot_bytes()};
  }
};

// ---- sketches ----

enum class SketchType : uint8_t { kBF16, kInt8, kInt4 };

inline constexpr int64_t kSketchBlock = 64;
inline constexpr int64_t kSketchUnitBytes = 4;
// dims is a multiple of this, so that every type fills whole units.
inline constexpr int64_t kSketchDimStep = 8;
// The most numbers in a value's sketch.
inline constexpr int64_t kMostValueDims = 16;
// The largest value of a query that is compared with integer sketches (kv/index.h).
inline constexpr int32_t kLargestQueryValue = 16319;

// How the sketches of a row are stored.
struct SketchLayout {
  SketchType type = SketchType::kInt8;
  int64_t kv_heads = 0;
  int64_t dims = 0;        // numbers of a key
  int64_t scale_dims = 0;  // consecutive numbers of a key that share a scale, a multiple of 8; 0: all of them
  int64_t value_dims = 0;  // numbers of a value, a multiple of 8; 0: values have no sketch
  int64_t mean_dims = 0;   // numbers of the mean of a block's values: head_dim; 0: blocks have no mean

  constexpr int64_t per_unit() const { return type == SketchType::kBF16 ? 2 : type == SketchType::kInt8 ? 4 : 8; }
  constexpr int64_t units() const { return dims / per_unit(); }
  constexpr bool has_scales() const { return type != SketchType::kBF16; }
  // The largest value that a number of a key is stored as.
  constexpr int32_t largest() const { return type == SketchType::kInt8 ? 127 : kLargestInt4; }
  constexpr int64_t group_dims() const { return scale_dims == 0 ? dims : scale_dims; }
  constexpr int64_t groups() const { return has_scales() && dims > 0 ? (dims + group_dims() - 1) / group_dims() : 0; }
  constexpr bool has_values() const { return value_dims > 0; }
  constexpr bool has_means() const { return mean_dims > 0; }
  constexpr int64_t value_units() const { return value_dims / kInt4PerUnit; }

  constexpr size_t scales_offset() const { return static_cast<size_t>(units() * kSketchBlock * kSketchUnitBytes); }
  constexpr size_t values_offset() const {
    return scales_offset() + static_cast<size_t>(groups() * kSketchBlock) * sizeof(uint16_t);
  }
  constexpr size_t value_scales_offset() const {
    return values_offset() + static_cast<size_t>(value_units() * kSketchBlock * kSketchUnitBytes);
  }
  constexpr size_t means_offset() const {
    return value_scales_offset() + (has_values() ? kSketchBlock * sizeof(uint16_t) : 0);
  }
  constexpr size_t mean_scale_offset() const { return means_offset() + static_cast<size_t>((mean_dims + 3) / 4 * 4); }
  constexpr size_t block_bytes() const {
    return has_means() ? (mean_scale_offset() + sizeof(uint16_t) + 15) / 16 * 16 : means_offset();
  }
  // Bytes of one head with room for `rows` rows.
  constexpr size_t head_bytes(int64_t rows) const {
    return static_cast<size_t>((rows + kSketchBlock - 1) / kSketchBlock) * block_bytes();
  }

  static constexpr int64_t kInt4PerUnit = 8;
  static constexpr int32_t kLargestInt4 = 7;
  static constexpr int32_t kLargestMean = 127;
};

// Copies the sketches of one row; rows are counted within their blocks.
inline void CopySketch(const SketchLayout& layout, const std::byte* from, int64_t from_row, std::byte* to,
                       int64_t to_row) {
  // Copies one element of `bytes` bytes of each of `count` arrays [64] that begin at `offset`.
  const auto copy = [&](size_t offset, int64_t count, size_t bytes) {
    for (int64_t i = 0; i < count; ++i, offset += kSketchBlock * bytes)
      std::memcpy(to + offset + static_cast<size_t>(to_row) * bytes,
                  from + offset + static_cast<size_t>(from_row) * bytes, bytes);
  };
  copy(0, layout.units(), kSketchUnitBytes);
  copy(layout.scales_offset(), layout.groups(), sizeof(uint16_t));
  copy(layout.values_offset(), layout.value_units(), kSketchUnitBytes);
  copy(layout.value_scales_offset(), layout.has_values() ? 1 : 0, sizeof(uint16_t));
}
// Makes the score of one row NaN, so that the row is never chosen and no tail includes it.
inline void VoidSketch(const SketchLayout& layout, std::byte* block, int64_t row) {
  constexpr uint16_t kNotANumber[2] = {0x7fc0, 0x7fc0};  // bf16
  if (layout.has_scales())
    std::memcpy(block + layout.scales_offset() + row * 2, kNotANumber, 2);
  else
    for (int64_t unit = 0; unit < layout.units(); ++unit)
      std::memcpy(block + (unit * kSketchBlock + row) * kSketchUnitBytes, kNotANumber, kSketchUnitBytes);
}

// The sketches of one layer for every slot; memory of the compute device.
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
// Whether an entry in `row` makes its block complete, so that the block gets its mean.
constexpr bool CompletesBlock(int64_t row) { return row % kSketchBlock == kSketchBlock - 1; }

// Projects a layer's queries and keys to their sketches:
//     query sketch = q · query              [dims] = [head_dim] · [head_dim][dims]
//     key sketch   = k · key − key_offset   (the offset centres the keys; a constant does not change the ranking)
// Memory of the compute device.
struct SketchBasis {
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t dims = 0;
  const float* query = nullptr;       // [slots or 1][kv_heads][head_dim][dims]
  const float* key = nullptr;         // [slots or 1][kv_heads][head_dim][dims]
  const float* key_offset = nullptr;  // [slots or 1][kv_heads][dims]
  bool per_slot = false;              // every sequence has its own columns

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

// Projects values to their sketches, and estimates what a query's scores have in common, for the tail (kv/tail.h):
//     value sketch = v · value − value_offset     [value_dims] = [head_dim] · [head_dim][value_dims]
//     level        = q · key_mean                 which centred key sketches leave out of q · k
// The columns of `value` are orthonormal, so v ≈ value_mean + value · sketch. Memory of the compute device.
struct TailBasis {
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t value_dims = 0;
  const float* key_mean = nullptr;      // [kv_heads][head_dim]
  const float* value = nullptr;         // [kv_heads][head_dim][value_dims]
  const float* value_offset = nullptr;  // [kv_heads][value_dims]
  const float* value_mean = nullptr;    // [kv_heads][head_dim]

  constexpr const float* KeyMean(int64_t head) const { return key_mean + head * head_dim; }
  constexpr const float* Value(int64_t head) const { return value + head * head_dim * value_dims; }
  constexpr const float* ValueOffset(int64_t head) const { return value_offset + head * value_dims; }
  constexpr const float* ValueMean(int64_t head) const { return value_mean + head * head_dim; }
};

// ---- page bounds ----

// As published. The bounds take 2 · 2 / 16 bytes per row and dimension, an eighth of a bf16 key.
inline constexpr int64_t kPageRows = 16;

struct PageBoundsLayout {
  int64_t kv_heads = 0;
  int64_t head_dim = 0;

  constexpr int64_t page_numbers() const { return 2 * head_dim; }
  constexpr size_t page_bytes() const { return static_cast<size_t>(page_numbers()) * sizeof(BF16); }
  // Bytes of one head with room for `rows` rows.
  constexpr size_t head_bytes(int64_t rows) const {
    return static_cast<size_t>((rows + kPageRows - 1) / kPageRows) * page_bytes();
  }
};

// The bounds of one layer for every slot; memory of the compute device.
struct LayerPageBounds {
  PageBoundsLayout layout;
  std::byte* data = nullptr;
  size_t head_stride = 0;  // bytes from head to head
  size_t slot_stride = 0;  // bytes from slot to slot

  // [2][head_dim]; the next page follows.
  BF16* Page(int64_t slot, int64_t head, int64_t page) const {
    return reinterpret_cast<BF16*>(data + static_cast<size_t>(slot) * slot_stride +
                                   static_cast<size_t>(head) * head_stride) +
           page * layout.page_numbers();
  }
};

}  // namespace infinigen
