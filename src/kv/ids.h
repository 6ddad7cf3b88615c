// Typed indices of the KV cache. Shared by every module above; see base/strong_index.h.
#pragma once

#include "base/strong_index.h"

namespace infinigen {

using LayerId = StrongIndex<struct LayerIdTag>;
using KvHead = StrongIndex<struct KvHeadTag>;
using SeqSlot = StrongIndex<struct SeqSlotTag>;  // a sequence's place in the pool and in a batch's tables
using Row = StrongIndex<struct RowTag>;          // an entry's place inside its sequence; without eviction, its position
using SharedId =
    StrongIndex<struct SharedIdTag>;  // 256 tokens' entries in every layer, which several sequences may have

}  // namespace infinigen
