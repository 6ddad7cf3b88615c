// InfiniGen's published policy for a limited pool: evict the entry that was selected least often. Counters go up to
// 255; when one exceeds that, all counters of the head are halved, so that old selections count less.
#include "kv/retain.h"

namespace infinigen {

const RetainPolicy kRetainCounter = {.name = "counter",
                                     .summary = "evict the least often selected entry",
                                     .on_append = InitialPriority::kZero,
                                     .on_select = PriorityUpdate::kCount};

}  // namespace infinigen
