// From a plan to a running executor: finds or makes the skew that the method needs. Shared by every command that runs a
// model.
#pragma once

#include <memory>
#include <span>

#include "base/result.h"
#include "cli/kv_choice.h"
#include "cli/memory_plan.h"
#include "cli/options.h"
#include "cli/session.h"
#include "model/executor.h"

namespace infinigen {

// How many sequences run at once: as many as are useful, at most --batch. Where a size is shared out among sequences
// that evict, --batch says how many share it, and without it they come one by one.
inline constexpr int64_t kDefaultBatch = 8;
struct BatchChoice {
  int64_t useful = 1;
  int64_t flag = 0;  // 0: not given
};

// What an executor would be made with, sized for `max_tokens` and `max_batch`.
// What follows from the device alone: still without context, batch and method.
ExecutorOptions DeviceOptions(const Model& model, const DeviceChoice& device);

Result<ExecutorOptions> OptionsFor(const Model& model, const DeviceChoice& device, const KvChoice& kv,
                                   int64_t max_tokens, const BatchChoice& batch);

// `options` of a plan that fits; its method is the choice's, fitted.
Result<std::unique_ptr<Executor>> Launch(const Model& model, const KvChoice& kv, const ExecutorOptions& options);

// --dry-run: what runs of a model would take, on standard output. The error of the first that does not fit comes after.
Result<int> PrintPlans(const Model& model, std::span<const RunPlan> plans, bool json);

}  // namespace infinigen
