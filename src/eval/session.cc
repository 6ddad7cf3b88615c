#include "eval/session.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "base/size.h"

namespace infinigen {

std::string_view Name(Against against) { return against == Against::kCpu ? "cpu" : "full"; }

Result<EvalSession> EvalSession::Open(EvalRequest request) {
  EvalSession session(std::move(request));
  ASSIGN_OR_RETURN(const std::string directory, FindModel(session.request_.model, session.callbacks()));
  ASSIGN_OR_RETURN(session.model_, OpenModel(directory));
  if (session.model_->tokenizer == nullptr) return NoTokenizer(directory, "an evaluation");
  return session;
}

Result<RunPlan> EvalSession::Plan(const KvRequest& kv, int64_t rows, int64_t useful) const {
  return PlanRun(*model_, {.device = request_.device,
                           .kv = kv,
                           .max_tokens = rows,
                           .useful_batch = useful,
                           .batch = request_.batch,
                           .waits = false});
}

Status EvalSession::Start(const KvRequest& kv, int64_t rows, int64_t useful, bool compare) {
  Stop();
  const Model& model = *model_;
  ASSIGN_OR_RETURN(const RunPlan plan, Plan(kv, rows, useful));
  if (!plan.refusal.empty()) return Exhausted("{}", plan.refusal);
  if (rows > model.config.max_positions && !std::exchange(warned_, true))
    callbacks().Warn(fmt::format("{} tokens exceed the {} that {} was trained for", rows, model.config.max_positions,
                                 model.config.name));
  ASSIGN_OR_RETURN(executor_, Launch(model, plan, callbacks()));
  const bool with_cpu = request_.against == Against::kCpu;
  if (!compare || (!with_cpu && plan.options.is_full())) return Ok();
  const RunPlan second = with_cpu ? OnCpu(plan) : FullBeside(model, plan);
  const uint64_t bytes = second.parts.total_bytes();
  if (!with_cpu && plan.options.device != Device::kCuda &&
      plan.parts.total_bytes() + bytes + kMarginBytes > plan.available_bytes) {
    callbacks().Warn(
        fmt::format("results are not compared with --kv full, which would need {} more memory", FormatSize(bytes)));
    return Ok();
  }
  ASSIGN_OR_RETURN(other_, Launch(model, second, callbacks()));
  return Ok();
}

void EvalSession::Stop() {
  executor_.reset();
  other_.reset();
}

PrefillKind KindOfSteps(const Executor& executor) {
  const KvMethod& method = executor.options().method;
  return method.selects() || method.evicts() ? PrefillKind::kSteps : PrefillKind::kDense;
}

nlohmann::ordered_json EvalJsonHead(const EvalSession& session) {
  return {{"model", ModelJson(session.model())},
          {"device", DeviceJson(session.executor())},
          {"kv", KvJson(session.executor().options())}};
}

void AddEvalJsonTail(const EvalSession& session, const Timing& timing, const PoolUse& pool,
                     nlohmann::ordered_json* json) {
  Instruments& instruments = session.executor().instruments();
  (*json)["timing"] = TimingJson(timing);
  (*json)["timing"]["load_s"] = session.model().load_s;
  (*json)["kv_stats"] = KvStatsJson(pool, instruments.Stats(), session.request().detail);
  (*json)["memory"] = MemoryJson(instruments.device_use());
}

}  // namespace infinigen
