// --dry-run: what runs of a model would take, on standard output.
#pragma once

#include <span>

#include "base/result.h"
#include "runtime/model.h"
#include "runtime/plan.h"

namespace infinigen {

// Prints every plan, then returns the exit code, or the refusal of the first plan that does not fit.
Result<int> PrintPlans(const Model& model, std::span<const RunPlan> plans, bool json);

}  // namespace infinigen
