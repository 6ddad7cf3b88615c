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
#include "cli/launch.h"

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
  ASSIGN_OR_RETURN(KvChoice kv, ResolveKv(flags.kv));
  ASSIGN_OR_RETURN(EvalSession session, OpenModelForEval(flags));
  session.kv = std::move(kv);
  return session;
}

Result<EvalSession> OpenModelForEval(const EvalFlags& flags) {
  EvalSession session;
  ASSIGN_OR_RETURN(session.device, ResolveDevice(flags.device));
  ASSIGN_OR_RETURN(const std::string directory, FindModel(flags.model));
  ASSIGN_OR_RETURN(session.model, OpenModel(directory));
  if (session.model->tokenizer == nullptr)
    return Invalid("{}: the model's directory has no tokenizer, and an evaluation needs one", directory);
  return session;
}

Result<RunPlan> PlanEval(const EvalFlags& flags, int64_t rows, int64_t batch, const EvalSession& session) {
  ASSIGN_OR_RETURN(ExecutorOptions options, OptionsFor(*session.model, session.device, session.kv, rows,
                                                       {.useful = batch, .flag = flags.batch}));
  // Nobody waits here for a place: no more at once than a hard limit holds.
  if (session.kv.limit_bytes && !options.method.evicts()) {
    ExecutorOptions one = options;
    one.max_batch = 1;
    const uint64_t bytes = PlanMemory(session.model->config, one, 0).pool_bytes;
    options.max_batch =
        std::clamp<int64_t>(static_cast<int64_t>(*session.kv.limit_bytes / bytes), 1, options.max_batch);
  }
  return PlanRunHere(*session.model, options, session.kv.limit_bytes, /*fixed_batch=*/flags.batch > 0);
}

Status StartExecutor(const EvalFlags& flags, int64_t rows, int64_t batch, bool compare, EvalSession* session) {
  const Model& model = *session->model;
  const KvChoice& kv = session->kv;
  ASSIGN_OR_RETURN(const RunPlan plan, PlanEval(flags, rows, batch, *session));
  if (!plan.refusal.empty()) return Exhausted("{}", plan.refusal);
  if (rows > model.config.max_positions && !std::exchange(session->warned, true))
    Warn(fmt::format("{} tokens are beyond the {} positions that {} was trained for", rows, model.config.max_positions,
                     model.config.name));
  ASSIGN_OR_RETURN(session->executor, Launch(model, kv, plan.options));
  const bool with_cpu = compare && flags.against == "cpu";
  if (!compare || (!with_cpu && plan.options.is_full())) return Ok();
  ExecutorOptions full = plan.options;
  if (with_cpu) {
    full = {.device = Device::kCpu,
            .threads = full.threads,
            .max_tokens = full.max_tokens,
            .max_batch = full.max_batch,
            .kv_type = full.kv_type,
            .method = full.method};
    ASSIGN_OR_RETURN(session->full, Launch(model, kv, full));
    return Ok();
  }
  full.method = {};
  full.pool_limit_bytes = UINT64_MAX;
  if (IsQuantised(full.kv_type)) full.kv_type = StoreTypeOf(model.dtype);  // what codes lose is part of the comparison
  const uint64_t second = PlanMemory(model.config, full, 0).total_bytes();
  if (plan.options.device != Device::kCuda && plan.parts.total_bytes() + second + kMarginBytes > plan.available_bytes) {
    Warn(fmt::format("no comparison with --kv full: it would take {} more memory", FormatSize(second)));
    return Ok();
  }
  ASSIGN_OR_RETURN(session->full, MakeExecutor(model.config, model.weights, full));
  return Ok();
}

Result<std::vector<int32_t>> OpeningIds(const Tokenizer& tokenizer) {
  ASSIGN_OR_RETURN(const std::vector<int32_t> with, tokenizer.Encode("a"));
  ASSIGN_OR_RETURN(const std::vector<int32_t> without, tokenizer.Encode("a", {.add_special = false}));
  const auto text = std::search(with.begin(), with.end(), without.begin(), without.end());
  return std::vector<int32_t>(with.begin(), text);
}

Status CheckIds(const ModelConfig& config, const std::vector<int32_t>& ids) {
  for (const int32_t id : ids)
    if (id < 0 || id >= config.vocab)
      return Invalid("{}: the tokenizer gives the id {}, the model's vocabulary ends at {}", config.name, id,
                     config.vocab - 1);
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
  (*json)["kv_stats"] = KvStatsJson(pool, session.executor->Stats(), {flags.kv.stats_per_layer, flags.kv.mass_recall});
  (*json)["memory"] = MemoryJson(session.executor->device_use());
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
