// The published policy of a pool with a limit: whoever was selected least often leaves. Counters are bytes; when one
// would overflow, all of its head are halved, so that old merit fades.
#include "kv/retain.h"

namespace infinigen {

const RetainPolicy kRetainCounter = {.name = "counter",
                                     .summary = "the least often selected leaves",
                                     .on_append = InitialPriority::kZero,
                                     .on_select = PriorityUpdate::kCount};

}  // namespace infinigen
