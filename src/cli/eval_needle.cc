// `infinigen eval needle`: facts planted in a long text; does the model find them again? What kinds of facts there are
// is told in needle_family.h.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/attention_picture.h"
#include "cli/console.h"
#include "cli/eval.h"
#include "cli/flags.h"
#include "cli/interrupt.h"
#include "cli/needle_case.h"
#include "cli/needle_report.h"
#include "cli/needle_run.h"
#include "cli/needle_show.h"
#include "cli/needle_table.h"
#include "cli/plan_output.h"
#include "cli/prompts.h"
#include "cli/terminal.h"

namespace infinigen {
namespace {

using Json = nlohmann::ordered_json;

struct NeedleFlags {
  EvalFlags common;
  NeedlePlan plan{.facts = {}};
  int64_t seed = 1;
  std::string file;  // empty: generated text
  std::string form = "plain";
  std::string depth = "uniform";
  std::string against = "none";
  std::string heatmap;
  bool show = false;
};

NeedleForm FormOf(const std::string& word) {
  if (word == "chat") return NeedleForm::kChat;
  return word == "continuation" ? NeedleForm::kContinuation : NeedleForm::kPlain;
}

// The first case of a cell, alone and in public.
Status ShowFirst(const NeedleFlags& flags, Executor& executor, NeedleTable& table, NeedleCell& cell, Output& output) {
  ASSIGN_OR_RETURN(const NeedleCase planted, table.Make(cell, 0));
  NeedleRunner& runner = table.runner();
  const bool codes = planted.spec.family != NeedleFamily::kWords && planted.spec.family != NeedleFamily::kVariable;
  const ShowStyle style = DetectStyle();
  const std::string screen = ShowCase(planted, flags.file.empty() ? "generated" : flags.file, style);
  const size_t last_line = screen.rfind('\n') + 1;  // waits for the bar to be gone, which has this place till then
  output.Write(std::string_view(screen).substr(0, last_line));
  Terminal terminal;
  const Callbacks callbacks = terminal.callbacks();
  NeedleWatch watch;
  watch.on_prefill = [&](int64_t unit, int64_t units, int64_t tokens) {
    callbacks.Progress({.kind = WorkKind::kPrefill, .done = unit, .total = units, .tokens = tokens});
    if (unit == units) output.Write(std::string_view(screen).substr(last_line));
  };
  AttentionPicture picture(executor.config().layers, planted.prompt_tokens(), style.width - 8);
  executor.instruments().ObserveSelection(picture.Observer());
  std::string spaces;  // shown only when something follows
  watch.on_text = [&](size_t, std::string_view text) {
    if (codes ? text.find_first_of("0123456789") != std::string_view::npos : !IsBlank(text)) picture.Freeze();
    const std::string line = spaces + OneLine(text);
    const size_t end = line.find_last_not_of(' ') + 1;
    output.Write(std::string_view(line).substr(0, end));
    spaces = line.substr(end);
  };
  const Timing before = runner.timing();
  ASSIGN_OR_RETURN(const std::vector<NeedleAnswer> answers, runner.Run({&planted, 1}, watch));
  terminal.Erase();
  output.Write(ShowOutcome(planted, answers[0], runner.timing().Since(before), runner.pool(),
                           executor.instruments().Stats(), executor.options(), style));
  executor.instruments().ObserveSelection({});
  if (picture.seen() && answers[0].done)
    output.Write(fmt::format(
        "\nWhere each layer looked in the step that gave the first {} (the darker, the more of those tokens):\n{}",
        codes ? "digit" : "word", picture.Draw(planted.sought[0].token, MarkOf(planted))));
  if (answers[0].done) cell.Add(planted, answers[0]);
  cell.skip = 1;
  return Ok();
}

// One case of each family.
Status Show(const NeedleFlags& flags, Executor& executor, NeedleTable& table, Output& output) {
  std::vector<NeedleCell>& cells = table.cells();
  for (size_t i = 0; i < cells.size() && !Interrupted(); ++i) {
    if (i > 0 && cells[i].family == cells[i - 1].family) continue;
    if (i > 0) output.Write("\n");
    RETURN_IF_ERROR(ShowFirst(flags, executor, table, cells[i], output));
  }
  return Ok();
}

// ---- output ----

Json RunJson(const NeedleFlags& flags, const EvalSession& session, const NeedleResult& result) {
  Json families = Json::array();
  for (const NeedleFamily family : flags.plan.families) families.push_back(Name(family));
  Json json = EvalJsonHead(session);
  json.update({{"accuracy", AccuracyJson(result.score)},
               {"n", result.score.all.n},
               {"form", flags.form},
               {"file", flags.file.empty() ? Json(nullptr) : Json(flags.file)},
               {"seed", flags.seed},
               {"families", std::move(families)}});
  json["cells"] = CellsJson(result.cells);
  json["heatmap"] = BinsJson(result.cells);
  json["complete"] = result.complete;
  AddEvalJsonTail(flags.common, session, result.timing, result.pool, &json);
  return json;
}

Result<int> Report(const NeedleFlags& flags, const EvalSession& session, const std::vector<NeedleKvRun>& runs,
                   size_t wanted, Output& output) {
  int64_t done = 0;
  bool complete = runs.size() == wanted;
  for (const NeedleKvRun& run : runs) {
    done += run.result.score.all.n;
    complete = complete && run.result.complete;
  }
  const std::string source = flags.file.empty() ? "generated text" : flags.file.substr(flags.file.rfind('/') + 1);
  const HeatmapWords words{session.model->config.name, source, flags.seed};
  const Status drawn = flags.heatmap.empty() ? Ok() : WriteHeatmap(flags.heatmap, flags.plan, runs, words);
  if (flags.common.json)
    output.Write(Dump(NeedleJson(runs, complete)));
  else if (!flags.show || done > static_cast<int64_t>(runs.size() * flags.plan.families.size()))
    output.Write((flags.show ? "\n" : "") + NeedleMarkdown(flags.plan, runs));
  RETURN_IF_ERROR(output.status());
  for (const NeedleKvRun& run : runs)
    if (!flags.common.json && !flags.show) PrintStderr("{}", NeedleStatistics(run, flags.common.kv.stats_per_layer));
  RETURN_IF_ERROR(drawn);
  if (complete) return kExitOk;
  if (!flags.common.json)
    PrintStderr("infinigen: interrupted: {} of {} cases are done, the numbers are theirs\n", done,
                flags.plan.cases() * static_cast<int64_t>(wanted));
  return kExitInterrupted;
}

// ---- the command ----

// The methods of --kv, and full where it is asked for to compare with and missing.
Result<std::vector<KvRequest>> Requests(const NeedleFlags& flags) {
  ASSIGN_OR_RETURN(std::vector<KvRequest> requests, KvRequests(flags.common.kv));
  const auto full = [](const KvRequest& kv) {
    return kv.preset->name == "full" && &kv.selection() == &kSelectAll && !kv.evicts();
  };
  if (flags.against != "full" || std::any_of(requests.begin(), requests.end(), full)) return requests;
  KvRequest plain = flags.common.kv.request;
  plain.preset = FindPreset("full");
  plain.select = nullptr;
  plain.evict.reset();
  plain.limit_share.reset();
  plain.limit_bytes.reset();
  plain.type.reset();
  RETURN_IF_ERROR(CheckKvRequest(plain));
  requests.push_back(std::move(plain));
  return requests;
}

Result<int> EvalNeedle(const NeedleFlags& flags) {
  // What the flags alone can refuse comes before anything is read.
  ASSIGN_OR_RETURN(const std::vector<KvRequest> requests, Requests(flags));
  if (!flags.heatmap.empty()) RETURN_IF_ERROR(CheckWritable(flags.heatmap));
  ASSIGN_OR_RETURN(EvalSession session, OpenModelForEval(flags.common));
  std::optional<std::string> source;
  if (!flags.file.empty()) {
    ASSIGN_OR_RETURN(source, ReadText(flags.file));
  }
  const int64_t longest = *std::max_element(flags.plan.lengths.begin(), flags.plan.lengths.end());
  ASSIGN_OR_RETURN(const int64_t context, ChooseContext(session.model->config, longest));
  ASSIGN_OR_RETURN(const NeedleMaker maker, NeedleMaker::Make(session.tokenizer(), flags.plan.form, std::move(source),
                                                              static_cast<uint64_t>(flags.seed)));
  if (flags.common.dry_run) {
    std::vector<RunPlan> plans;
    for (const KvRequest& kv : requests) {
      session.kv = kv;
      ASSIGN_OR_RETURN(RunPlan plan, PlanEval(flags.common, context, flags.plan.n, session));
      plans.push_back(std::move(plan));
    }
    return PrintPlans(*session.model, plans, flags.common.json);
  }
  Output output;
  std::vector<NeedleKvRun> runs;
  for (const KvRequest& kv : requests) {
    if (!runs.empty() && Interrupted()) break;
    session.kv = kv;
    session.executor.reset();
    RETURN_IF_ERROR(StartExecutor(flags.common, context, flags.plan.n, /*compare=*/false, &session));
    const std::string preset(kv.preset->name);
    NeedleTable table(flags.plan, session, maker, requests.size() > 1 ? preset + ": " : "");
    if (flags.show && requests.size() > 1) output.Write(fmt::format("{}--kv {}\n\n", runs.empty() ? "" : "\n", preset));
    if (flags.show) RETURN_IF_ERROR(Show(flags, *session.executor, table, output));
    ASSIGN_OR_RETURN(NeedleResult result, table.Run());
    Json json = RunJson(flags, session, result);
    runs.push_back({.kv = preset,
                    .options = session.executor->options(),
                    .result = std::move(result),
                    .stats = session.executor->instruments().Stats(),
                    .json = std::move(json)});
  }
  return Report(flags, session, runs, requests.size(), output);
}

// A comma list of names.
std::string ParseFamilies(std::string_view text, std::vector<NeedleFamily>* families) {
  families->clear();
  for (size_t comma = 0; comma != std::string_view::npos; text.remove_prefix(std::min(comma + 1, text.size()))) {
    comma = text.find(',');
    const std::optional<NeedleFamily> family = FamilyOf(text.substr(0, comma));
    if (!family)
      return fmt::format("'{}' is no family, it can be {}", text.substr(0, comma), fmt::join(FamilyNames(), ", "));
    if (std::find(families->begin(), families->end(), *family) == families->end()) families->push_back(*family);
  }
  return {};
}

void AddFlags(Flags& flags, NeedleFlags* values) {
  flags.Group("What is measured");
  const auto numbers = [](std::vector<int64_t>* list, int64_t least, int64_t most) {
    return [=](const std::string& text) { return ParseIntegerList(text, least, most, list); };
  };
  flags.Custom(
      "--family", [values](const std::string& text) { return ParseFamilies(text, &values->plan.families); }, "A,B",
      fmt::format("kinds of facts: {} (default single)", fmt::join(FamilyNames(), ", ")));
  flags.Custom("--lengths", numbers(&values->plan.lengths, 64, kMaxContext), "A,B",
               "tokens of text, question and answer together (default 1024,4096)");
  flags.Custom("--facts", numbers(&values->plan.facts, 1, kMostFacts), "K,L",
               "codes in the text (single, multi-key: one is asked for), variables of a chain, or words asked for "
               "(default 1, 8, 4, 4, 5, 3 in the order of the families)");
  flags.Integer("-n,--n", &values->plan.n, 1, 1 << 20,
                "cases for each family, length and number of facts (default 20)");
  flags.Integer("-s,--seed", &values->seed, 0, INT64_MAX, "the same seed gives the same cases (default 1)");
  flags.Text("-f,--file", &values->file, "FILE", "a real text to plant in, cut at sentences (default: generated text)");
  flags.Choice("--form", &values->form, {"plain", "chat", "continuation"},
               "Question: ... Answer:, the model's chat template, or the beginning of the sentence once more");
  flags.Choice("--depth", &values->depth, {"uniform"}, "where the asked fact lies: evenly over the cases");
  flags.Choice("--against", &values->against, {"none", "full"},
               "full: run that too, where --kv lacks it, and say how many answers are the same");
  AddEvalFlags(flags, &values->common, "at most N cases at once (default 8)", /*kv_list=*/true);
  flags.Switch("--show", &values->show, "show the first case of a family: text, question, answer, and what it took");
  flags.Text("--heatmap", &values->heatmap, "FILE.png", "write what was found over depth and length as a picture");
  flags.Exclusive({"show", "json"});
}

}  // namespace

int RunEvalNeedle(Arguments arguments) {
  NeedleFlags values;
  Flags flags(
      "eval needle",
      "Plant facts in a long text and ask for them: one access code, or what the other families have. The text is "
      "prefilled, the question is fed as decode steps, the answer is decoded greedily.");
  AddFlags(flags, &values);
  if (const std::optional<int> exit_code = flags.Parse(arguments)) return *exit_code;
  for (const NeedleFamily family : values.plan.families)
    for (const int64_t facts : values.plan.facts)
      if (facts > MostFacts(family))
        return FailUsage("eval needle",
                         fmt::format("--facts {}: {} takes at most {}", facts, Name(family), MostFacts(family)));
  values.plan.form = FormOf(values.form);
  return FinishEval([&] { return EvalNeedle(values); });
}

}  // namespace infinigen
