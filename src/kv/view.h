// How entries lie in memory, as plain structs that both kv (which decides) and the backends (which move bytes) see.
//
// An extent holds 256 tokens of one layer, head-major, key and value of one token adjacent:
//
//     extent: [kv_heads][256 rows][2: key, value][head_dim]
//
// so one head's rows are contiguous, and ascending row is ascending address inside an extent. The last extent of a
// sequence's quota has just the rows that the quota leaves for it: [kv_heads][rest][2][head_dim]. A table lists the
// extents of each sequence in each layer. Rows never diverge between heads: every append adds one row to all of them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kv/ids.h"
#include "tensor/dtype.h"

namespace infinigen {

inline constexpr int64_t kExtentTokens = 256;

struct EntryLayout {
  DType type = DType::kF32;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;

  size_t key_bytes() const { return static_cast<size_t>(head_dim) * SizeOf(type); }
  size_t entry_bytes() const { return 2 * key_bytes(); }
  // One token in one layer, all heads.
  size_t row_bytes() const { return static_cast<size_t>(kv_heads) * entry_bytes(); }
  size_t extent_bytes() const { return static_cast<size_t>(kExtentTokens) * row_bytes(); }
};

// The entries of one layer for every sequence slot. Both arrays lie in memory of the compute device.
struct LayerEntries {
  EntryLayout layout;
  std::byte* const* extents = nullptr;  // [slots][extents_per_slot]
  int64_t extents_per_slot = 0;
  const int32_t* quotas = nullptr;  // [slots] rows that the slot's extents hold together

  // The first entry of `head` in an extent; its other rows follow at entry_bytes().
  std::byte* HeadInExtent(int64_t slot, int64_t extent, int64_t head) const {
    const int64_t rows = std::min(kExtentTokens, quotas[slot] - extent * kExtentTokens);
    return extents[slot * extents_per_slot + extent] + static_cast<size_t>(head * rows) * layout.entry_bytes();
  }
  std::byte* Entry(int64_t slot, int64_t head, int64_t row) const {
    return HeadInExtent(slot, row / kExtentTokens, head) +
           static_cast<size_t>(row % kExtentTokens) * layout.entry_bytes();
  }
};

}  // namespace infinigen
