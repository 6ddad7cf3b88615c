// Whoever was not selected for the longest time leaves; a new entry counts as just selected.
#include "kv/retain.h"

namespace infinigen {

const RetainPolicy kRetainLru = {.name = "lru",
                                 .summary = "the least recently selected leaves",
                                 .on_append = InitialPriority::kPosition,
                                 .on_select = PriorityUpdate::kStamp};

}  // namespace infinigen
