// What a run takes, against what the machine has. Made before anything is allocated; what cannot fit is refused with
// the numbers. `--dry-run` prints it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cli/session.h"
#include "model/executor.h"

namespace infinigen {

struct RunPlan {
  ExecutorOptions options;              // pool_limit_bytes is set
  MemoryPlan parts;                     // pool_bytes never above the pool's limit
  uint64_t available_bytes = 0;         // of host memory
  uint64_t device_available_bytes = 0;  // of a GPU: free, and allowed
  int64_t largest_context = 0;          // at this batch; 0: none fits
  std::string refusal;                  // empty: it fits
  uint64_t prefix_bytes = 0;            // of a server: what cached prefixes may take, at most

  // Of the pool's limit, what is there for prefixes alone. The rest of prefix_bytes is what sequences leave free.
  uint64_t extra_prefix_bytes() const {
    return prefix_bytes > 0 && options.pool_limit_bytes > parts.pool_bytes ? options.pool_limit_bytes - parts.pool_bytes
                                                                           : 0;
  }
};

// Bytes that stay free beside everything planned: allocator overhead, logits, text, the operating system's own needs.
inline constexpr uint64_t kMarginBytes = uint64_t{256} << 20;

// `options` without a pool limit.
RunPlan PlanRun(const ModelConfig& config, uint64_t weights_bytes, const ExecutorOptions& options,
                std::optional<uint64_t> kv_limit, uint64_t available_bytes);

// The same for this machine; a batch that the user did not ask for shrinks until it fits.
RunPlan PlanRunHere(const Model& model, ExecutorOptions options, std::optional<uint64_t> kv_limit, bool fixed_batch);

// A server keeps what prompts begin with: half as much as the pool of its sequences, or one whole context where that is
// more, beside the pool as far as memory goes and else within it. Sets the plan's prefix_bytes and the pool's limit.
void PlanPrefixes(RunPlan* plan);

// The plan as a table for people.
std::string DescribePlan(const ModelConfig& config, const RunPlan& plan);

}  // namespace infinigen
