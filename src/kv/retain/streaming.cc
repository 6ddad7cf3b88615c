// StreamingLLM's cache: the first tokens and a window of the latest ones. The eviction state is that of fifo with
// sinks; the policy has its own name because the sinks are its point, and its preset attends to every retained entry.
// Rotary positions are those of the text, while the publication counts positions inside the cache. Within the trained
// length text positions work better, and this engine does not go beyond it.
#include "kv/retain.h"

namespace infinigen {

const RetainPolicy kRetainStreaming = {
    .name = "streaming", .summary = "evict the oldest entry but the sinks", .on_append = InitialPriority::kPosition};

}  // namespace infinigen
