// How page sums lie in memory, as plain structs for both kv and the backends. kv/page_sums.h says what they hold.
//
// A page is 16 rows of one KV head. Its sum is that of its keys, dimension by dimension:
//
//     head: [pages][head_dim] f32
//
// which takes as many bytes as page bounds do (kv/index_view.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kv/index_view.h"

namespace infinigen {

struct PageSumsLayout {
  int64_t kv_heads = 0;
  int64_t head_dim = 0;

  constexpr size_t page_bytes() const { return static_cast<size_t>(head_dim) * sizeof(float); }
  constexpr IndexLayout index() const { return {.block_rows = kPageRows, .block_bytes = page_bytes()}; }
};

// The page sums of one layer for every sequence slot; memory of the compute device.
struct LayerPageSums {
  PageSumsLayout layout;
  LayerIndex index;

  // [head_dim]; the next page follows.
  float* Page(int64_t slot, int64_t head, int64_t page) const {
    return reinterpret_cast<float*>(index.Head(slot, head)) + page * layout.head_dim;
  }
};

}  // namespace infinigen
