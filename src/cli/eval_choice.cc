// `infinigen eval choice`: multiple-choice questions, answered by the likelihood of each choice.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/console.h"
#include "cli/eval.h"
#include "cli/prompts.h"
#include "eval/choice_run.h"

namespace infinigen {
namespace {

struct ChoiceFlags {
  EvalFlags common;
  std::string task;
  ChoiceOptions options;
  std::string mode = "batched";
  std::string format = "md";
};

Result<int> EvalChoice(const ChoiceFlags& flags) {
  Terminal terminal;
  ASSIGN_OR_RETURN(const KvRequest kv, OneKvRequest(flags.common.kv));
  ASSIGN_OR_RETURN(EvalSession session, OpenSession(flags.common, terminal));
  ASSIGN_OR_RETURN(ChoiceTask task, LoadChoiceTask(flags.task, flags.options.shots > 0, ReadText));
  ASSIGN_OR_RETURN(const ChoiceInput input, PrepareChoice(session, kv, std::move(task), flags.options));
  const bool json = flags.format == "json";
  if (flags.common.dry_run) {
    ASSIGN_OR_RETURN(const RunPlan plan, session.Plan(kv, input.rows, input.useful_batch()));
    return PrintPlans(session.model(), {&plan, 1}, json);
  }
  RETURN_IF_ERROR(session.Start(kv, input.rows, input.useful_batch(), /*compare=*/true));
  ASSIGN_OR_RETURN(const ChoiceResult result, AskQuestions(session, input));
  Output output;
  output.Write(json ? Dump(ChoiceJson(session, input, result))
                    : ChoiceTable(session, input, result, flags.format == "csv"));
  RETURN_IF_ERROR(output.status());
  if (!json) PrintStderr("{}", ChoiceStatistics(session, result));
  if (result.complete()) return kExitOk;
  if (!json) PrintStderr("infinigen: interrupted: the results are for {} of {} questions\n", result.n(), result.wanted);
  return kExitInterrupted;
}

}  // namespace

int RunEvalChoice(Arguments arguments) {
  ChoiceFlags values;
  ChoiceOptions& options = values.options;
  Flags flags("eval choice",
              "Answer multiple-choice questions by likelihood, with the prompts and scores of lm-evaluation-harness. "
              "The question is prefilled; the tokens of the choices are decode steps.");
  flags.Group("What is measured");
  flags.Text("--task", &values.task, "DIR|FILE",
             "questions: the directory of COPA, OpenBookQA, PIQA or WinoGrande, a file in one of their formats, or a "
             "file with lines of {\"context\": TEXT, \"choices\": [TEXT, ...], \"answer\": INDEX}");
  flags.Integer("--shots", &options.shots, 0, 1000, "solved examples before each question (default 0)");
  flags.Integer("--limit", &options.limit, 1, INT64_MAX, "ask only the first N questions (default: all)");
  flags.Integer("-s,--seed", &options.seed, 0, INT64_MAX, "random seed for choosing the examples (default 1)");
  flags.Choice(
      "--mode", &values.mode, {"step", "batched"},
      "step: run every token of a choice as a decode step; batched: run all of them at once, which gives the same "
      "result faster");
  AddEvalFlags(flags, &values.common, "in step mode, run at most N choices at once (default 8)", /*kv_list=*/false);
  flags.Choice("--format", &values.format, {"md", "csv", "json"}, "output format: Markdown table, CSV or JSON");
  if (const std::optional<int> exit_code = flags.Parse(arguments)) return *exit_code;
  if (values.common.json) values.format = "json";
  if (values.mode == "step") options.mode = ChoiceMode::kStep;
  if (values.task.empty())
    return FailUsage("eval choice", "the task is missing; pass its directory or file with --task");
  InstallInterrupt();
  return Finish(EvalChoice(values));
}

}  // namespace infinigen
