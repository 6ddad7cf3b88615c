// Heavy hitters (H2O): half of the quota for the newest, half for those that received most attention so far, summed
// over the prompt's tokens (the columns of its attention matrix), every step since, and the query heads of the KV head.
#include "kv/retain.h"

namespace infinigen {

const RetainPolicy kRetainH2o = {
    .name = "h2o", .summary = "the least attended leaves", .on_append = InitialPriority::kZero, .sums_attention = true};

}  // namespace infinigen
