// `infinigen eval ppl`: the perplexity of a text file.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "cli/console.h"
#include "cli/eval.h"
#include "cli/eval_perplexity.h"
#include "cli/flags.h"
#include "cli/plan_output.h"
#include "cli/ppl_task.h"
#include "cli/prompts.h"
#include "cli/selection_overlap.h"
#include "cli/step_overlap.h"
#include "runtime/describe.h"
#include "text/text_stream.h"

namespace infinigen {
namespace {

using Json = nlohmann::ordered_json;

struct PplFlags {
  EvalFlags common;
  std::string file;
  int64_t context = 0;  // 0: not given
  std::string mode = "batched";
  int64_t limit_tokens = 0;  // 0: all
  bool overlap = false, step_overlap = false;
  int64_t chunk = 0;  // 0: not given
};

// Bytes that the scored tokens of the first `count` windows spell. A character that begins before them counts whole.
int64_t ScoredBytes(const Tokenizer& tokenizer, const PplText& text, std::span<const PplWindow> windows, size_t count) {
  StreamDecoder decoder(tokenizer, /*skip_special=*/false);
  int64_t bytes = 0;
  for (const PplWindow& window : windows.first(count)) {
    for (int64_t i = window.first; i < window.end(); ++i) {
      const size_t spelt = decoder.Push(text.ids[static_cast<size_t>(i)]).size();
      if (i >= window.scored) bytes += static_cast<int64_t>(spelt);
    }
  }
  return bytes + static_cast<int64_t>(decoder.Finish().size());
}

double BitsPerByte(const PplResult& result, int64_t bytes) {
  return result.nll() * static_cast<double>(result.tokens) / std::log(2.0) / static_cast<double>(bytes);
}

double TokensPerSecond(const PplResult& result) {
  return result.seconds > 0 ? static_cast<double>(result.tokens) / result.seconds : 0;
}

Json ChunksJson(const PplResult& result) {
  Json chunks = Json::array();
  for (const PplChunk& chunk : result.chunks) {
    const double tokens = static_cast<double>(chunk.tokens);
    chunks.push_back({{"tokens", chunk.tokens}, {"nll", chunk.nll / tokens}, {"kld_mean", chunk.kld / tokens}});
  }
  return chunks;
}

Json StepOverlapJson(const StepOverlap& overlap) {
  Json shares = Json::array(), layers = Json::array();
  for (size_t i = 0; i < StepOverlap::kSteps.size(); ++i) shares.push_back(overlap.share(i));
  for (const LayerId layer : overlap.layers())
    layers.push_back({{"layer", layer.value()}, {"share", overlap.share(0, layer)}});
  return {{"steps", StepOverlap::kSteps}, {"share", std::move(shares)}, {"layers", std::move(layers)}};
}

Json ResultJson(const PplFlags& flags, const PplOptions& options, const EvalSession& session, const PplResult& result,
                double overlap, int64_t bytes) {
  Json json = EvalJsonHead(session);
  const ExecutorOptions& run = session.executor->options();
  const bool compared = session.full != nullptr || run.is_full();
  // NaN, where nothing was finished or compared, becomes null.
  json.update({{"ppl", result.ppl()},
               {"nll", result.nll()},
               {"kld_mean", compared ? Json(result.kld_mean()) : Json(nullptr)},
               {"top1_agree", compared ? Json(result.top1_agree()) : Json(nullptr)},
               {"top1_agree_clear", session.full != nullptr ? Json(result.clear_agree()) : Json(nullptr)},
               {"clear", result.clear},
               {"selection_overlap", overlap},
               {"against", session.full != nullptr ? Json(flags.common.against) : Json(nullptr)},
               {"tokens_scored", result.tokens},
               {"windows", result.window_nll.size()},
               {"ctx", options.context},
               {"mode", flags.mode},
               {"file", flags.file},
               {"bytes", bytes},
               {"bits_per_byte", BitsPerByte(result, bytes)},
               {"tok_s", TokensPerSecond(result)},
               {"complete", result.complete()}});
  AddEvalJsonTail(flags.common, session, result.timing, result.pool, &json);
  return json;
}

std::string ResultText(const PplFlags& flags, const PplOptions& options, const EvalSession& session,
                       const PplResult& result, double overlap, int64_t bytes) {
  const ExecutorOptions& run = session.executor->options();
  const KvStats stats = session.executor->instruments().Stats();
  std::string against;
  if (session.full != nullptr) {
    const std::string clear = flags.common.against == "full" ? ""
                                                             : fmt::format(" ({:.2f} % where it is ahead by {})",
                                                                           100 * result.clear_agree(), kClearGap);
    const std::string selected =
        std::isnan(overlap) ? "" : fmt::format("{:.2f} % of the selected rows are the same\n", 100 * overlap);
    against = fmt::format("against {}: KL divergence {:.5f}, the same most likely token in {:.2f} %{}\n{}{}{}",
                          flags.common.against, result.kld_mean(), 100 * result.top1_agree(), clear, selected,
                          AttendedWords(stats, run), flags.common.kv.stats_per_layer ? LayerTable(stats) : "");
  }
  return fmt::format(
      "ppl {:.4f}  nll {:.5f}  bits per byte {:.4f}\n"
      "{} tokens scored ({} bytes) in {} of {} windows of {} tokens, {}, {}, {:.1f} tok/s\n{}",
      result.ppl(), result.nll(), BitsPerByte(result, bytes), result.tokens, bytes, result.window_nll.size(),
      result.windows, options.context, flags.mode, KvWords(run), TokensPerSecond(result), against);
}

std::string ChunksText(int64_t chunk, const PplResult& result) {
  std::string text = "| tokens | ppl | KL |\n|---|--:|--:|\n";
  for (size_t i = 0; i < result.chunks.size(); ++i) {
    const PplChunk& of = result.chunks[i];
    const int64_t first = static_cast<int64_t>(i) * chunk;
    const double tokens = static_cast<double>(of.tokens);
    text += fmt::format("| {}-{} | {:.3f} | {:.5f} |\n", first, first + chunk - 1, std::exp(of.nll / tokens),
                        of.kld / tokens);
  }
  return text;
}

std::string StepOverlapText(const StepOverlap& overlap) {
  std::string text = "of what a step chose, chosen before too:";
  for (size_t i = 0; i < StepOverlap::kSteps.size(); ++i)
    text += fmt::format(" {:.1f} % ({})", 100 * overlap.share(i), StepOverlap::kSteps[i]);
  return text + " steps\n";
}

Result<int> EvalPpl(const PplFlags& flags) {
  ASSIGN_OR_RETURN(EvalSession session, OpenForEval(flags.common));
  RETURN_IF_ERROR(CheckScorable(session.kv));
  if (flags.overlap && (flags.common.against != "cpu" || session.kv.evicts()))
    return Invalid("--selection-overlap goes with --against cpu, and with methods that keep every entry");
  if (flags.step_overlap && (flags.overlap || session.kv.evicts() || &session.kv.selection() == &kSelectAll))
    return Invalid(
        "--step-overlap goes with methods that select and keep every entry, and without --selection-overlap");
  PplSource source{.name = flags.file, .limit_tokens = flags.limit_tokens};
  ASSIGN_OR_RETURN(source.bytes, ReadText(flags.file));
  PplOptions options{.mode = flags.mode == "step" ? PplMode::kStep : PplMode::kBatched, .chunk = flags.chunk};
  ASSIGN_OR_RETURN(options.context, ChooseWindow(session.model->config, flags.context));
  ASSIGN_OR_RETURN(const PplTask task, MakePplTask(session, source, options));
  const int64_t useful = options.mode == PplMode::kStep ? static_cast<int64_t>(task.windows.size()) : 1;
  if (flags.common.dry_run) {
    ASSIGN_OR_RETURN(const RunPlan plan, PlanEval(flags.common, task.rows, useful, session));
    return PrintPlans(*session.model, {&plan, 1}, flags.common.json);
  }
  RETURN_IF_ERROR(StartExecutor(flags.common, task.rows, useful, /*compare=*/true, &session));

  // Of both, the lists: what a layer chose depends on what came before it, so not all are the same.
  const SelectRule& rule = session.executor->options().method.rule;
  SelectionOverlap overlap(rule.sinks, rule.window);
  StepOverlap step_overlap(rule.sinks, rule.window);
  if (flags.overlap) {
    session.executor->instruments().ObserveSelection(overlap.Kept());
    session.full->instruments().ObserveSelection(overlap.Compared());
  }
  if (flags.step_overlap) session.executor->instruments().ObserveSelection(step_overlap.Observer());
  StatusLine status;
  const auto show = [&](const PplResult& sofar) {
    status.Draw(fmt::format("window {} of {}  ppl {:.3f}  {:.0f} tok/s", sofar.window_nll.size(), sofar.windows,
                            sofar.ppl(), TokensPerSecond(sofar)));
  };
  ASSIGN_OR_RETURN(const PplResult result,
                   ScoreText({session.executor.get(), session.full.get()}, task.text, options, show));
  status.Erase();
  const int64_t bytes = ScoredBytes(session.tokenizer(), task.text, task.windows, result.window_nll.size());
  Output output;
  if (flags.common.json) {
    Json json = ResultJson(flags, options, session, result, overlap.share(), bytes);
    if (flags.chunk > 0) json["chunks"] = ChunksJson(result);
    if (flags.step_overlap) json["step_overlap"] = StepOverlapJson(step_overlap);
    output.Write(Dump(json));
  } else {
    output.Write(ResultText(flags, options, session, result, overlap.share(), bytes));
    if (flags.chunk > 0) output.Write(ChunksText(flags.chunk, result));
    if (flags.step_overlap) output.Write(StepOverlapText(step_overlap));
  }
  RETURN_IF_ERROR(output.status());
  if (result.complete()) return kExitOk;
  if (!flags.common.json)
    PrintStderr("infinigen: interrupted: {} of {} windows are done, the numbers are theirs\n", result.window_nll.size(),
                result.windows);
  return kExitInterrupted;
}

}  // namespace

int RunEvalPpl(Arguments arguments) {
  PplFlags values;
  Flags flags("eval ppl", "Perplexity of a text: cut into windows side by side, each read from an empty cache.");
  flags.Group("What is measured");
  flags.Text("-f,--file", &values.file, "FILE", "the text; - is standard input");
  flags.Integer("-c,--ctx", &values.context, 2, kMaxContext,
                "tokens of a window (default: what the model was made for, at most 8192)");
  flags.Choice("--mode", &values.mode, {"step", "batched"},
               "every token attends as in a decode step; batched shares the matrix products of a window's tokens");
  flags.Integer("--limit-tokens", &values.limit_tokens, 1, INT64_MAX, "only the first N tokens (default: all)");
  flags.Choice("--against", &values.common.against, {"full", "cpu"},
               "what predictions are compared with: --kv full on the same device, or the same --kv on the CPU");
  flags.Switch("--selection-overlap", &values.overlap,
               "with --against cpu: also how far both select the same entries (every 16th token)");
  flags.Switch("--step-overlap", &values.step_overlap,
               "also how much of what a token selects was selected 1 to 64 tokens before");
  flags.Integer("--chunk", &values.chunk, 1, kMaxContext, "also apart for every N tokens along a window");
  AddEvalFlags(flags, &values.common, "in step mode, at most N windows at once (default 8)");
  if (const std::optional<int> exit_code = flags.Parse(arguments)) return *exit_code;
  if (values.file.empty()) return FailUsage("eval ppl", "a text is missing: pass its file with -f");
  return FinishEval([&] { return EvalPpl(values); });
}

}  // namespace infinigen
