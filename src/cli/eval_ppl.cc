// `infinigen eval ppl`: the perplexity of a text file.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/size.h"
#include "cli/console.h"
#include "cli/eval.h"
#include "cli/prompts.h"
#include "eval/logits_file.h"
#include "eval/perplexity.h"

namespace infinigen {
namespace {

// Room for the predictions of full: 200 windows of 4,096 scored tokens of a model with 576 hidden numbers.
constexpr uint64_t kFullCacheBytes = uint64_t{2} << 30;

struct PplFlags {
  EvalFlags common;
  std::vector<std::string> files;
  int64_t context = 0;  // 0: not given
  int64_t from = 0;
  std::string mode = "batched";
  std::string against = "full";
  int64_t limit_tokens = 0;  // 0: all
  int64_t windows = 0;       // 0: all
  uint64_t full_cache_bytes = kFullCacheBytes;
  bool overlap = false, step_overlap = false;
  int64_t chunk = 0;   // 0: not given
  std::string logits;  // empty: not given
};

Status CheckOverlaps(const PplFlags& flags, const KvRequest& kv) {
  if (flags.overlap && (flags.against != "cpu" || kv.evicts()))
    return Invalid("--selection-overlap needs --against cpu and a method that evicts nothing");
  if (flags.step_overlap && (flags.overlap || kv.evicts() || !kv.selects()))
    return Invalid(
        "--step-overlap needs a method that selects and evicts nothing, and cannot be combined with "
        "--selection-overlap");
  return Ok();
}

int64_t ScoredTokens(const PplTask& task) {
  int64_t tokens = 0;
  for (const PplWindow& window : task.windows) tokens += window.end() - window.scored;
  return tokens;
}

Result<int> EvalPpl(const PplFlags& flags) {
  Terminal terminal;
  ASSIGN_OR_RETURN(const KvRequest kv, OneKvRequest(flags.common.kv));
  ASSIGN_OR_RETURN(EvalSession session,
                   OpenSession(flags.common, terminal, flags.against == "cpu" ? Against::kCpu : Against::kFull));
  RETURN_IF_ERROR(CheckScorable(kv, flags.from));
  RETURN_IF_ERROR(CheckOverlaps(flags, kv));
  if (!flags.logits.empty() && flags.mode == "step")
    return Invalid("--logits needs --mode batched, which visits the tokens in their order");
  std::vector<PplSource> sources;
  for (const std::string& file : flags.files) {
    PplSource& source = sources.emplace_back(
        PplSource{.name = file, .limit_tokens = flags.limit_tokens, .limit_windows = flags.windows});
    ASSIGN_OR_RETURN(source.bytes, ReadText(file));
  }
  PplOptions options{
      .from = flags.from, .mode = flags.mode == "step" ? PplMode::kStep : PplMode::kBatched, .chunk = flags.chunk};
  ASSIGN_OR_RETURN(options.context, ChooseWindow(session.model().config, flags.context));
  ASSIGN_OR_RETURN(PplTask task, MakePplTask(session.model(), sources, options));
  const int64_t useful = options.mode == PplMode::kStep ? std::ssize(task.windows) : 1;
  if (flags.common.dry_run) {
    ASSIGN_OR_RETURN(const RunPlan plan, session.Plan(kv, task.rows, useful));
    return PrintPlans(session.model(), {&plan, 1}, flags.common.json);
  }
  LogitsFile logits(flags.logits);
  if (!flags.logits.empty()) {
    RETURN_IF_ERROR(logits.Begin(ScoredTokens(task), session.model().config.vocab));
    task.options.on_logits = [&](std::span<const float> row) { logits.Add(row); };
  }
  RETURN_IF_ERROR(session.Start(kv, task.rows, useful, /*compare=*/true));
  ASSIGN_OR_RETURN(const PplReport report,
                   MeasurePpl(session, task, flags.overlap, flags.step_overlap, flags.full_cache_bytes));
  if (!flags.logits.empty() && report.result.complete()) RETURN_IF_ERROR(logits.Finish());
  Output output;
  output.Write(flags.common.json ? Dump(PplJson(session, task, report)) : PplSummary(session, task, report));
  RETURN_IF_ERROR(output.status());
  const PplResult& result = report.result;
  if (result.complete()) return kExitOk;
  if (!flags.common.json)
    PrintStderr("infinigen: interrupted: the results are for {} of {} windows\n", result.window_nll.size(),
                result.windows);
  return kExitInterrupted;
}

}  // namespace

int RunEvalPpl(Arguments arguments) {
  PplFlags values;
  Flags flags("eval ppl",
              "Measure the perplexity of a text. The text is cut into consecutive windows, each scored with an empty "
              "cache.");
  flags.Group("What is measured");
  flags.TextList("-f,--file", &values.files, "FILE", "text to score; - is standard input; may be given several times");
  flags.Integer("-c,--ctx", &values.context, 2, kMaxContext,
                "tokens of a window (default: the model's context, at most 8192)");
  flags.Integer("--from", &values.from, 0, kMaxContext,
                "prefill the first N tokens of a window as a prompt and score only what is decoded after them (default "
                "0: every token is decoded and scored)");
  flags.Choice(
      "--mode", &values.mode, {"step", "batched"},
      "step: run every token as a decode step; batched: run the tokens of a window at once, which gives the same "
      "result faster");
  flags.Integer("--limit-tokens", &values.limit_tokens, 1, INT64_MAX,
                "use only the first N tokens of a text (default: all)");
  flags.Integer("--windows", &values.windows, 1, INT64_MAX, "score only the first N windows of a text (default: all)");
  const auto set_cache = [&values](const std::string& text) {
    const Result<uint64_t> bytes = ParseSize(text);
    if (bytes.ok()) values.full_cache_bytes = *bytes;
    return bytes.ok() ? std::string() : bytes.error().message;
  };
  flags.Custom("--full-cache", set_cache, "SIZE",
               "keep the predictions of --kv full, which results are compared with, for later runs, in at most this "
               "much disk space; 0: do not (default 2G)");
  flags.Choice("--against", &values.against, {"full", "cpu"},
               "what to compare the predictions with: full (--kv full on the same device), cpu (the same --kv on the "
               "CPU)");
  flags.Switch("--selection-overlap", &values.overlap,
               "also report the share of selected entries that are the same on both devices (every 16th token); needs "
               "--against cpu");
  flags.Switch("--step-overlap", &values.step_overlap,
               "also report the share of a token's selected entries that were also selected 1 to 64 tokens before");
  flags.Integer("--chunk", &values.chunk, 1, kMaxContext,
                "also report separate results for every N tokens along a window");
  flags.Text("--logits", &values.logits, "FILE",
             "also write the logits of every scored token, a NumPy array of float32 with shape [tokens][vocabulary]");
  AddEvalFlags(flags, &values.common, "in step mode, run at most N windows at once (default 8)", /*kv_list=*/false);
  if (const std::optional<int> exit_code = flags.Parse(arguments)) return *exit_code;
  if (values.files.empty()) return FailUsage("eval ppl", "a text is missing; pass its file with -f");
  InstallInterrupt();
  return Finish(EvalPpl(values));
}

}  // namespace infinigen
