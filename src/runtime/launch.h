// From a plan to a running executor: finds or makes the skew that the method needs, tells the plan's warnings,
// allocates. For clients of runtime this header also brings Executor, and Sequence to drive one without the engine.
#pragma once

#include <memory>

#include "base/result.h"
#include "model/executor.h"
#include "model/sequence.h"
#include "runtime/callbacks.h"
#include "runtime/model.h"
#include "runtime/plan.h"

namespace infinigen {

// A plan that was refused is refused here too. The model outlives the executor.
Result<std::unique_ptr<Executor>> Launch(const Model& model, const RunPlan& plan, const Callbacks& callbacks);

}  // namespace infinigen
