// Evict a random entry: the baseline for the other policies, and the example of docs/adding-a-method.md.
#include "kv/retain.h"

namespace infinigen {

const RetainPolicy kRetainRandom = {
    .name = "random", .summary = "evict a random entry", .on_append = InitialPriority::kScrambled};

}  // namespace infinigen
