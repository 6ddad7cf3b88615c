// Where the index of a cache lies, and its size: the seam between a selection method and everything that allocates,
// shares or saves what the method keeps. It knows bytes and rows; what they mean is the method's (kv/select.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kv/ids.h"
#include "kv/index_view.h"
#include "kv/view.h"

namespace infinigen {

struct IndexGeometry {
  IndexLayout layout;
  int64_t layers = 0;  // layers that have an index: those that select
  int64_t kv_heads = 0;
  int64_t sequences = 0;  // slots
  int64_t rows = 0;       // of the longest sequence

  // One sequence in one layer.
  size_t slot_bytes() const { return static_cast<size_t>(kv_heads) * layout.head_bytes(rows); }
  size_t layer_bytes() const { return static_cast<size_t>(sequences) * slot_bytes(); }
  size_t total_bytes() const { return static_cast<size_t>(layers) * layer_bytes(); }
  // The rows of an extent: of one KV head, and of a sequence in all layers. The latter is what goes with a shared
  // extent.
  size_t head_extent_bytes() const { return layout.head_bytes(kExtentTokens); }
  size_t extent_bytes() const { return static_cast<size_t>(layers * kv_heads) * head_extent_bytes(); }
  // One token in all layers.
  size_t token_bytes() const {
    return static_cast<size_t>(layers * kv_heads) * layout.block_bytes / static_cast<size_t>(layout.block_rows);
  }

  // Layer `n` of those that have an index, in memory of total_bytes().
  LayerIndex Layer(std::byte* memory, int64_t n) const {
    return {.data = memory + static_cast<size_t>(n) * layer_bytes(),
            .head_stride = layout.head_bytes(rows),
            .slot_stride = slot_bytes()};
  }
};

}  // namespace infinigen
