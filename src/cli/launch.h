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

// What an executor would be made with, sized for `max_tokens` and `max_batch`.
Result<ExecutorOptions> OptionsFor(const Model& model, const DeviceChoice& device, const KvChoice& kv,
                                   int64_t max_tokens, int64_t max_batch);

// `options` of a plan that fits; its method is the choice's, fitted.
Result<std::unique_ptr<Executor>> Launch(const Model& model, const KvChoice& kv, const ExecutorOptions& options);

// --dry-run: what runs of a model would take, on standard output. The error of the first that does not fit comes after.
Result<int> PrintPlans(const Model& model, std::span<const RunPlan> plans, bool json);

}  // namespace infinigen
