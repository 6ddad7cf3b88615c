// `infinigen eval choice`: multiple-choice questions, answered by the likelihood of each choice.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/machine.h"
#include "base/size.h"
#include "cli/choice_prompt.h"
#include "cli/choice_run.h"
#include "cli/choice_task.h"
#include "cli/console.h"
#include "cli/eval.h"
#include "cli/flags.h"
#include "cli/interrupt.h"
#include "cli/plan_output.h"
#include "runtime/describe.h"
#include "runtime/launch.h"

namespace infinigen {
namespace {

using Json = nlohmann::ordered_json;

struct ChoiceFlags {
  EvalFlags common;
  std::string task;
  int64_t shots = 0;
  int64_t limit = 0;  // 0: all
  int64_t seed = 1;
  std::string mode = "batched";
  std::string format = "md";
};

// How one question was answered: the choice whose ending is likeliest, and the one likeliest by character.
struct Answer {
  std::vector<double> scores;
  size_t choice = 0, choice_norm = 0;
};

Answer Choose(const ChoiceQuestion& question, std::vector<double> scores) {
  std::vector<double> norms;
  for (size_t i = 0; i < scores.size(); ++i)
    norms.push_back(scores[i] / static_cast<double>(question.choices[i].characters));
  const auto best = [](const std::vector<double>& of) {
    return static_cast<size_t>(std::max_element(of.begin(), of.end()) - of.begin());
  };
  const size_t choice = best(scores);
  return {std::move(scores), choice, best(norms)};
}

struct ChoiceResult {
  std::vector<Answer> answers;  // of the first so many questions
  std::vector<Answer> full;     // of --kv full, for each of them; empty where nothing was compared
  int64_t right = 0, right_norm = 0, same = 0;
  int64_t wanted = 0;
  Timing timing;
  PoolUse pool;

  int64_t n() const { return static_cast<int64_t>(answers.size()); }
  bool complete() const { return n() == wanted; }
  double share(int64_t of) const {  // NaN, where nothing is finished, becomes null
    return n() > 0 ? static_cast<double>(of) / static_cast<double>(n()) : std::numeric_limits<double>::quiet_NaN();
  }
  double accuracy() const { return share(right); }
  // Of the mean of n right or wrong answers, as lm-evaluation-harness has it: the sample's deviation over sqrt(n).
  double accuracy_stderr() const {
    return n() > 1 ? std::sqrt(accuracy() * (1 - accuracy()) / static_cast<double>(n() - 1))
                   : std::numeric_limits<double>::quiet_NaN();
  }
};

// What is asked, ready for the model.
struct ChoiceInput {
  ChoiceTask task;
  std::vector<ChoiceQuestion> questions;
  int64_t rows = 0, most_choices = 0;
};

Result<ChoiceInput> Prepare(const ChoiceFlags& flags, const EvalSession& session) {
  ChoiceInput input;
  ASSIGN_OR_RETURN(input.task, LoadChoiceTask(flags.task, flags.shots > 0));
  ASSIGN_OR_RETURN(const ChoiceMaker maker,
                   ChoiceMaker::Make(input.task, session.tokenizer(), flags.shots, static_cast<uint64_t>(flags.seed)));
  const size_t count = input.task.items.size();
  const size_t asked = flags.limit > 0 ? std::min(static_cast<size_t>(flags.limit), count) : count;
  for (size_t i = 0; i < asked; ++i) {
    if (Interrupted()) return Invalid("interrupted");  // said by the exit code alone
    ASSIGN_OR_RETURN(ChoiceQuestion question, maker.Question(i));
    for (const ChoiceRequest& choice : question.choices) {
      if (session.kv.prompt_columns && session.kv.selection().uses_basis && choice.context.size() < 2)
        return Unsupported("{}:{}: --kv-columns prompt: the context is a single token, no prompt that could choose",
                           input.task.path, question.line);
      RETURN_IF_ERROR(CheckIds(session.model->config, choice.context));
      RETURN_IF_ERROR(CheckIds(session.model->config, choice.ending));
    }
    const Result<int64_t> fits = ChooseContext(session.model->config, question.rows());
    if (!fits.ok())
      return Invalid("{}:{}: {} tokens, {} has positions for {}; pass fewer --shots", input.task.path, question.line,
                     question.rows(), session.model->config.name, session.model->config.max_positions);
    input.rows = std::max(input.rows, question.rows());
    input.most_choices = std::max(input.most_choices, static_cast<int64_t>(question.choices.size()));
    input.questions.push_back(std::move(question));
  }
  return input;
}

Result<ChoiceResult> Ask(const ChoiceInput& input, const EvalSession& session, ChoiceMode mode) {
  ChoiceResult result;
  result.wanted = static_cast<int64_t>(input.questions.size());
  ChoiceRunner runner(*session.executor, mode);
  std::optional<ChoiceRunner> full;
  if (session.full != nullptr) full.emplace(*session.full, mode);
  const bool is_full = session.executor->options().is_full();
  StatusLine status;
  for (const ChoiceQuestion& question : input.questions) {
    ASSIGN_OR_RETURN(std::optional<std::vector<double>> scores, runner.Score(question));
    if (!scores) break;
    const Answer answer = Choose(question, std::move(*scores));
    if (full) {
      ASSIGN_OR_RETURN(std::optional<std::vector<double>> full_scores, full->Score(question));
      if (!full_scores) break;
      result.full.push_back(Choose(question, std::move(*full_scores)));
      result.same += result.full.back().choice == answer.choice ? 1 : 0;
    }
    result.same += is_full && !full ? 1 : 0;
    result.right += answer.choice == question.answer ? 1 : 0;
    result.right_norm += answer.choice_norm == question.answer ? 1 : 0;
    result.answers.push_back(answer);
    status.Draw(
        fmt::format("{}: question {} of {}, {} right", input.task.name, result.n(), result.wanted, result.right));
  }
  status.Erase();
  result.timing = runner.timing();
  result.pool = runner.pool();
  return result;
}

// ---- output ----

// What was compared with full, or is full itself; null where neither.
Json SameJson(const EvalSession& session, const ChoiceResult& result) {
  const bool known = session.full != nullptr || session.executor->options().is_full();
  return known ? Json(result.share(result.same)) : Json(nullptr);
}

// The numbers of a run, in the order of the table's columns.
Json Numbers(const ChoiceFlags& flags, const ChoiceInput& input, const EvalSession& session,
             const ChoiceResult& result) {
  return {{"task", input.task.name},
          {"shots", flags.shots},
          {"n", result.n()},
          {"accuracy", result.accuracy()},
          {"accuracy_stderr", result.accuracy_stderr()},
          {"acc_norm", result.share(result.right_norm)},
          {"agreement", SameJson(session, result)}};
}

Json QuestionsJson(const ChoiceInput& input, const ChoiceResult& result) {
  Json questions = Json::array();
  for (size_t i = 0; i < result.answers.size(); ++i) {
    const Answer& answer = result.answers[i];
    Json one = {{"line", input.questions[i].line},
                {"choice", answer.choice},
                {"choice_norm", answer.choice_norm},
                {"answer", input.questions[i].answer},
                {"scores", answer.scores}};
    if (!result.full.empty())
      one.update({{"full_choice", result.full[i].choice}, {"full_scores", result.full[i].scores}});
    questions.push_back(std::move(one));
  }
  return questions;
}

Json ResultJson(const ChoiceFlags& flags, const ChoiceInput& input, const EvalSession& session,
                const ChoiceResult& result) {
  Json json = EvalJsonHead(session);
  json.update(Numbers(flags, input, session, result));
  json.update({{"seed", flags.seed},
               {"mode", flags.mode},
               {"file", input.task.path},
               {"examples_file", input.task.examples_path.empty() ? Json(nullptr) : Json(input.task.examples_path)},
               {"questions", QuestionsJson(input, result)},
               {"complete", result.complete()}});
  AddEvalJsonTail(flags.common, session, result.timing, result.pool, &json);
  return json;
}

std::string ResultTable(const ChoiceFlags& flags, const ChoiceInput& input, const EvalSession& session,
                        const ChoiceResult& result) {
  const Json numbers = Numbers(flags, input, session, result);
  const ExecutorOptions& options = session.executor->options();
  const Json attended = KvStatsJson(result.pool, session.executor->instruments().Stats())["attended_ratio"];
  if (flags.format == "csv") {
    const auto cell = [](const Json& value) {
      const bool known = !value.is_null() && !(value.is_number_float() && std::isnan(value.get<double>()));
      return !known ? std::string() : value.is_string() ? CsvField(value.get<std::string>()) : value.dump();
    };
    std::string heads = "kv", cells(options.method.preset);
    for (const auto& [name, value] : numbers.items()) heads += "," + name, cells += "," + cell(value);
    return fmt::format("{},attended_ratio\n{},{}\n", heads, cells, cell(attended));
  }
  const auto percent = [](const Json& share) {
    const bool known = share.is_number() && !std::isnan(share.get<double>());
    return known ? fmt::format("{:.1f} %", 100 * share.get<double>()) : std::string("-");
  };
  return fmt::format(
      "| task | shots | kv | n | accuracy | +- | by character | same choice as full | attended |\n"
      "|---|--:|---|--:|--:|--:|--:|--:|--:|\n| {} | {} | {} | {} | {} | {} | {} | {} | {} |\n",
      OneLine(input.task.name), flags.shots, options.method.preset, result.n(), percent(numbers["accuracy"]),
      percent(numbers["accuracy_stderr"]), percent(numbers["acc_norm"]), percent(numbers["agreement"]),
      percent(attended));
}

std::string Statistics(const ChoiceResult& result, const KvStats& stats, const ExecutorOptions& options,
                       bool per_layer) {
  const Timing& timing = result.timing;
  return fmt::format("{} tokens, {:.1f} tok/s; memory {} at most, KV pool {} ({}), {} thread{}\n{}{}",
                     timing.prefill_tokens + timing.decode_tokens,
                     static_cast<double>(timing.prefill_tokens + timing.decode_tokens) /
                         std::max(timing.prefill_s + timing.decode_s, 1e-9),
                     FormatSize(PeakResidentBytes()), FormatSize(result.pool.peak_bytes), KvWords(options),
                     options.threads, options.threads == 1 ? "" : "s", AttendedWords(stats, options),
                     per_layer ? LayerTable(stats) : "");
}

// ---- the command ----

Result<int> EvalChoice(const ChoiceFlags& flags) {
  ASSIGN_OR_RETURN(EvalSession session, OpenForEval(flags.common));
  ASSIGN_OR_RETURN(const ChoiceInput input, Prepare(flags, session));
  const bool json = flags.format == "json", steps = flags.mode == "step";
  const int64_t useful = steps ? input.most_choices : 1;
  if (flags.common.dry_run) {
    ASSIGN_OR_RETURN(const RunPlan plan, PlanEval(flags.common, input.rows, useful, session));
    return PrintPlans(*session.model, {&plan, 1}, json);
  }
  RETURN_IF_ERROR(StartExecutor(flags.common, input.rows, useful, /*compare=*/true, &session));
  ASSIGN_OR_RETURN(const ChoiceResult result, Ask(input, session, steps ? ChoiceMode::kStep : ChoiceMode::kBatched));
  Output output;
  output.Write(json ? Dump(ResultJson(flags, input, session, result)) : ResultTable(flags, input, session, result));
  RETURN_IF_ERROR(output.status());
  if (!json)
    PrintStderr("{}", Statistics(result, session.executor->instruments().Stats(), session.executor->options(),
                                 flags.common.kv.stats_per_layer));
  if (result.complete()) return kExitOk;
  if (!json)
    PrintStderr("infinigen: interrupted: {} of {} questions are done, the numbers are theirs\n", result.n(),
                result.wanted);
  return kExitInterrupted;
}

}  // namespace

int RunEvalChoice(Arguments arguments) {
  ChoiceFlags values;
  Flags flags("eval choice",
              "Multiple-choice questions with prompts and scores as in lm-evaluation-harness: the choice that is most "
              "likely after the question. The question is prefilled, the choices are decode steps.");
  flags.Group("What is measured");
  flags.Text("--task", &values.task, "DIR|FILE",
             "the directory of COPA, OpenBookQA, PIQA or WinoGrande, or a file with one of their forms or lines of "
             "{\"context\": TEXT, \"choices\": [TEXT, ...], \"answer\": INDEX}");
  flags.Integer("--shots", &values.shots, 0, 1000, "examples with their answers before each question (default 0)");
  flags.Integer("--limit", &values.limit, 1, INT64_MAX, "only the first N questions (default: all)");
  flags.Integer("-s,--seed", &values.seed, 0, INT64_MAX, "the same seed draws the same examples (default 1)");
  flags.Choice("--mode", &values.mode, {"step", "batched"},
               "every token of a choice attends as in a decode step; batched shares the matrix products of a choice's "
               "tokens");
  AddEvalFlags(flags, &values.common, "in step mode, at most N choices at once (default 8)");
  flags.Choice("--format", &values.format, {"md", "csv", "json"}, "how the result is printed");
  if (const std::optional<int> exit_code = flags.Parse(arguments)) return *exit_code;
  if (values.common.json) values.format = "json";
  if (values.task.empty())
    return FailUsage("eval choice", "the task is missing: pass its directory or file with --task");
  return FinishEval([&] { return EvalChoice(values); });
}

}  // namespace infinigen
