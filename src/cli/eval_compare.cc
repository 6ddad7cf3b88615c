// `infinigen eval compare`: all KV methods in one table.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/console.h"
#include "cli/eval.h"
#include "cli/prompts.h"
#include "eval/compare.h"
#include "eval/filler.h"

namespace infinigen {
namespace {

using Json = nlohmann::ordered_json;

struct CompareFlags {
  EvalFlags common;
  std::string file;          // empty: generated text
  int64_t context = 0;       // 0: not given
  int64_t from = 0;          // as in eval ppl
  int64_t limit_tokens = 0;  // 0: all tokens of a file, one window of generated text
  std::string mode = "batched";
  std::vector<int64_t> facts = {1};
  int64_t n = 20;
  int64_t seed = 1;
  int64_t steps = 64;
  bool no_ppl = false;
  std::string format = "md";
};

// The text that is scored and decoded: the file, or generated text like the filler around planted facts.
PplSource TextOf(const CompareFlags& flags, const std::optional<std::string>& file, int64_t context) {
  if (file) return {.bytes = *file, .name = flags.file, .limit_tokens = flags.limit_tokens};
  PplSource source{.name = "generated text", .limit_tokens = flags.limit_tokens > 0 ? flags.limit_tokens : context};
  const size_t enough = static_cast<size_t>(source.limit_tokens) * kFillerBytesPerToken;
  for (const FillerSentence& sentence : StoryFiller(static_cast<uint64_t>(flags.seed), enough))
    source.bytes += (source.bytes.empty() ? "" : sentence.before) + sentence.text;
  return source;
}

Json ResultJson(const CompareFlags& flags, const CompareTask& task, const EvalSession& session,
                const CompareResult& result) {
  Json json = {{"model", ModelJson(session.model())},
               {"device", result.device},
               {"ctx", task.text.options.context},
               {"from", task.text.options.from},
               {"file", flags.file.empty() ? Json(nullptr) : Json(flags.file)},
               {"mode", flags.mode},
               {"facts", flags.facts},
               {"n", flags.n},
               {"seed", flags.seed},
               {"gen", flags.steps}};
  json.update(CompareJson(result, session.request().detail));
  json["complete"] = result.complete;
  json["timing"] = {{"load_s", session.model().load_s}};
  json["memory"] = MemoryJson();
  return json;
}

Result<int> Report(const CompareFlags& flags, const CompareTask& task, const EvalSession& session,
                   const CompareResult& result) {
  const auto measured = [](const CompareRow& row) { return row.measured(); };
  const bool any = std::any_of(result.rows.begin(), result.rows.end(), measured);
  if (!any && result.complete) {
    const CompareRow& first = result.rows[0];
    return Invalid("no method could be measured; --kv {}: {}", first.preset, first.error);
  }
  const bool json = flags.format == "json";
  Output output;
  output.Write(json ? Dump(ResultJson(flags, task, session, result))
                    : CompareTable(task, result, flags.format == "csv"));
  RETURN_IF_ERROR(output.status());
  if (!json && any) PrintStderr("{}", CompareCaption(task, result));
  if (result.complete) return kExitOk;
  if (!json) PrintStderr("infinigen: interrupted: the table lacks the measurements that were not finished\n");
  return kExitInterrupted;
}

// The plan of each method's largest run: the texts with facts if there are any, otherwise the windows.
Result<int> DryRun(const CompareFlags& flags, const CompareTask& task, const EvalSession& session) {
  ASSIGN_OR_RETURN(const std::vector<KvRequest> requests, KvRequests(flags.common.kv));
  std::vector<RunPlan> plans;
  const bool facts = flags.n > 0;
  for (const KvRequest& kv : requests) {
    ASSIGN_OR_RETURN(RunPlan plan,
                     session.Plan(kv, facts ? task.facts.lengths[0] : task.text.rows, facts ? flags.n : 1));
    plans.push_back(std::move(plan));
  }
  return PrintPlans(session.model(), plans, flags.format == "json");
}

Result<int> EvalCompare(const CompareFlags& flags) {
  Terminal terminal;
  ASSIGN_OR_RETURN(EvalSession session, OpenSession(flags.common, terminal));
  std::optional<std::string> file;
  if (!flags.file.empty()) {
    ASSIGN_OR_RETURN(file, ReadText(flags.file));
  }
  CompareTask task{.presets = flags.common.kv.presets,
                   .kv = flags.common.kv.request,
                   .perplexity = !flags.no_ppl,
                   .steps = flags.steps};
  PplOptions options{.from = flags.from, .mode = flags.mode == "step" ? PplMode::kStep : PplMode::kBatched};
  ASSIGN_OR_RETURN(options.context, ChooseWindow(session.model().config, flags.context));
  const PplSource source = TextOf(flags, file, options.context);
  ASSIGN_OR_RETURN(task.text, MakePplTask(session.model(), {&source, 1}, options));
  task.facts = {.lengths = {options.context}, .facts = flags.facts, .n = flags.n};
  if (flags.common.dry_run) return DryRun(flags, task, session);
  std::optional<NeedleMaker> maker;
  if (flags.n > 0) {
    ASSIGN_OR_RETURN(maker, NeedleMaker::Make(session.tokenizer(), task.facts.form, std::move(file),
                                              static_cast<uint64_t>(flags.seed)));
    // A text or context that is too short for the facts fails with every method, so it is refused before the first
    // runs.
    for (const int64_t facts : flags.facts) {
      const Result<NeedleCase> made =
          maker->Case({.length = options.context, .facts = facts, .index = 0, .n = flags.n});
      if (!made.ok()) return Error{made.error().kind, made.error().message + "; pass --n 0 to leave the facts out"};
    }
  }
  Comparison comparison(task, maker ? &*maker : nullptr, &session);
  ASSIGN_OR_RETURN(const CompareResult result, comparison.Run());
  return Report(flags, task, session, result);
}

void AddFlags(Flags& flags, CompareFlags* values) {
  flags.Group("What is measured");
  flags.Text("-f,--file", &values->file, "FILE",
             "text to score and to plant facts in; - is standard input (default: generated text)");
  flags.Integer("-c,--ctx", &values->context, 64, kMaxContext,
                "tokens of a window, and of a text with facts (default: the model's context, at most 8192)");
  flags.Integer("--limit-tokens", &values->limit_tokens, 1, INT64_MAX,
                "score only the first N tokens (default: all of a file, one window of generated text)");
  flags.Integer("--from", &values->from, 0, kMaxContext,
                "prefill the first N tokens of a window as a prompt and score only what follows, as in eval ppl");
  flags.Choice("--mode", &values->mode, {"step", "batched"}, "how to score the text, as in eval ppl");
  flags.Switch("--no-ppl", &values->no_ppl, "do not measure the perplexity");
  const auto set_facts = [values](const std::string& text) {
    return ParseIntegerList(text, 1, kMostFacts, &values->facts);
  };
  flags.Custom("--facts", set_facts, "K,L",
               "number of facts (access codes) in a text, one of which is asked for (default 1)");
  flags.Integer("-n,--n", &values->n, 0, 1 << 20, "texts for each number of facts; 0: no facts (default 20)");
  flags.Integer("-s,--seed", &values->seed, 0, INT64_MAX, "random seed of the cases and the text (default 1)");
  flags.Integer("--gen", &values->steps, 0, INT32_MAX,
                "decode steps to time at the end of the first window; 0: no speed (default 64)");
  values->common.kv.presets.clear();
  for (const KvPreset& preset : KvPresets()) values->common.kv.presets.push_back(&preset);
  AddEvalFlags(flags, &values->common, "run at most N texts with facts at once (default 8)", /*kv_list=*/true);
  flags.Choice("--format", &values->format, {"md", "csv", "json"}, "output format: Markdown table, CSV or JSON");
}

}  // namespace

int RunEvalCompare(Arguments arguments) {
  CompareFlags values;
  Flags flags("eval compare",
              "Compare KV methods on the same text, facts and steps. The table has perplexity, facts found, attended "
              "share, bytes and tokens/s, each relative to --kv full.");
  AddFlags(flags, &values);
  if (const std::optional<int> exit_code = flags.Parse(arguments)) return *exit_code;
  if (values.common.json) values.format = "json";
  if (values.no_ppl && values.n == 0 && values.steps == 0)
    return FailUsage("eval compare", "with --no-ppl, --n 0 and --gen 0 there is nothing to measure; leave one out");
  InstallInterrupt();
  return Finish(EvalCompare(values));
}

}  // namespace infinigen
