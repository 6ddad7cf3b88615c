#include "eval/perplexity.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/thread_pool.h"
#include "eval/full_cache.h"
#include "runtime/report.h"
#include "runtime/requests.h"

namespace infinigen {
namespace {

constexpr int64_t kDefaultContext = 8192;  // or the model's context if that is shorter

double Share(double sum, int64_t of) {
  return of > 0 ? sum / static_cast<double>(of) : std::numeric_limits<double>::quiet_NaN();
}

// The sums of one window, which are added to the result when the window is finished.
struct WindowSums {
  double nll = 0, other_nll = 0, kld = 0;
  int64_t tokens = 0, same_top = 0, clear = 0, same_clear = 0;
  std::vector<PplChunk> chunks;

  // `at`: the token's index in the window.
  void Add(const PredictionScore& score, int64_t at, int64_t chunk) {
    nll += score.nll;
    other_nll += score.other_nll;
    kld += score.kld;
    ++tokens;
    if (chunk > 0) {
      PplChunk& of = chunks[static_cast<size_t>(at / chunk)];
      of.nll += score.nll;
      of.kld += score.kld;
      ++of.tokens;
    }
    same_top += score.same_top ? 1 : 0;
    clear += score.clear ? 1 : 0;
    same_clear += score.clear && score.same_top ? 1 : 0;
  }

  void AddTo(PplResult& result) const {
    result.window_nll.push_back(nll);
    result.window_other_nll.push_back(other_nll);
    result.window_kld.push_back(kld);
    result.window_tokens.push_back(tokens);
    result.tokens += tokens;
    result.kld += kld;
    for (size_t i = 0; i < chunks.size(); ++i) {
      result.chunks[i].nll += chunks[i].nll;
      result.chunks[i].kld += chunks[i].kld;
      result.chunks[i].tokens += chunks[i].tokens;
    }
    result.same_top += same_top;
    result.clear += clear;
    result.same_clear += same_clear;
  }
};

// Bytes of text of the scored tokens in the first `count` windows. A character that begins before them is counted
// whole.
int64_t ScoredBytes(const Tokenizer& tokenizer, const PplTask& task, size_t count) {
  StreamDecoder decoder(tokenizer, /*skip_special=*/false);
  int64_t bytes = 0;
  for (const PplWindow& window : std::span(task.windows).first(count)) {
    for (int64_t i = window.first; i < window.end(); ++i) {
      const size_t spelt = decoder.Push(task.text.ids[static_cast<size_t>(i)]).size();
      if (i >= window.scored) bytes += static_cast<int64_t>(spelt);
    }
  }
  return bytes + std::ssize(decoder.Finish());
}

}  // namespace

double PplResult::nll() const { return Share(std::accumulate(window_nll.begin(), window_nll.end(), 0.0), tokens); }
double PplResult::ppl() const { return std::exp(nll()); }
double PplResult::other_nll() const {
  return Share(std::accumulate(window_other_nll.begin(), window_other_nll.end(), 0.0), tokens);
}
double PplResult::kld_mean() const { return Share(kld, tokens); }

Estimate PplResult::ppl_change() const {
  std::vector<double> differences(window_nll.size());
  for (size_t i = 0; i < differences.size(); ++i) differences[i] = window_nll[i] - window_other_nll[i];
  const Estimate nll = MeanOverWindows(differences, window_tokens);
  // The derivative of exp carries the error over.
  return {100 * std::expm1(nll.value), 100 * std::exp(nll.value) * nll.stderror};
}
Estimate PplResult::kld_estimate() const { return MeanOverWindows(window_kld, window_tokens); }
double PplResult::top1_agree() const { return Share(static_cast<double>(same_top), tokens); }
double PplResult::clear_agree() const { return Share(static_cast<double>(same_clear), clear); }

double PplReport::bits_per_byte() const {
  return result.nll() * static_cast<double>(result.tokens) / std::log(2.0) / static_cast<double>(bytes);
}

Estimate MeanOverWindows(std::span<const double> sums, std::span<const int64_t> tokens) {
  CHECK(sums.size() == tokens.size());
  constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
  const auto all = static_cast<double>(std::accumulate(tokens.begin(), tokens.end(), int64_t{0}));
  if (all <= 0) return {kUnknown, kUnknown};
  const double mean = std::accumulate(sums.begin(), sums.end(), 0.0) / all;
  if (sums.size() < 2) return {mean, kUnknown};
  // Of a ratio of sums: what each window adds beyond its share.
  double squares = 0;
  for (size_t i = 0; i < sums.size(); ++i) {
    const double excess = sums[i] - mean * static_cast<double>(tokens[i]);
    squares += excess * excess;
  }
  const auto count = static_cast<double>(sums.size());
  return {mean, std::sqrt(count / (count - 1) * squares) / all};
}

Result<PplResult> ScoreWindows(const PplRunners& runners, const PplText& text, std::span<const PplWindow> windows,
                               const PplOptions& options, const Callbacks& callbacks,
                               const std::function<void(const PplResult&)>& on_window) {
  int64_t length = 1;
  for (const PplWindow& window : windows) length = std::max(length, window.count);
  PplResult result;
  result.windows = std::ssize(windows);
  result.chunks.resize(options.chunk > 0 ? static_cast<size_t>((length + options.chunk - 1) / options.chunk) : 0);
  std::vector<WindowSums> sums(windows.size());
  for (WindowSums& of : sums) of.chunks.resize(result.chunks.size());
  const Clock::time_point start = Clock::now();
  ThreadPool threads(std::max(1, runners.method->options().threads));
  std::vector<PredictionScore> scores;
  const auto visit = [&](std::span<const Prediction> predictions) {
    scores.resize(predictions.size());
    threads.Run(std::ssize(predictions), [&](int64_t i, int) {
      const Prediction& one = predictions[static_cast<size_t>(i)];
      scores[static_cast<size_t>(i)] =
          ScorePrediction(one.logits, one.other_logits, text.ids[static_cast<size_t>(one.token)]);
    });
    // In the order of the text, so that sums do not depend on the threads.
    for (size_t i = 0; i < predictions.size(); ++i) {
      const Prediction& one = predictions[i];
      if (options.on_logits) options.on_logits(one.logits);
      sums[one.window].Add(scores[i], one.token - windows[one.window].first, options.chunk);
    }
  };
  Instruments& instruments = runners.method->instruments();
  const auto finished = [&](size_t count) {
    for (; count > 0; --count) sums[result.window_nll.size()].AddTo(result);
    result.seconds = Seconds(start);
    // Windows that the method keeps add up; the bytes of one are known after the first, which is the longest.
    if (runners.other != nullptr || runners.kept == nullptr || result.pool.peak_bytes == 0)
      result.pool = {instruments.pool_peak_bytes(), instruments.pool_peak_bytes()};
    on_window(result);
  };
  RETURN_IF_ERROR(
      VisitPredictions(runners, text, windows, options.from, options.mode, callbacks, visit, finished, &result.timing));
  return result;
}

Result<PplResult> ScoreText(const PplRunners& runners, const PplText& text, const PplOptions& options,
                            const Callbacks& callbacks, const std::function<void(const PplResult&)>& on_window) {
  return ScoreWindows(runners, text, CutWindows(text, options.context, options.from), options, callbacks, on_window);
}

Result<int64_t> ChooseWindow(const ModelConfig& config, int64_t asked) {
  return ChooseContext(config, asked > 0 ? asked : std::min(kDefaultContext, config.max_positions));
}

Result<PplTask> MakePplTask(const Model& model, std::span<const PplSource> sources, const PplOptions& options) {
  PplTask task{.options = options};
  ASSIGN_OR_RETURN(const std::vector<int32_t> opening, OpeningIds(*model.tokenizer));
  RETURN_IF_ERROR(CheckIds(model.config, opening));
  task.text.opening = opening;
  if (options.context < std::ssize(opening))
    return Invalid("--ctx {}: too short, because the tokenizer opens every text with {} tokens", options.context,
                   opening.size());
  if (options.from >= options.context)
    return Invalid("--from {}: no token is left to score in a window of {}; pass a smaller --from, or a larger --ctx",
                   options.from, options.context);
  for (const PplSource& source : sources) {
    PplText text{.opening = opening};
    ASSIGN_OR_RETURN(text.ids, model.tokenizer->Encode(source.bytes, {.add_special = false}));
    RETURN_IF_ERROR(CheckIds(model.config, text.ids));
    if (source.limit_tokens > 0 && std::ssize(text.ids) > source.limit_tokens)
      text.ids.resize(static_cast<size_t>(source.limit_tokens));
    std::vector<PplWindow> windows = CutWindows(text, options.context, options.from);
    if (source.limit_windows > 0 && std::ssize(windows) > source.limit_windows)
      windows.resize(static_cast<size_t>(source.limit_windows));
    if (windows.empty())
      return Invalid("{}: {} tokens are too few to score{}", source.name, text.ids.size(),
                     options.from > 0 ? fmt::format(" after the first {}", options.from) : "");
    task.files.push_back({.name = source.name, .first = task.windows.size(), .count = windows.size()});
    task.rows = std::max(task.rows, windows[0].count + std::ssize(opening) - 1);
    const int64_t before = std::ssize(task.text.ids);
    for (PplWindow& window : windows) {
      window.first += before;
      window.scored += before;
      task.windows.push_back(window);
    }
    task.text.ids.insert(task.text.ids.end(), text.ids.begin(), text.ids.end());
  }
  task.rows = std::min(options.context, task.rows + 1);
  return task;
}

Status CheckScorable(const KvRequest& kv, int64_t from) {
  if (from > 0 || !kv.prompt_columns || !kv.selection().uses_basis) return Ok();
  return Unsupported(
      "--kv-columns prompt: needs a prompt, and eval ppl has none, because every window starts with an empty cache; "
      "pass --from N, which makes the first N tokens of a window a prompt, or use eval needle");
}

Result<PplReport> MeasurePpl(const EvalSession& session, const PplTask& task, bool selection_overlap, bool step_overlap,
                             uint64_t full_cache_bytes) {
  Instruments& instruments = session.executor().instruments();
  const SelectRule& rule = session.executor().options().method.rule;
  PplReport report;
  SelectionOverlap between(rule.sinks, rule.window);
  if (selection_overlap) {
    instruments.ObserveSelection(between.Kept());
    session.other()->instruments().ObserveSelection(between.Compared());
  }
  if (step_overlap) {
    report.step_overlap.emplace(rule.sinks, rule.window);
    instruments.ObserveSelection(report.step_overlap->Observer());
  }
  const auto show = [&](const PplResult& sofar) {
    session.callbacks().Status(fmt::format("window {} of {}  ppl {:.3f}  {:.0f} tok/s", sofar.window_nll.size(),
                                           sofar.windows, sofar.ppl(), sofar.tokens_per_s()));
  };
  std::optional<FullCache> kept;
  if (full_cache_bytes > 0 && session.other() != nullptr && session.request().against == Against::kFull)
    kept = FullCache::Open(session.model(), *session.other(), task.options.from, full_cache_bytes, session.callbacks());
  Result<PplResult> result = ScoreWindows({&session.executor(), session.other(), kept ? &*kept : nullptr}, task.text,
                                          task.windows, task.options, session.callbacks(), show);
  session.callbacks().Status("");
  instruments.ObserveSelection({});  // the observers end with this function
  if (selection_overlap) session.other()->instruments().ObserveSelection({});
  ASSIGN_OR_RETURN(report.result, std::move(result));
  report.selection_overlap = between.share();
  report.kept_windows = kept ? kept->hits() : 0;
  report.bytes = ScoredBytes(session.tokenizer(), task, report.result.window_nll.size());
  return report;
}

}  // namespace infinigen
