// H2O (heavy-hitter oracle): half of the quota holds the newest entries, the other half those with the most attention
// so far. Attention weights are summed over the prompt's tokens (the columns of its attention matrix), all steps since,
// and the query heads of the KV head.
#include "kv/retain.h"

namespace infinigen {

const RetainPolicy kRetainH2o = {.name = "h2o",
                                 .summary = "evict the least attended entry",
                                 .on_append = InitialPriority::kZero,
                                 .sums_attention = true};

}  // namespace infinigen
