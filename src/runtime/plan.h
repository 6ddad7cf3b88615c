// The plan of a run: the memory that a request needs with this model on this machine, computed before anything large is
// allocated. A request that does not fit is refused with the numbers; `--dry-run` prints the plan.
//
//   request (RunRequest) ─► method (runtime/kv_request.h) ─► sizes (model/executor.h) ─► RunPlan ─► Launch
//
// The numbers of a RunPlan are final: nothing after it changes them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/executor.h"
#include "runtime/kv_request.h"
#include "runtime/model.h"
#include "runtime/run_options.h"

namespace infinigen {

// The largest batch of a run for which the user gives none.
inline constexpr int64_t kDefaultBatch = 8;

struct RunRequest {
  DeviceChoice device;
  KvRequest kv;              // accepted by CheckKvRequest
  int64_t max_tokens = 0;    // context: rows of the longest sequence
  int64_t least_tokens = 0;  // > 0: if memory is short, the context may shrink to this
  int64_t useful_batch = 1;  // a larger batch would not be used
  int64_t batch = 0;         // given by the user; 0: as many as are useful and fit
  bool waits = true;         // sequences may wait for memory; false: the batch is limited to what --kv-limit holds
};

struct RunPlan {
  ExecutorOptions options;
  MemoryPlan parts;                     // pool_bytes is at most the pool's limit
  uint64_t available_bytes = 0;         // free host memory
  uint64_t device_available_bytes = 0;  // GPU memory that is free and may be used
  int64_t largest_context = 0;          // that fits at this batch; 0: none
  std::string refusal;                  // why it does not fit; empty: it fits
  uint64_t prefix_bytes = 0;            // limit of a server's prefix cache
  std::string skew_file;                // named by the user; must be valid even if nothing is selected
  bool reads_weights = false;           // into memory; otherwise they are used from the mapped files
  bool wants_skew = false;              // the request selects by sketch, even if the context is too short to select
  std::vector<std::string> warnings;    // for the user, before the run starts

  // The part of the pool's limit that only the prefix cache can use. The rest of prefix_bytes is pool memory that
  // sequences leave free.
  uint64_t extra_prefix_bytes() const {
    return prefix_bytes > 0 && options.pool_limit_bytes > parts.pool_bytes ? options.pool_limit_bytes - parts.pool_bytes
                                                                           : 0;
  }
};

// Host memory that a plan leaves free for allocator overhead, logits, text and the operating system.
inline constexpr uint64_t kMarginBytes = uint64_t{256} << 20;

// Plans a run with a known number of sequences. If memory is short, the batch shrinks unless the user gave it, and the
// context shrinks down to `least_tokens`. A plan that still does not fit has a refusal. An error is a request that more
// memory would not help.
Result<RunPlan> PlanRun(const Model& model, const RunRequest& request);

// Plans a server. Sequences grow into the pool, and share it if it does not hold all of them at full length. Every
// request may set its own cap. A short prompt may be prefilled beside a long one. The prefix cache may take half of the
// sequences' pool, or one whole context if that is more.
Result<RunPlan> PlanServer(const Model& model, const RunRequest& request);

// Plans of a second run that `plan` is compared with: --kv full, unquantised, on the same device and home; and the same
// method on the CPU.
RunPlan FullBeside(const Model& model, const RunPlan& plan);
RunPlan OnCpu(const RunPlan& plan);

// ---- the parts, for tests ----

// Upper bounds of the hot set, which takes the free GPU memory within them.
struct HotSetRequest {
  uint64_t limit_bytes = 0;  // 0: no hot set
  double selections = 0;     // 0: no bound in selections
};
// `options` has neither a pool limit nor a hot set yet.
RunPlan PlanOptions(const ModelConfig& config, uint64_t weights_bytes, const ExecutorOptions& options,
                    std::optional<uint64_t> kv_limit, uint64_t available_bytes, const HotSetRequest& hot = {});
// Adds the prefix cache to a plan that fits.
RunPlan WithPrefixes(RunPlan plan);

}  // namespace infinigen
