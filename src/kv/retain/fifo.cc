// The oldest leaves, whatever it was good for; sinks stay where --kv-sinks asks for them.
#include "kv/retain.h"

namespace infinigen {

const RetainPolicy kRetainFifo = {
    .name = "fifo", .summary = "the oldest leaves", .on_append = InitialPriority::kPosition};

}  // namespace infinigen
