// How entries lie in memory, as plain structs that both kv (which decides) and the backends (which move bytes) see.
//
// An extent holds 256 tokens of one layer, head-major, key and value of one token adjacent:
//
//     extent: [kv_heads][256 rows][2: key, value][head_dim]
//
// (quantised rows of numbers: kv/store_view.h)
// so one head's rows are contiguous, and ascending row is ascending address inside an extent. The last extent of a
// sequence's quota has just the rows that the quota leaves for it: [kv_heads][rest][2][head_dim]. A table lists the
// extents of each sequence in each layer. Rows never diverge between heads: every append adds one row to all of them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "kv/ids.h"
#include "tensor/dtype.h"

namespace infinigen {

inline constexpr int64_t kExtentTokens = 256;

// How the numbers of a key or value are stored. The integers are codes of groups of kStoreGroup numbers, each with a
// scale and a minimum of its own.
enum class StoreType : uint8_t { kF32, kF16, kBF16, kInt8, kInt4 };

inline constexpr StoreType kStoreTypes[] = {StoreType::kF32, StoreType::kF16, StoreType::kBF16, StoreType::kInt8,
                                            StoreType::kInt4};

constexpr StoreType StoreTypeOf(DType type) {
  return type == DType::kF32 ? StoreType::kF32 : type == DType::kF16 ? StoreType::kF16 : StoreType::kBF16;
}
constexpr bool IsQuantised(StoreType type) { return type == StoreType::kInt8 || type == StoreType::kInt4; }

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
  }
  return "?";
}

inline constexpr int64_t kStoreGroup = 64;

constexpr int64_t StoreGroups(int64_t dim) { return (dim + kStoreGroup - 1) / kStoreGroup; }
// Of the scales and minima before a row's codes: an f16 each.
constexpr int64_t StoreHeaderBytes(int64_t dim) { return 4 * StoreGroups(dim); }

// Of one key or value; codes of 4 bits end with a whole byte.
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
      return static_cast<size_t>(StoreHeaderBytes(dim) + (dim + 1) / 2);
  }
  return 0;
}

struct EntryLayout {
  StoreType type = StoreType::kF32;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;

  constexpr size_t key_bytes() const { return StoredBytes(type, head_dim); }
  constexpr size_t entry_bytes() const { return 2 * key_bytes(); }
  // One token in one layer, all heads.
  constexpr size_t row_bytes() const { return static_cast<size_t>(kv_heads) * entry_bytes(); }
  constexpr size_t extent_bytes() const { return static_cast<size_t>(kExtentTokens) * row_bytes(); }
};

// The entries of one layer for every sequence slot. Both arrays lie in memory of the compute device.
struct LayerEntries {
  EntryLayout layout;
  std::byte* const* extents = nullptr;  // [slots][extents_per_slot]
  int64_t extents_per_slot = 0;
  const int32_t* quotas = nullptr;  // [slots] rows that the slot's extents hold together

  // The first entry of `head` in an extent; its other rows follow at entry_bytes().
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
