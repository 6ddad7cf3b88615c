// How entries lie in memory: the ids, structs and number formats that kv (which decides) and the backends (which move
// bytes) share. Plain data, no ownership.
//
// An extent holds 256 rows of one layer, head by head, with key and value of a row adjacent:
//
//     extent: [kv_heads][256 rows][2: key, value][head_dim]
//
// So the rows of one head are contiguous, in ascending order. The last extent of a sequence holds only the rows that
// are left of its quota: [kv_heads][rest][2][head_dim]. A table lists the extents of each sequence in each layer. All
// KV heads have the same number of rows, because every append adds one row to each of them.
//
// A key or value of `dim` numbers that is stored as int8, int6 or int4 is a quantised row:
//
//     row: [groups]{scale f16, minimum f16}, then [dim] codes          groups of 64 numbers, the last may be shorter
//
// An int8 code is a byte. Two int4 codes share a byte, the even one in the low half; in a row of odd length the last
// high half is zero. Int6 codes are stored in two parts: their low 4 bits as int4 codes, then their high 2 bits, those
// of four consecutive codes in a byte, the first one lowest, padded with zeros to 8 bytes for every 32 codes. The order
// of these bytes (HighByte) puts the bits of codes i and i + 4 of a word of low bits 16 bits apart, as the low bits
// are. Rows are not aligned. number = code · scale + minimum, a fused multiply-add in f32; the product is exact (8 bits
// by 11), so a separate multiplication and addition give the same number.
//
// Entries of type int4 have keys of type int6 and values of type int4: an error of a key changes the weights of all
// entries. Both are turned first (kv/turn.h).
//
// A group's minimum is rounded down and its scale up, so no number is clipped: each is read back within half a scale.
// Before that, NaN becomes zero and numbers beyond the range of f16 become ±65504.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/strong_index.h"
#include "tensor/dtype.h"

namespace infinigen {

using LayerId = StrongIndex<struct LayerIdTag>;
using KvHead = StrongIndex<struct KvHeadTag>;
using SeqSlot = StrongIndex<struct SeqSlotTag>;    // number of an admitted sequence, valid until it is released
using SharedId = StrongIndex<struct SharedIdTag>;  // a shared extent: the entries of 256 tokens in every layer

inline constexpr int64_t kExtentTokens = 256;

// How the numbers of a key or value are stored. Integer types are quantised in groups of kStoreGroup numbers, each
// group with its own scale and minimum.
// kInt6 is the type of single keys, not of entries.
enum class StoreType : uint8_t { kF32, kF16, kBF16, kInt8, kInt4, kInt6 };

// The types of entries.
inline constexpr StoreType kStoreTypes[] = {StoreType::kF32, StoreType::kF16, StoreType::kBF16, StoreType::kInt8,
                                            StoreType::kInt4};

constexpr StoreType StoreTypeOf(DType type) {
  return type == DType::kF32 ? StoreType::kF32 : type == DType::kF16 ? StoreType::kF16 : StoreType::kBF16;
}
constexpr bool IsQuantised(StoreType type) {
  return type == StoreType::kInt8 || type == StoreType::kInt4 || type == StoreType::kInt6;
}

constexpr std::string_view Name(StoreType type) {
  switch (type) {
    case StoreType::kF32:
      return "f32";
    case StoreType::kF16:
      return "f16";
    case StoreType::kBF16:
      return "bf16";
    case StoreType::kInt8:
      return "int8";
    case StoreType::kInt4:
      return "int4";
    case StoreType::kInt6:
      return "int6";
  }
  return "?";
}

inline constexpr int64_t kStoreGroup = 64;

constexpr int64_t StoreGroups(int64_t dim) { return (dim + kStoreGroup - 1) / kStoreGroup; }
// The scales and minima (f16) before a row's codes.
constexpr int64_t StoreHeaderBytes(int64_t dim) { return 4 * StoreGroups(dim); }

// Low bits of int4 and int6 codes, padded to a whole byte, and high bits of int6 codes.
constexpr int64_t LowBytes(int64_t dim) { return (dim + 1) / 2; }
constexpr int64_t HighBytes(int64_t dim) { return (dim + 31) / 32 * 8; }
// The byte of the high bits with those of code i, at bit 2 · (i % 4): 0, 2, 1, 3 for each four codes of 16.
constexpr int64_t HighByte(int64_t i) { return i / 16 * 4 + i / 4 % 2 * 2 + i / 8 % 2; }

// Bytes of one key or value.
constexpr size_t StoredBytes(StoreType type, int64_t dim) {
  switch (type) {
    case StoreType::kF32:
      return static_cast<size_t>(4 * dim);
    case StoreType::kF16:
    case StoreType::kBF16:
      return static_cast<size_t>(2 * dim);
    case StoreType::kInt8:
      return static_cast<size_t>(StoreHeaderBytes(dim) + dim);
    case StoreType::kInt4:
      return static_cast<size_t>(StoreHeaderBytes(dim) + LowBytes(dim));
    case StoreType::kInt6:
      return static_cast<size_t>(StoreHeaderBytes(dim) + LowBytes(dim) + HighBytes(dim));
  }
  return 0;
}

inline constexpr float kLargestStored = 65504.0f;  // the largest f16

constexpr int32_t LargestCode(StoreType type) {
  return type == StoreType::kInt8 ? 255 : type == StoreType::kInt6 ? 63 : 15;
}

struct GroupHeader {
  F16 scale, minimum;
};
static_assert(sizeof(GroupHeader) == 4);

// The header of a group with numbers in [low, high]. Precondition: both are within ±kLargestStored.
constexpr GroupHeader FitGroup(float low, float high, int32_t largest_code) {
  GroupHeader header;
  header.minimum = ToF16(low + 0.0f);  // + 0: stores −0 as +0
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

struct EntryLayout {
  StoreType type = StoreType::kF32;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;

  constexpr StoreType key_type() const { return type == StoreType::kInt4 ? StoreType::kInt6 : type; }
  constexpr StoreType value_type() const { return type; }
  // Whether keys and values are turned before they are stored (kv/turn.h).
  constexpr bool turned() const { return type == StoreType::kInt4; }
  constexpr size_t key_bytes() const { return StoredBytes(key_type(), head_dim); }
  constexpr size_t value_bytes() const { return StoredBytes(value_type(), head_dim); }
  constexpr size_t entry_bytes() const { return key_bytes() + value_bytes(); }
  // All heads of one token in one layer.
  constexpr size_t row_bytes() const { return static_cast<size_t>(kv_heads) * entry_bytes(); }
  constexpr size_t extent_bytes() const { return static_cast<size_t>(kExtentTokens) * row_bytes(); }
};

// The entries of one layer for every slot. Both arrays lie in memory of the compute device.
struct LayerEntries {
  EntryLayout layout;
  std::byte* const* extents = nullptr;  // [slots][extents_per_slot]
  int64_t extents_per_slot = 0;
  const int32_t* quotas = nullptr;  // [slots] rows that the slot's extents have room for

  // The first entry of `head` in an extent; the next rows follow every entry_bytes().
  constexpr std::byte* HeadInExtent(int64_t slot, int64_t extent, int64_t head) const {
    const int64_t rows = std::min(int64_t{kExtentTokens}, quotas[slot] - extent * kExtentTokens);
    return extents[slot * extents_per_slot + extent] + static_cast<size_t>(head * rows) * layout.entry_bytes();
  }
  constexpr std::byte* Entry(int64_t slot, int64_t head, int64_t row) const {
    return HeadInExtent(slot, row / kExtentTokens, head) +
           static_cast<size_t>(row % kExtentTokens) * layout.entry_bytes();
  }
};

}  // namespace infinigen
