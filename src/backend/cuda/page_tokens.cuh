// The tokens of one call that belong to one page: for operations that append to an index of pages. Private to
// backend/cuda.
//
// Several rows of a page may come in one call, in ascending order. The block of the first of them walks over all of
// them; the blocks of the others find none and leave. So no two blocks touch a page.
#pragma once

#include <cstdint>

#include "backend/backend.h"
#include "backend/cuda/radix_select.cuh"
#include "kv/index_view.h"

namespace infinigen {

// The tokens of a page in the order in which they come.
struct PageTokens {
  int32_t tokens[kPageRows];
  int count;
};

// By one warp: the tokens of the page that `first` belongs to, or none if an earlier one does, too.
__device__ inline void FindTokens(const TokenBatch& batch, int64_t first, PageTokens& found) {
  const int32_t slot = batch.slots[first];
  const int64_t page = batch.rows[first] / kPageRows;
  const auto of_page = [&](int64_t t) { return batch.slots[t] == slot && batch.rows[t] / kPageRows == page; };
  int count = 0;
  bool earlier = false;
  for (int64_t start = 0; start < first && !earlier; start += 32) {
    const int64_t t = start + Lane();
    earlier = __any_sync(kAllLanes, t < first && of_page(t)) != 0;
  }
  for (int64_t start = first; start < batch.count && !earlier && count < kPageRows; start += 32) {
    const int64_t t = start + Lane();
    const bool here = t < batch.count && of_page(t);
    const uint32_t all = __ballot_sync(kAllLanes, here);
    const int at = count + __popc(all & ((1u << Lane()) - 1));
    if (here && at < kPageRows) found.tokens[at] = static_cast<int32_t>(t);
    count += __popc(all);
  }
  if (Lane() == 0) found.count = count < kPageRows ? count : static_cast<int>(kPageRows);
}

}  // namespace infinigen
