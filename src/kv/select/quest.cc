#include "kv/index_view.h"
#include "kv/select.h"

namespace infinigen {
namespace {

IndexLayout PageIndex(const IndexShape& shape) {
  return {.block_rows = kPageRows, .block_bytes = PageBoundsLayout{.head_dim = shape.head_dim}.page_bytes()};
}

}  // namespace

// Quest: the least and greatest key component of a page in every dimension bound the scores of its rows (kv/index.h).
// Bounds cannot shrink when a key is removed, so the method excludes eviction.
const SelectMethod kSelectQuest{.name = "quest",
                                .summary = "the pages with the best-scoring bounds",
                                .index = PageIndex,
                                .can_guess = true,
                                .rewrites_rows = false,
                                .page_rows = kPageRows};

}  // namespace infinigen
