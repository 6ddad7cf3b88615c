#include "cli/eval.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/size.h"
#include "cli/console.h"
#include "cli/interrupt.h"
#include "cli/terminal.h"
#include "runtime/launch.h"

namespace infinigen {
namespace {

constexpr std::string_view kHelp =
    "Measure how good a model's answers are.\n\n"
    "usage: infinigen eval <kind> [flags]\n\nkinds:\n"
    "  ppl        perplexity of a text\n"
    "  needle     facts planted in a long text: does the model find them again?\n"
    "  choice     multiple-choice questions, answered by likelihood\n"
    "  compare    every way of keeping the cache in one table: perplexity, facts found, bytes and tokens/s\n\n"
    "infinigen eval <kind> -h lists the flags of a kind.\n";

}  // namespace

int RunEval(Arguments arguments) {
  if (arguments.empty()) return FailUsage("eval", "the kind of evaluation is missing: ppl, needle, choice or compare");
  const std::string& kind = arguments[0];
  if (kind == "-h" || kind == "--help") {
    Output().Write(kHelp);
    return kExitOk;
  }
  if (kind == "ppl") return RunEvalPpl(arguments.subspan(1));
  if (kind == "needle") return RunEvalNeedle(arguments.subspan(1));
  if (kind == "choice") return RunEvalChoice(arguments.subspan(1));
  if (kind == "compare") return RunEvalCompare(arguments.subspan(1));
  return FailUsage("eval",
                   fmt::format("'{}' is no kind of evaluation, it can be ppl, needle, choice or compare", kind));
}

void AddEvalFlags(Flags& flags, EvalFlags* values, const std::string& batch_help, bool kv_list) {
  flags.Group("Model and machine");
  AddModelFlag(flags, &values->model);
  AddDeviceFlags(flags, &values->device);
  flags.Integer("--batch", &values->batch, 1, 4096, batch_help);
  flags.Switch("--dry-run", &values->dry_run, "print the memory plan and end");
  AddKvFlags(flags, &values->kv, kv_list);
  flags.Group("Output");
  flags.Switch("--json", &values->json, "one JSON object on standard output instead of text");
}

Result<EvalSession> OpenForEval(const EvalFlags& flags) {
  // What the flags alone can refuse comes before anything is read.
  ASSIGN_OR_RETURN(KvRequest kv, OneKvRequest(flags.kv));
  ASSIGN_OR_RETURN(EvalSession session, OpenModelForEval(flags));
  session.kv = std::move(kv);
  return session;
}

Result<EvalSession> OpenModelForEval(const EvalFlags& flags) {
  EvalSession session;
  ASSIGN_OR_RETURN(session.device, ChooseDevice(flags.device));
  ASSIGN_OR_RETURN(const std::string directory, FindModel(flags.model));
  ASSIGN_OR_RETURN(session.model, OpenModel(directory));
  if (session.model->tokenizer == nullptr)
    return Invalid("{}: the model's directory has no tokenizer, and an evaluation needs one", directory);
  return session;
}

Result<RunPlan> PlanEval(const EvalFlags& flags, int64_t rows, int64_t batch, const EvalSession& session) {
  return PlanRun(*session.model, {.device = session.device,
                                  .kv = session.kv,
                                  .max_tokens = rows,
                                  .useful_batch = batch,
                                  .batch = flags.batch,
                                  .waits = false});
}

Status StartExecutor(const EvalFlags& flags, int64_t rows, int64_t batch, bool compare, EvalSession* session) {
  const Model& model = *session->model;
  Terminal terminal;
  ASSIGN_OR_RETURN(const RunPlan plan, PlanEval(flags, rows, batch, *session));
  if (!plan.refusal.empty()) return Exhausted("{}", plan.refusal);
  if (rows > model.config.max_positions && !std::exchange(session->warned, true))
    Warn(fmt::format("{} tokens are beyond the {} positions that {} was trained for", rows, model.config.max_positions,
                     model.config.name));
  ASSIGN_OR_RETURN(session->executor, Launch(model, plan, terminal.callbacks()));
  const bool with_cpu = compare && flags.against == "cpu";
  if (!compare || (!with_cpu && plan.options.is_full())) return Ok();
  const RunPlan second = with_cpu ? OnCpu(plan) : FullBeside(model, plan);
  const uint64_t bytes = second.parts.total_bytes();
  if (!with_cpu && plan.options.device != Device::kCuda &&
      plan.parts.total_bytes() + bytes + kMarginBytes > plan.available_bytes) {
    Warn(fmt::format("no comparison with --kv full: it would take {} more memory", FormatSize(bytes)));
    return Ok();
  }
  ASSIGN_OR_RETURN(session->full, Launch(model, second, terminal.callbacks()));
  return Ok();
}

nlohmann::ordered_json EvalJsonHead(const EvalSession& session) {
  return {{"model", ModelJson(*session.model)},
          {"device", DeviceJson(*session.executor)},
          {"kv", KvJson(session.executor->options())}};
}

void AddEvalJsonTail(const EvalFlags& flags, const EvalSession& session, const Timing& timing, const PoolUse& pool,
                     nlohmann::ordered_json* json) {
  (*json)["timing"] = TimingJson(timing);
  (*json)["timing"]["load_s"] = session.model->load_s;
  (*json)["kv_stats"] = KvStatsJson(pool, session.executor->instruments().Stats(),
                                    {flags.kv.stats_per_layer, flags.kv.request.measure_mass});
  (*json)["memory"] = MemoryJson(session.executor->instruments().device_use());
}

int FinishEval(const std::function<Result<int>()>& body) {
  InstallInterrupt();
  const Result<int> exit_code = body();
  if (exit_code.ok()) return *exit_code;
  if (Interrupted()) return kExitInterrupted;
  return Fail(exit_code.error());
}

StatusLine::StatusLine() : terminal_(::isatty(STDERR_FILENO) == 1) {}

void StatusLine::Draw(std::string_view text) {
  if (!terminal_) return;
  PrintStderr("\r\x1b[K{}", text);
  std::fflush(stderr);
  drawn_ = true;
}

void StatusLine::Erase() {
  if (!drawn_) return;
  PrintStderr("\r\x1b[K");
  std::fflush(stderr);
  drawn_ = false;
}

}  // namespace infinigen
