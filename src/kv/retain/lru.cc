// Evict the least recently selected entry; a new entry counts as just selected.
#include "kv/retain.h"

namespace infinigen {

const RetainPolicy kRetainLru = {.name = "lru",
                                 .summary = "evict the least recently selected entry",
                                 .on_append = InitialPriority::kPosition,
                                 .on_select = PriorityUpdate::kStamp};

}  // namespace infinigen
