// How page bounds lie in memory, as plain structs for both kv and the backends. kv/page_bounds.h says what they hold.
//
// A page is 16 rows of one KV head. Its bounds are the least and the largest number of its keys in every dimension:
//
//     head: [pages][2: least, largest][head_dim] bf16
//
// so one page is one vector of 2 · head_dim numbers, and its score one dot product with (negative parts of the query,
// positive parts of the query).
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/dtype.h"

namespace infinigen {

// As published; 2 · 2 / 16 bytes a row and dimension, an eighth of a bf16 key.
inline constexpr int64_t kPageRows = 16;

struct PageBoundsLayout {
  int64_t kv_heads = 0;
  int64_t head_dim = 0;

  constexpr int64_t page_numbers() const { return 2 * head_dim; }
  constexpr size_t page_bytes() const { return static_cast<size_t>(page_numbers()) * sizeof(BF16); }
  // Of one head with room for `rows` rows.
  constexpr size_t head_bytes(int64_t rows) const {
    return static_cast<size_t>((rows + kPageRows - 1) / kPageRows) * page_bytes();
  }
};

// The bounds of one layer for every sequence slot; memory of the compute device.
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
