// `infinigen eval needle`: facts planted in a long text; does the model find them again?
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/machine.h"
#include "base/size.h"
#include "cli/attention_picture.h"
#include "cli/console.h"
#include "cli/eval.h"
#include "cli/flags.h"
#include "cli/interrupt.h"
#include "cli/needle_case.h"
#include "cli/needle_run.h"
#include "cli/needle_show.h"
#include "cli/progress.h"

namespace infinigen {
namespace {

using Json = nlohmann::ordered_json;

struct NeedleFlags {
  EvalFlags common;
  std::vector<int64_t> lengths = {1024, 4096};
  std::vector<int64_t> facts = {1};
  int64_t n = 20;
  int64_t seed = 1;
  std::string file;  // empty: generated text
  std::string form = "plain";
  std::string depth = "uniform";
  bool show = false;
};

// One line of the table: every case of one length and one number of facts.
struct NeedleCell {
  struct Count {
    int64_t n = 0, found = 0;
  };
  int64_t length = 0, facts = 0;
  Count all;
  std::array<Count, 5> by_depth;  // fifths of the context

  void Add(double depth, bool found) {
    Count& fifth = by_depth[std::min<size_t>(static_cast<size_t>(depth * 5), 4)];
    for (Count* count : {&all, &fifth}) {
      ++count->n;
      count->found += found ? 1 : 0;
    }
  }
};

struct NeedleResult {
  std::vector<NeedleCell> cells;
  NeedleCell::Count all;
  Timing timing;
  PoolUse pool;
  bool complete = true;
};

NeedleForm FormOf(const std::string& word) {
  if (word == "chat") return NeedleForm::kChat;
  return word == "continuation" ? NeedleForm::kContinuation : NeedleForm::kPlain;
}

// The order in which the cases of a cell run: every beginning of it is spread evenly over the depths, so that what is
// finished after Ctrl-C says something about all of them.
std::vector<int64_t> EvenOrder(int64_t n) {
  constexpr double kGolden = 0.6180339887498949;
  std::vector<std::pair<double, size_t>> points;  // multiples of the golden ratio, and which
  for (size_t i = 0; i < static_cast<size_t>(n); ++i)
    points.emplace_back(std::fmod(kGolden * static_cast<double>(i), 1.0), i);
  std::sort(points.begin(), points.end());
  std::vector<int64_t> order(points.size());
  for (size_t rank = 0; rank < points.size(); ++rank) order[points[rank].second] = static_cast<int64_t>(rank);
  return order;
}

class NeedleTable {
 public:
  NeedleTable(const NeedleFlags& flags, const EvalSession& session, const NeedleMaker& maker)
      : flags_(flags),
        session_(session),
        maker_(maker),
        order_(EvenOrder(flags.n)),
        runner_(*session.executor, session.tokenizer(), FormOf(flags.form)) {}

  Result<NeedleResult> Run(Output& output) {
    for (const int64_t length : flags_.lengths)
      for (const int64_t facts : flags_.facts) result_.cells.push_back({.length = length, .facts = facts});
    for (NeedleCell& cell : result_.cells) {
      int64_t next = 0;
      if (flags_.show && &cell == &result_.cells[0]) {
        RETURN_IF_ERROR(Show(cell, output));
        next = 1;
      }
      RETURN_IF_ERROR(RunCell(cell, next));
    }
    line_.Erase();
    for (const NeedleCell& cell : result_.cells) {
      result_.all.n += cell.all.n;
      result_.all.found += cell.all.found;
      result_.complete = result_.complete && cell.all.n == flags_.n;
    }
    result_.timing = runner_.timing();
    result_.pool = runner_.pool();
    return std::move(result_);
  }

 private:
  Result<NeedleCase> Make(const NeedleCell& cell, int64_t turn) const {
    const int64_t index = order_[static_cast<size_t>(turn)];
    ASSIGN_OR_RETURN(NeedleCase made,
                     maker_.Case({.length = cell.length, .facts = cell.facts, .index = index, .n = flags_.n}));
    RETURN_IF_ERROR(CheckIds(session_.model->config, made.context));
    RETURN_IF_ERROR(CheckIds(session_.model->config, made.question_ids));
    return made;
  }

  Status RunCell(NeedleCell& cell, int64_t next) {
    const int64_t batch = session_.executor->options().max_batch;
    while (next < flags_.n && !Interrupted()) {
      std::vector<NeedleCase> group;
      for (; next < flags_.n && static_cast<int64_t>(group.size()) < batch; ++next) {
        ASSIGN_OR_RETURN(NeedleCase made, Make(cell, next));
        group.push_back(std::move(made));
      }
      const int64_t before = next - static_cast<int64_t>(group.size());
      int64_t prefilled = 0;
      const auto on_prefill = [&](int64_t unit, int64_t units, int64_t) {
        prefilled += unit == units ? 1 : 0;
        line_.Draw(fmt::format("{} tokens, {} fact{}: case {} of {}, {} found  {:.0f} tok/s", cell.length, cell.facts,
                               cell.facts == 1 ? "" : "s", std::min(before + prefilled + 1, flags_.n), flags_.n,
                               cell.all.found, runner_.timing().prefill_rate()));
      };
      ASSIGN_OR_RETURN(const std::vector<NeedleAnswer> answers, runner_.Run(group, {.on_prefill = on_prefill}));
      for (size_t i = 0; i < group.size(); ++i)
        if (answers[i].done) cell.Add(group[i].depth(), answers[i].found);
    }
    return Ok();
  }

  // The first case, alone and in public.
  Status Show(NeedleCell& cell, Output& output) {
    ASSIGN_OR_RETURN(const NeedleCase planted, Make(cell, 0));
    const ShowStyle style = DetectStyle();
    const std::string screen = ShowCase(planted, flags_.file.empty() ? "generated" : flags_.file, style);
    const size_t last_line = screen.rfind('\n') + 1;  // waits for the bar to be gone, which has this place till then
    output.Write(std::string_view(screen).substr(0, last_line));
    Progress progress;
    NeedleWatch watch;
    watch.on_prefill = [&](int64_t unit, int64_t units, int64_t tokens) {
      if (unit == 1) progress.Expect(units, tokens);
      progress.Advance(1);
      if (unit == units) output.Write(std::string_view(screen).substr(last_line));
    };
    Executor& executor = *session_.executor;
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
    ASSIGN_OR_RETURN(const std::vector<NeedleAnswer> answers, runner_.Run({&planted, 1}, watch));
    progress.Erase();
    output.Write(ShowOutcome(planted, answers[0], runner_.timing(), runner_.pool(), executor.Stats(),
                             executor.options(), style));
    executor.ObserveSelection({});
    if (picture.seen() && answers[0].done)
      output.Write(
          "\nWhere each layer looked in the step that gave the first digit (the darker, the more of those tokens):\n" +
          picture.Draw(planted.fact_token, "the code"));
    if (answers[0].done) cell.Add(planted.depth(), answers[0].found);
    return Ok();
  }

  const NeedleFlags& flags_;
  const EvalSession& session_;
  const NeedleMaker& maker_;
  const std::vector<int64_t> order_;  // [n], case of each turn
  NeedleRunner runner_;
  StatusLine line_;
  NeedleResult result_;
};

// ---- output ----

Json Share(const NeedleCell::Count& count) {
  return count.n > 0 ? Json(static_cast<double>(count.found) / static_cast<double>(count.n)) : Json(nullptr);
}

Json ResultJson(const NeedleFlags& flags, const EvalSession& session, const NeedleResult& result) {
  Json json = EvalJsonHead(session);
  json.update({{"accuracy", Share(result.all)},
               {"n", result.all.n},
               {"form", flags.form},
               {"file", flags.file.empty() ? Json(nullptr) : Json(flags.file)},
               {"seed", flags.seed}});
  for (const NeedleCell& cell : result.cells) {
    Json depths = Json::array();
    for (const NeedleCell::Count& count : cell.by_depth)
      depths.push_back({{"n", count.n}, {"found", count.found}, {"accuracy", Share(count)}});
    json["cells"].push_back({{"length", cell.length},
                             {"facts", cell.facts},
                             {"n", cell.all.n},
                             {"found", cell.all.found},
                             {"accuracy", Share(cell.all)},
                             {"by_depth", std::move(depths)}});
  }
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
                        100.0 * static_cast<double>(cell.all.found) / static_cast<double>(cell.all.n));
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
  const int64_t longest = *std::max_element(flags.lengths.begin(), flags.lengths.end());
  ASSIGN_OR_RETURN(const int64_t context, ChooseContext(session.model->config, longest));
  ASSIGN_OR_RETURN(const NeedleMaker maker, NeedleMaker::Make(session.tokenizer(), FormOf(flags.form),
                                                              std::move(source), static_cast<uint64_t>(flags.seed)));
  RETURN_IF_ERROR(StartExecutor(flags.common, context, flags.n, /*compare=*/false, &session));
  Output output;
  ASSIGN_OR_RETURN(const NeedleResult result, NeedleTable(flags, session, maker).Run(output));
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
               flags.n * static_cast<int64_t>(result.cells.size()));
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
  flags.Custom("--lengths", numbers(&values.lengths, 64, kMaxContext), "A,B",
               "tokens of text, question and answer together (default 1024,4096)");
  flags.Custom("--facts", numbers(&values.facts, 1, kMostFacts), "K,L",
               "codes in the text, one of which is asked for (default 1)");
  flags.Integer("-n,--n", &values.n, 1, 1 << 20, "cases for each length and number of facts (default 20)");
  flags.Integer("-s,--seed", &values.seed, 0, INT64_MAX, "the same seed gives the same cases (default 1)");
  flags.Text("-f,--file", &values.file, "FILE", "a real text to plant in, cut at sentences (default: generated text)");
  flags.Choice("--form", &values.form, {"plain", "chat", "continuation"},
               "Question: ... Answer:, the model's chat template, or the beginning of the sentence once more");
  flags.Choice("--depth", &values.depth, {"uniform"}, "where the asked fact lies: evenly over the cases");
  AddEvalFlags(flags, &values.common, "at most N cases at once (default 8)");
  flags.Switch("--show", &values.show, "show the first case: text, question, answer, and what it took");
  flags.Exclusive({"show", "json"});
  if (const std::optional<int> exit_code = flags.Parse(arguments)) return *exit_code;
  return FinishEval([&] { return EvalNeedle(values); });
}

}  // namespace infinigen
