#include "kv/page_bounds_view.h"
#include "kv/select.h"

namespace infinigen {
namespace {

IndexLayout PageIndex(const IndexShape& shape) {
  return {.block_rows = kPageRows, .block_bytes = PageBoundsLayout{.head_dim = shape.head_dim}.page_bytes()};
}

}  // namespace

// Quest: the least and the largest number of a page's keys in every dimension bound the scores of its rows
// (kv/page_bounds.h). Bounds cannot shrink again when a key leaves, so nothing may be evicted.
const SelectMethod kSelectQuest{.name = "quest",
                                .summary = "the pages whose bounds score best",
                                .index = PageIndex,
                                .can_guess = true,
                                .rewrites_rows = false,
                                .page_rows = kPageRows};

}  // namespace infinigen
