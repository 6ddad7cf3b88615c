// `infinigen eval needle`: plants facts in a long text and asks for them. eval/needle_family.h describes the kinds of
// facts.
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/console.h"
#include "cli/eval.h"
#include "cli/prompts.h"
#include "eval/needle_heatmap.h"
#include "eval/needle_run.h"
#include "eval/needle_show.h"

namespace infinigen {
namespace {

struct NeedleFlags {
  EvalFlags common;
  NeedlePlan plan{.facts = {}};
  NeedleOrigin origin;
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

// ---- --show ----

// Width of standard output (60 to 110 columns), and whether to use colours: on a terminal unless NO_COLOR is set.
ShowStyle DetectStyle() {
  ShowStyle style;
  struct winsize size {};
  const bool terminal = ::isatty(STDOUT_FILENO) == 1;
  if (terminal && ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
    style.width = std::clamp<size_t>(size.ws_col, 60, 110) - 2;
  style.colours = terminal && std::getenv("NO_COLOR") == nullptr;
  return style;
}

// Runs the first case of a cell alone and shows it while it runs.
Status ShowFirst(const NeedleFlags& flags, const EvalSession& session, Terminal& terminal, NeedleTable& table,
                 NeedleCell& cell, Output& output) {
  ASSIGN_OR_RETURN(const NeedleCase planted, table.Make(cell, 0));
  Executor& executor = session.executor();
  NeedleRunner& runner = table.runner();
  const ShowStyle style = DetectStyle();
  const std::string screen = ShowCase(planted, flags.origin.generated() ? "generated" : flags.origin.file, style);
  // During the prefill, the progress bar is in the place of the last line.
  const size_t last_line = screen.rfind('\n') + 1;
  output.Write(std::string_view(screen).substr(0, last_line));
  NeedleWatch watch;
  watch.on_prefill = [&](int64_t unit, int64_t units, int64_t tokens) {
    session.callbacks().Progress({.kind = WorkKind::kPrefill, .done = unit, .total = units, .tokens = tokens});
    if (unit == units) output.Write(std::string_view(screen).substr(last_line));
  };
  AttentionPicture picture(executor.config().layers, planted.prompt_tokens(), style.width - 8);
  executor.instruments().ObserveSelection(picture.Observer());
  std::string spaces;  // spaces at the end of the answer, written only when more text follows
  watch.on_text = [&](size_t, std::string_view text) {
    if (BeginsAnswer(planted, text)) picture.Freeze();
    const std::string line = spaces + OneLine(text);
    const size_t end = line.find_last_not_of(' ') + 1;
    output.Write(std::string_view(line).substr(0, end));
    spaces = line.substr(end);
  };
  const Timing before = runner.timing();
  const Result<std::vector<NeedleAnswer>> answers = runner.Run({&planted, 1}, watch);
  executor.instruments().ObserveSelection({});
  terminal.Erase();
  if (!answers.ok()) return answers.error();
  const NeedleAnswer& answer = (*answers)[0];
  output.Write(ShowOutcome(planted, answer, runner.timing().Since(before), runner.pool(),
                           executor.instruments().Stats(), executor.options(), style));
  if (answer.done) output.Write(ShowAttention(planted, picture));
  if (answer.done) cell.Add(planted, answer);
  cell.skip = 1;
  return Ok();
}

// One case of each family.
Status Show(const NeedleFlags& flags, const EvalSession& session, Terminal& terminal, NeedleTable& table,
            Output& output) {
  std::vector<NeedleCell>& cells = table.cells();
  for (size_t i = 0; i < cells.size() && !Interrupted(); ++i) {
    if (i > 0 && cells[i].family == cells[i - 1].family) continue;
    if (i > 0) output.Write("\n");
    RETURN_IF_ERROR(ShowFirst(flags, session, terminal, table, cells[i], output));
  }
  return Ok();
}

// ---- output ----

Status WriteFile(const std::string& path, std::string_view content) {
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) return IoError("{}: cannot be written: {}", path, std::strerror(errno));
  const bool whole = std::fwrite(content.data(), 1, content.size(), file) == content.size();
  if (std::fclose(file) != 0 || !whole) return IoError("{}: cannot be written: {}", path, std::strerror(errno));
  return Ok();
}

// Checks before a long run that the file can be written.
Status CheckWritable(const std::string& path) {
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  const std::string directory = parent.empty() ? "." : parent.string();
  const bool exists = ::access(path.c_str(), F_OK) == 0;
  if (::access(exists ? path.c_str() : directory.c_str(), W_OK) != 0)
    return IoError("{}: cannot be written: {}", path, std::strerror(errno));
  return Ok();
}

Result<int> Report(const NeedleFlags& flags, const EvalSession& session, const std::vector<NeedleKvRun>& runs,
                   size_t wanted, Output& output) {
  int64_t done = 0;
  bool complete = runs.size() == wanted;
  for (const NeedleKvRun& run : runs) {
    done += run.result.score.all.n;
    complete = complete && run.result.complete;
  }
  const Status drawn =
      flags.heatmap.empty()
          ? Ok()
          : WriteFile(flags.heatmap,
                      HeatmapSvg(HeatmapOf(flags.plan, flags.origin, session.model().config.name, runs)));
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
    PrintStderr("infinigen: interrupted: the results are for {} of {} cases\n", done,
                flags.plan.cases() * static_cast<int64_t>(wanted));
  return kExitInterrupted;
}

// ---- the command ----

// The methods of --kv, plus full if --against needs it and --kv does not have it.
Result<std::vector<KvRequest>> Requests(const NeedleFlags& flags) {
  ASSIGN_OR_RETURN(std::vector<KvRequest> requests, KvRequests(flags.common.kv));
  const auto full = [](const KvRequest& kv) { return kv.preset->name == "full" && !kv.selects() && !kv.evicts(); };
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

Result<int> DryRun(const NeedleFlags& flags, const EvalSession& session, const std::vector<KvRequest>& requests,
                   int64_t context) {
  std::vector<RunPlan> plans;
  for (const KvRequest& kv : requests) {
    ASSIGN_OR_RETURN(RunPlan plan, session.Plan(kv, context, flags.plan.n));
    plans.push_back(std::move(plan));
  }
  return PrintPlans(session.model(), plans, flags.common.json);
}

Result<int> EvalNeedle(const NeedleFlags& flags) {
  // Errors in the flags are reported before anything is read.
  ASSIGN_OR_RETURN(const std::vector<KvRequest> requests, Requests(flags));
  if (!flags.heatmap.empty()) RETURN_IF_ERROR(CheckWritable(flags.heatmap));
  Terminal terminal;
  ASSIGN_OR_RETURN(EvalSession session, OpenSession(flags.common, terminal));
  std::optional<std::string> source;
  if (!flags.origin.generated()) {
    ASSIGN_OR_RETURN(source, ReadText(flags.origin.file));
  }
  const int64_t longest = *std::max_element(flags.plan.lengths.begin(), flags.plan.lengths.end());
  ASSIGN_OR_RETURN(const int64_t context, ChooseContext(session.model().config, longest));
  ASSIGN_OR_RETURN(const NeedleMaker maker, NeedleMaker::Make(session.tokenizer(), flags.plan.form, std::move(source),
                                                              static_cast<uint64_t>(flags.origin.seed)));
  if (flags.common.dry_run) return DryRun(flags, session, requests, context);
  Output output;
  std::vector<NeedleKvRun> runs;
  for (const KvRequest& kv : requests) {
    if (!runs.empty() && Interrupted()) break;
    RETURN_IF_ERROR(session.Start(kv, context, flags.plan.n, /*compare=*/false));
    const std::string preset(kv.preset->name);
    NeedleTable table(flags.plan, session, maker, requests.size() > 1 ? preset + ": " : "");
    if (flags.show && requests.size() > 1) output.Write(fmt::format("{}--kv {}\n\n", runs.empty() ? "" : "\n", preset));
    if (flags.show) RETURN_IF_ERROR(Show(flags, session, terminal, table, output));
    ASSIGN_OR_RETURN(NeedleResult result, table.Run());
    nlohmann::ordered_json json = NeedleRunJson(session, flags.plan, flags.origin, result);
    runs.push_back({.kv = preset,
                    .options = session.executor().options(),
                    .result = std::move(result),
                    .stats = session.executor().instruments().Stats(),
                    .json = std::move(json)});
  }
  return Report(flags, session, runs, requests.size(), output);
}

// A comma list of names, each once.
std::string ParseFamilies(std::string_view text, std::vector<NeedleFamily>* families) {
  families->clear();
  for (size_t comma = 0; comma != std::string_view::npos; text.remove_prefix(std::min(comma + 1, text.size()))) {
    comma = text.find(',');
    const std::string_view name = text.substr(0, comma);
    const std::optional<NeedleFamily> family = FamilyOf(name);
    if (!family) return fmt::format("'{}' is not a family; use {}", name, fmt::join(FamilyNames(), ", "));
    if (std::find(families->begin(), families->end(), *family) != families->end())
      return fmt::format("'{}' is given twice", name);
    families->push_back(*family);
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
               "number of facts in the text: access codes (single and multi-key ask for one of them, multi-value and "
               "multi-query for all), names in a chain (variable), or frequent words (words) (default 1, 8, 4, 4, 5, 3 "
               "in the order of the families)");
  flags.Integer("-n,--n", &values->plan.n, 1, 1 << 20,
                "cases for each family, length and number of facts (default 20)");
  flags.Integer("-s,--seed", &values->origin.seed, 0, INT64_MAX, "random seed of the cases (default 1)");
  flags.Text("-f,--file", &values->origin.file, "FILE",
             "text to plant facts in, cut at sentences (default: generated text)");
  flags.Choice("--form", &values->form, {"plain", "chat", "continuation"},
               "how to ask: plain (\"Question: ... Answer:\"), chat (the model's chat template), continuation (the "
               "beginning of the planted sentence)");
  flags.Choice("--depth", &values->depth, {"uniform"},
               "position of the asked fact in the text: spread evenly over the cases");
  flags.Choice("--against", &values->against, {"none", "full"},
               "full: also run --kv full and report how many answers are the same");
  AddEvalFlags(flags, &values->common, "run at most N cases at once (default 8)", /*kv_list=*/true);
  flags.Switch("--show", &values->show,
               "show the first case of each family: text, question, answer, speed and attended parts of the text");
  const auto set_heatmap = [values](const std::string& path) {
    if (std::filesystem::path(path).extension() != ".svg")
      return fmt::format("'{}' does not end in .svg: the picture is written as SVG", path);
    values->heatmap = path;
    return std::string();
  };
  flags.Custom("--heatmap", set_heatmap, "FILE.svg", "write a heat map of the facts found, by depth and length");
  flags.Exclusive({"show", "json"});
}

}  // namespace

int RunEvalNeedle(Arguments arguments) {
  NeedleFlags values;
  Flags flags("eval needle",
              "Plant facts in a long text and ask for them. The text is prefilled, the tokens of the question are "
              "decode steps, and the answer is decoded greedily.");
  AddFlags(flags, &values);
  if (const std::optional<int> exit_code = flags.Parse(arguments)) return *exit_code;
  for (const NeedleFamily family : values.plan.families)
    for (const int64_t facts : values.plan.facts)
      if (facts > MostFacts(family))
        return FailUsage("eval needle",
                         fmt::format("--facts {}: {} takes at most {}", facts, Name(family), MostFacts(family)));
  values.plan.form = FormOf(values.form);
  InstallInterrupt();
  return Finish(EvalNeedle(values));
}

}  // namespace infinigen
