#include "eval/perplexity.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "runtime/report.h"
#include "runtime/requests.h"

namespace infinigen {
namespace {

constexpr int64_t kDefaultContext = 8192;  // or the model's context if that is shorter

double Share(double sum, int64_t of) {
  return of > 0 ? sum / static_cast<double>(of) : std::numeric_limits<double>::quiet_NaN();
}

// Difference between the best and the second-best logit.
float TopGap(std::span<const float> logits) {
  float best = -std::numeric_limits<float>::infinity(), second = best;
  for (const float logit : logits) {
    second = std::max(second, std::min(best, logit));
    best = std::max(best, logit);
  }
  return best - second;
}

// ln Σ exp(logit).
double LogSum(std::span<const float> logits) {
  const float most = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - most);
  return std::log(sum) + static_cast<double>(most);
}

int64_t Top(std::span<const float> logits) { return std::max_element(logits.begin(), logits.end()) - logits.begin(); }

// The sums of one window, which are added to the result when the window is finished.
struct WindowSums {
  double nll = 0, kld = 0;
  int64_t same_top = 0, clear = 0, same_clear = 0;
  std::vector<PplChunk> chunks;

  // `at`: the token's index in the window. `other` is empty without a comparison.
  void Add(std::span<const float> logits, std::span<const float> other, int32_t target, int64_t at, int64_t chunk) {
    const double token_nll = NegativeLogLikelihood(logits, target);
    const double token_kld = other.empty() ? 0 : KlDivergence(other, logits);
    nll += token_nll;
    kld += token_kld;
    if (chunk > 0) {
      PplChunk& of = chunks[static_cast<size_t>(at / chunk)];
      of.nll += token_nll;
      of.kld += token_kld;
      ++of.tokens;
    }
    const bool same = other.empty() || Top(other) == Top(logits);
    const bool is_clear = !other.empty() && TopGap(other) > kClearGap;
    same_top += same ? 1 : 0;
    clear += is_clear ? 1 : 0;
    same_clear += is_clear && same ? 1 : 0;
  }

  void AddTo(PplResult& result) const {
    result.window_nll.push_back(nll);
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

double PplResult::nll() const {
  double sum = 0;
  for (const double window : window_nll) sum += window;
  return Share(sum, tokens);
}

double PplResult::ppl() const { return std::exp(nll()); }
double PplResult::kld_mean() const { return Share(kld, tokens); }
double PplResult::top1_agree() const { return Share(static_cast<double>(same_top), tokens); }
double PplResult::clear_agree() const { return Share(static_cast<double>(same_clear), clear); }

double PplReport::bits_per_byte() const {
  return result.nll() * static_cast<double>(result.tokens) / std::log(2.0) / static_cast<double>(bytes);
}

double NegativeLogLikelihood(std::span<const float> logits, int32_t target) {
  return LogSum(logits) - static_cast<double>(logits[static_cast<size_t>(target)]);
}

double KlDivergence(std::span<const float> p, std::span<const float> q) {
  CHECK(p.size() == q.size());
  const double log_p = LogSum(p), log_q = LogSum(q);
  double sum = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    const double ln_p = static_cast<double>(p[i]) - log_p;
    sum += std::exp(ln_p) * (ln_p - (static_cast<double>(q[i]) - log_q));
  }
  return sum;
}

Result<PplResult> ScoreText(const PplRunners& runners, const PplText& text, const PplOptions& options,
                            const Callbacks& callbacks, const std::function<void(const PplResult&)>& on_window) {
  const std::vector<PplWindow> windows = CutWindows(text, options.context);
  const int64_t length = windows.empty() ? 1 : windows[0].count;
  PplResult result;
  result.windows = std::ssize(windows);
  result.chunks.resize(options.chunk > 0 ? static_cast<size_t>((length + options.chunk - 1) / options.chunk) : 0);
  std::vector<WindowSums> sums(windows.size());
  for (WindowSums& of : sums) of.chunks.resize(result.chunks.size());
  const Clock::time_point start = Clock::now();
  const auto visit = [&](int64_t token, std::span<const float> logits, std::span<const float> other) {
    if (options.on_logits) options.on_logits(logits);
    sums[static_cast<size_t>(token / length)].Add(logits, other, text.ids[static_cast<size_t>(token)], token % length,
                                                  options.chunk);
  };
  Instruments& instruments = runners.method->instruments();
  const auto finished = [&](size_t count) {
    for (; count > 0; --count) {
      const size_t next = result.window_nll.size();
      sums[next].AddTo(result);
      result.tokens += windows[next].end() - windows[next].scored;
    }
    result.seconds = Seconds(start);
    // Kept windows add up; the bytes of one window are known after the first, which is the longest.
    if (runners.kept == nullptr || result.pool.peak_bytes == 0)
      result.pool = {instruments.pool_peak_bytes(), instruments.pool_peak_bytes()};
    on_window(result);
  };
  RETURN_IF_ERROR(VisitPredictions(runners, text, windows, options.mode, callbacks, visit, finished, &result.timing));
  return result;
}

Result<int64_t> ChooseWindow(const ModelConfig& config, int64_t asked) {
  return ChooseContext(config, asked > 0 ? asked : std::min(kDefaultContext, config.max_positions));
}

Result<PplTask> MakePplTask(const Model& model, const PplSource& source, const PplOptions& options) {
  PplTask task{.options = options};
  PplText& text = task.text;
  ASSIGN_OR_RETURN(text.ids, model.tokenizer->Encode(source.bytes, {.add_special = false}));
  if (source.limit_tokens > 0 && std::ssize(text.ids) > source.limit_tokens)
    text.ids.resize(static_cast<size_t>(source.limit_tokens));
  ASSIGN_OR_RETURN(text.opening, OpeningIds(*model.tokenizer));
  RETURN_IF_ERROR(CheckIds(model.config, text.ids));
  RETURN_IF_ERROR(CheckIds(model.config, text.opening));
  if (options.context < std::ssize(text.opening))
    return Invalid("--ctx {}: too short, because the tokenizer opens every text with {} tokens", options.context,
                   text.opening.size());
  task.windows = CutWindows(text, options.context);
  if (task.windows.empty()) return Invalid("{}: {} tokens are too few to score", source.name, text.ids.size());
  task.rows = std::min<int64_t>(options.context, std::ssize(text.ids) + std::ssize(text.opening));
  return task;
}

Status CheckScorable(const KvRequest& kv) {
  if (!kv.prompt_columns || !kv.selection().uses_basis) return Ok();
  return Unsupported(
      "--kv-columns prompt: needs a prompt, and eval ppl has none, because every window starts with an empty cache; "
      "use "
      "eval needle");
}

Result<PplReport> MeasurePpl(const EvalSession& session, const PplTask& task, bool selection_overlap,
                             bool step_overlap) {
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
  Result<PplResult> result =
      ScoreText({&session.executor(), session.other()}, task.text, task.options, session.callbacks(), show);
  session.callbacks().Status("");
  instruments.ObserveSelection({});  // the observers end with this function
  if (selection_overlap) session.other()->instruments().ObserveSelection({});
  ASSIGN_OR_RETURN(report.result, std::move(result));
  report.selection_overlap = between.share();
  report.bytes = ScoredBytes(session.tokenizer(), task, report.result.window_nll.size());
  return report;
}

}  // namespace infinigen
