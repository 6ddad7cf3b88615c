// `infinigen eval needle`: facts planted in a long text; does the model find them again?
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/machine.h"
#include "base/size.h"
#include "cli/attention_picture.h"
#include "cli/console.h"
#include "cli/eval.h"
#include "cli/flags.h"
#include "cli/launch.h"
#include "cli/needle_case.h"
#include "cli/needle_run.h"
#include "cli/needle_show.h"
#include "cli/needle_table.h"
#include "cli/progress.h"

namespace infinigen {
namespace {

using Json = nlohmann::ordered_json;

struct NeedleFlags {
  EvalFlags common;
  NeedlePlan plan;
  int64_t seed = 1;
  std::string file;  // empty: generated text
  std::string form = "plain";
  std::string depth = "uniform";
  bool show = false;
};

NeedleForm FormOf(const std::string& word) {
  if (word == "chat") return NeedleForm::kChat;
  return word == "continuation" ? NeedleForm::kContinuation : NeedleForm::kPlain;
}

// The first case, alone and in public.
Status Show(const NeedleFlags& flags, Executor& executor, NeedleTable& table, Output& output) {
  ASSIGN_OR_RETURN(const NeedleCase planted, table.Make(table.first_cell(), 0));
  NeedleRunner& runner = table.runner();
  const ShowStyle style = DetectStyle();
  const std::string screen = ShowCase(planted, flags.file.empty() ? "generated" : flags.file, style);
  const size_t last_line = screen.rfind('\n') + 1;  // waits for the bar to be gone, which has this place till then
  output.Write(std::string_view(screen).substr(0, last_line));
  Progress progress;
  NeedleWatch watch;
  watch.on_prefill = [&](int64_t unit, int64_t units, int64_t tokens) {
    if (unit == 1) progress.Expect(units, tokens);
    progress.Advance(1);
    if (unit == units) output.Write(std::string_view(screen).substr(last_line));
  };
  AttentionPicture picture(executor.config().layers, planted.prompt_tokens(), style.width - 8);
  executor.ObserveSelection(picture.Observer());
  std::string spaces;  // shown only when something follows
  watch.on_text = [&](size_t, std::string_view text) {
    if (text.find_first_of("0123456789") != std::string_view::npos) picture.Freeze();
    const std::string line = spaces + OneLine(text);
    const size_t end = line.find_last_not_of(' ') + 1;
    output.Write(std::string_view(line).substr(0, end));
    spaces = line.substr(end);
  };
  ASSIGN_OR_RETURN(const std::vector<NeedleAnswer> answers, runner.Run({&planted, 1}, watch));
  progress.Erase();
  output.Write(
      ShowOutcome(planted, answers[0], runner.timing(), runner.pool(), executor.Stats(), executor.options(), style));
  executor.ObserveSelection({});
  if (picture.seen() && answers[0].done)
    output.Write(
        "\nWhere each layer looked in the step that gave the first digit (the darker, the more of those tokens):\n" +
        picture.Draw(planted.fact_token, "the code"));
  if (answers[0].done) table.first_cell().Add(planted.depth(), answers[0].found);
  table.SkipFirst();
  return Ok();
}

// ---- output ----

Json ResultJson(const NeedleFlags& flags, const EvalSession& session, const NeedleResult& result) {
  Json json = EvalJsonHead(session);
  json.update({{"accuracy", ShareJson(result.all)},
               {"n", result.all.n},
               {"form", flags.form},
               {"file", flags.file.empty() ? Json(nullptr) : Json(flags.file)},
               {"seed", flags.seed}});
  json["cells"] = CellsJson(result.cells);
  json["complete"] = result.complete;
  AddEvalJsonTail(flags.common, session, result.timing, result.pool, &json);
  return json;
}

std::string ResultTable(const NeedleResult& result) {
  std::string text =
      "| context | facts | n | found | accuracy | depth 0-20 % | 20-40 % | 40-60 % | 60-80 % | 80-100 % |\n"
      "|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n";
  for (const NeedleCell& cell : result.cells) {
    if (cell.all.n == 0) continue;
    text += fmt::format("| {} | {} | {} | {} | {:.1f} % |", cell.length, cell.facts, cell.all.n, cell.all.found,
                        100.0 * cell.all.share());
    for (const NeedleCell::Count& count : cell.by_depth)
      text += count.n > 0 ? fmt::format(" {}/{} |", count.found, count.n) : " - |";
    text += "\n";
  }
  return text;
}

std::string Statistics(const NeedleResult& result, const KvStats& stats, const ExecutorOptions& options,
                       bool per_layer) {
  const Timing& timing = result.timing;
  return fmt::format(
      "texts {} tokens, {:.1f} tok/s; questions and answers {} steps for {} tokens, {:.1f} tok/s\n"
      "memory {} at most, KV pool {} ({}), {} thread{}\n{}{}",
      timing.prefill_tokens, timing.prefill_rate(), timing.step_ms.size(), timing.decode_tokens, timing.decode_rate(),
      FormatSize(PeakResidentBytes()), FormatSize(result.pool.peak_bytes), KvWords(options), options.threads,
      options.threads == 1 ? "" : "s", AttendedWords(stats, options), per_layer ? LayerTable(stats) : "");
}

// ---- the command ----

Result<int> EvalNeedle(const NeedleFlags& flags) {
  std::optional<std::string> source;
  ASSIGN_OR_RETURN(EvalSession session, OpenForEval(flags.common));
  if (!flags.file.empty()) {
    ASSIGN_OR_RETURN(source, ReadText(flags.file));
  }
  const int64_t longest = *std::max_element(flags.plan.lengths.begin(), flags.plan.lengths.end());
  ASSIGN_OR_RETURN(const int64_t context, ChooseContext(session.model->config, longest));
  ASSIGN_OR_RETURN(const NeedleMaker maker, NeedleMaker::Make(session.tokenizer(), flags.plan.form, std::move(source),
                                                              static_cast<uint64_t>(flags.seed)));
  if (flags.common.dry_run) {
    ASSIGN_OR_RETURN(const RunPlan plan, PlanEval(flags.common, context, flags.plan.n, session));
    return PrintPlans(*session.model, {&plan, 1}, flags.common.json);
  }
  RETURN_IF_ERROR(StartExecutor(flags.common, context, flags.plan.n, /*compare=*/false, &session));
  Output output;
  NeedleTable table(flags.plan, session, maker);
  if (flags.show) RETURN_IF_ERROR(Show(flags, *session.executor, table, output));
  ASSIGN_OR_RETURN(const NeedleResult result, table.Run());
  if (flags.common.json)
    output.Write(Dump(ResultJson(flags, session, result)));
  else if (!flags.show || result.all.n > 1)
    output.Write((flags.show ? "\n" : "") + ResultTable(result));
  RETURN_IF_ERROR(output.status());
  if (!flags.common.json && !flags.show)
    fmt::print(
        stderr, "{}",
        Statistics(result, session.executor->Stats(), session.executor->options(), flags.common.kv.stats_per_layer));
  if (result.complete) return kExitOk;
  if (!flags.common.json)
    fmt::print(stderr, "infinigen: interrupted: {} of {} cases are done, the numbers are theirs\n", result.all.n,
               flags.plan.n * static_cast<int64_t>(result.cells.size()));
  return kExitInterrupted;
}

}  // namespace

int RunEvalNeedle(Arguments arguments) {
  NeedleFlags values;
  Flags flags(
      "eval needle",
      "Plant access codes in a long text and ask for one of them. The text is prefilled, the question is fed as "
      "decode steps, the answer is decoded greedily; the six digits must be right.");
  flags.Group("What is measured");
  const auto numbers = [](std::vector<int64_t>* list, int64_t least, int64_t most) {
    return [=](const std::string& text) { return ParseIntegerList(text, least, most, list); };
  };
  flags.Custom("--lengths", numbers(&values.plan.lengths, 64, kMaxContext), "A,B",
               "tokens of text, question and answer together (default 1024,4096)");
  flags.Custom("--facts", numbers(&values.plan.facts, 1, kMostFacts), "K,L",
               "codes in the text, one of which is asked for (default 1)");
  flags.Integer("-n,--n", &values.plan.n, 1, 1 << 20, "cases for each length and number of facts (default 20)");
  flags.Integer("-s,--seed", &values.seed, 0, INT64_MAX, "the same seed gives the same cases (default 1)");
  flags.Text("-f,--file", &values.file, "FILE", "a real text to plant in, cut at sentences (default: generated text)");
  flags.Choice("--form", &values.form, {"plain", "chat", "continuation"},
               "Question: ... Answer:, the model's chat template, or the beginning of the sentence once more");
  flags.Choice("--depth", &values.depth, {"uniform"}, "where the asked fact lies: evenly over the cases");
  AddEvalFlags(flags, &values.common, "at most N cases at once (default 8)");
  flags.Switch("--show", &values.show, "show the first case: text, question, answer, and what it took");
  flags.Exclusive({"show", "json"});
  if (const std::optional<int> exit_code = flags.Parse(arguments)) return *exit_code;
  values.plan.form = FormOf(values.form);
  return FinishEval([&] { return EvalNeedle(values); });
}

}  // namespace infinigen
