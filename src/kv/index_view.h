// The index of a cache: what a selection method keeps beside the entries, to find the rows worth attending to without
// reading their keys (sketches, page bounds). Plain structs for both kv and the backends.
//
// An index belongs to rows as entries do: it is appended with them, shared with them between sequences that begin
// alike, and saved with them. It differs in two ways: it stays in memory of the compute device, and a step reads all of
// it, from the first row to the last. So the rows of one head are one run of blocks:
//
//     one layer: [slots][kv_heads][blocks]       block: block_rows rows in block_bytes bytes
//
// What a block holds is the method's own business (kv/sketch_view.h, kv/page_bounds_view.h).
#pragma once

#include <cstddef>
#include <cstdint>

namespace infinigen {

struct IndexLayout {
  int64_t block_rows = 1;  // divides kExtentTokens, so that an extent's rows are whole blocks
  size_t block_bytes = 0;  // 0: the method keeps no index

  // Bytes of one head with room for `rows` rows.
  constexpr size_t head_bytes(int64_t rows) const {
    return static_cast<size_t>((rows + block_rows - 1) / block_rows) * block_bytes;
  }
};

// The index of one layer for every sequence slot; memory of the compute device.
struct LayerIndex {
  std::byte* data = nullptr;
  size_t head_stride = 0;  // bytes from head to head
  size_t slot_stride = 0;  // bytes from slot to slot

  constexpr explicit operator bool() const { return data != nullptr; }
  constexpr std::byte* Head(int64_t slot, int64_t head) const {
    return data + static_cast<size_t>(slot) * slot_stride + static_cast<size_t>(head) * head_stride;
  }
};

}  // namespace infinigen
