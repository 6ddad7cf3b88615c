// Evict the oldest entry; sinks are retained if --kv-sinks is set.
#include "kv/retain.h"

namespace infinigen {

const RetainPolicy kRetainFifo = {
    .name = "fifo", .summary = "evict the oldest entry", .on_append = InitialPriority::kPosition};

}  // namespace infinigen
