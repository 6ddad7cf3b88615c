// Somebody leaves, no matter who: what every policy should beat. The example of docs/methods.md.
#include "kv/retain.h"

namespace infinigen {

const RetainPolicy kRetainRandom = {
    .name = "random", .summary = "a random one leaves", .on_append = InitialPriority::kScrambled};

}  // namespace infinigen
