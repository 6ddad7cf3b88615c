#include "cli/plan_output.h"

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "cli/console.h"
#include "runtime/describe.h"
#include "runtime/report.h"

namespace infinigen {

Result<int> PrintPlans(const Model& model, std::span<const RunPlan> plans, bool json) {
  CHECK(!plans.empty());
  Output output;
  if (json) {
    nlohmann::ordered_json all = {
        {"model", ModelJson(model)}, {"kv", KvJson(plans[0].options)}, {"plan", PlanJson(plans[0])}};
    for (const RunPlan& plan : plans) all["plans"].push_back({{"kv", KvJson(plan.options)}, {"plan", PlanJson(plan)}});
    output.Write(Dump(all));
  } else {
    for (const RunPlan& plan : plans) output.Write(DescribePlan(model.config, plan));
  }
  for (const RunPlan& plan : plans)
    if (!plan.refusal.empty()) return Exhausted("{}", plan.refusal);
  RETURN_IF_ERROR(output.status());
  return kExitOk;
}

}  // namespace infinigen
