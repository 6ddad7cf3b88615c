// StreamingLLM's cache: the first tokens and a window of the last ones. By its eviction state this is fifo with sinks;
// it has a name of its own because its sinks are the point, and its preset attends to all that is left. Rotary
// positions stay those of the text, where the publication counts them inside the cache: within the trained length that
// is the stronger variant, and beyond it this engine does not go.
#include "kv/retain.h"

namespace infinigen {

const RetainPolicy kRetainStreaming = {
    .name = "streaming", .summary = "sinks and the newest stay", .on_append = InitialPriority::kPosition};

}  // namespace infinigen
