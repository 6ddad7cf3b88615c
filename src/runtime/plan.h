// The plan of a run: what a user asked for, settled against the model and the memory of this machine. Made before
// anything large is allocated; what cannot fit is refused with the numbers, and `--dry-run` prints the plan.
//
//   request (RunRequest) ─► method (runtime/kv_request.h) ─► sizes (model/executor.h) ─► RunPlan ─► Launch
//
// One pass: a RunPlan holds final numbers, and nothing after it changes them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/executor.h"
#include "runtime/device.h"
#include "runtime/kv_request.h"
#include "runtime/model.h"

namespace infinigen {

// Sequences at once where nothing else is said: as many as are useful, at most so many.
inline constexpr int64_t kDefaultBatch = 8;

struct RunRequest {
  DeviceChoice device;
  KvRequest kv;              // which CheckKvRequest accepts
  int64_t max_tokens = 0;    // context: rows of the longest sequence
  int64_t least_tokens = 0;  // > 0: where memory is short, a context this short will do
  int64_t useful_batch = 1;  // sequences that can be of use at once
  int64_t batch = 0;         // as the user says; 0: as many as are useful and fit
  bool waits = true;         // sequences may wait for each other; false: no more at once than a limit holds
};

struct RunPlan {
  ExecutorOptions options;
  MemoryPlan parts;                     // pool_bytes never above the pool's limit
  uint64_t available_bytes = 0;         // of host memory
  uint64_t device_available_bytes = 0;  // of a GPU: free, and allowed
  int64_t largest_context = 0;          // at this batch; 0: none fits
  std::string refusal;                  // empty: it fits
  uint64_t prefix_bytes = 0;            // of a server: what cached prefixes may take, at most
  std::string skew_file;                // that the user names; it must be right even where nothing is selected
  bool wants_skew = false;              // the request selects by sketch, whatever the context came to
  std::vector<std::string> warnings;    // for the user, before the run starts

  // The part of the pool's limit that only prefixes can use. The rest of prefix_bytes is what sequences leave free.
  uint64_t extra_prefix_bytes() const {
    return prefix_bytes > 0 && options.pool_limit_bytes > parts.pool_bytes ? options.pool_limit_bytes - parts.pool_bytes
                                                                           : 0;
  }
};

// Bytes that stay free beside everything planned: allocator overhead, logits, text, the operating system's own needs.
inline constexpr uint64_t kMarginBytes = uint64_t{256} << 20;

// The plan of a run that ends by itself. A batch that the user did not ask for shrinks until it fits; `least_tokens`
// lets the context shrink too. What does not fit even then has a refusal; an error is a request that no memory helps.
Result<RunPlan> PlanRun(const Model& model, const RunRequest& request);

// The plan of a server: sequences grow into the pool and share it where it does not hold all of them at full length,
// any request may ask for any cap, a short prompt may be prefilled beside a long one, and cached prefixes have their
// room: half as much as the pool of the sequences, or one whole context where that is more.
Result<RunPlan> PlanServer(const Model& model, const RunRequest& request);

// The plan of a second run beside `plan`, to compare it with: everything retained and attended to, unquantised, in the
// same place; and the same method on the CPU.
RunPlan FullBeside(const Model& model, const RunPlan& plan);
RunPlan OnCpu(const RunPlan& plan);

// ---- the parts, for tests ----

// `options` without a pool limit. `hot`: how large a hot set may be; it takes what is left of the GPU within that.
struct HotSetRequest {
  uint64_t limit_bytes = 0;  // 0: no hot set
  double selections = 0;     // 0: no such limit
};
RunPlan PlanOptions(const ModelConfig& config, uint64_t weights_bytes, const ExecutorOptions& options,
                    std::optional<uint64_t> kv_limit, uint64_t available_bytes, const HotSetRequest& hot = {});
// Room for cached prefixes in a plan that fits.
RunPlan WithPrefixes(RunPlan plan);

}  // namespace infinigen
