#include "cli/eval_perplexity.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>

#include "cli/interrupt.h"
#include "model/decoder.h"
#include "runtime/clock.h"

namespace infinigen {
namespace {

// Logits on the host at once: a slice of positions, however large the vocabulary.
constexpr int64_t kSliceBytes = int64_t{16} << 20;

// The runners take every token side by side, so that each prediction can be compared when it is there. Only the
// method's time is counted.
class Walk {
 public:
  Walk(const PplRunners& runners, const PplText& text, const PredictionVisitor& visit, Timing& timing)
      : method_(*runners.method),
        kept_(runners.full != nullptr ? runners.kept : nullptr),
        text_(text),
        visit_(visit),
        timing_(timing),
        vocab_(runners.method->config().vocab),
        opening_(static_cast<int64_t>(text.opening.size())) {
    for (Executor* runner : {runners.method, runners.full}) {
      if (runner == nullptr) continue;
      const bool theirs = runners.kept != nullptr && &runners.kept->executor() == runner;
      runners_.push_back(runner);
      readers_.push_back(theirs ? runners.kept : own_.emplace_back(std::make_unique<WindowReader>(*runner)).get());
    }
  }

  // One window, number `index` of all, through the grid, every token a step. False: interrupted.
  Result<bool> Prefill(size_t index, const PplWindow& window) {
    const std::vector<int32_t> fed = FedTokens(text_, window);
    std::vector<SeqSlot> slots;
    Status status = Ok();
    for (WindowReader* reader : readers_) {
      const Clock::time_point start = Clock::now();
      const Result<std::optional<SeqSlot>> slot = reader->Read(index, fed);
      if (!slot.ok()) status = slot.error();
      if (!slot.ok() || !*slot) break;
      slots.push_back(**slot);
      Count(&reader->executor(), start, static_cast<int64_t>(fed.size()));
    }
    const bool done = slots.size() == readers_.size();
    if (done) VisitSlices(slots, window);
    for (WindowReader* reader : readers_) reader->Leave(index);
    RETURN_IF_ERROR(status);
    return done && !Interrupted();
  }

  // All windows at once, the first one number `index` of all, one token of each a step; the shorter ones leave earlier.
  // Where full keeps its windows, its part is read from them. False: interrupted.
  Result<bool> Steps(size_t index, std::span<const PplWindow> windows) {
    std::vector<std::vector<int32_t>> fed;
    for (const PplWindow& window : windows) fed.push_back(FedTokens(text_, window));
    const size_t stepping = kept_ != nullptr ? 1 : runners_.size();
    std::optional<SeqSlot> kept;
    if (kept_ != nullptr) {
      CHECK(windows.size() == 1);
      ASSIGN_OR_RETURN(kept, kept_->Read(index, fed[0]));
      if (!kept) return false;
    }
    std::vector<std::vector<StepItem>> live(stepping);  // of each runner, those that still run
    std::vector<size_t> window_of;                      // for each of `live`
    for (size_t i = 0; i < windows.size(); ++i) window_of.push_back(i);
    Status status = Ok();
    for (size_t r = 0; r < stepping && status.ok(); ++r) status = AdmitAll(*runners_[r], fed, live[r]);

    std::vector<std::vector<float>> logits(runners_.size());
    for (std::vector<float>& of : logits) of.resize(windows.size() * static_cast<size_t>(vocab_));
    while (status.ok() && !window_of.empty() && !Interrupted()) {
      for (size_t r = 0; r < stepping; ++r) {
        for (size_t i = 0; i < window_of.size(); ++i)
          live[r][i].token = fed[window_of[i]][static_cast<size_t>(live[r][i].row)];
        Step(runners_[r], live[r], logits[r]);
      }
      if (kept) runners_[1]->PrefillLogits(*kept, live[0][0].row, 1, logits[1]);
      for (size_t i = 0; i < window_of.size(); ++i) VisitRow(windows[window_of[i]], live[0][i].row, logits, i);
      DropEnded(fed, live, window_of);
    }
    const bool finished = window_of.empty();
    for (size_t r = 0; r < stepping; ++r)
      for (const StepItem& item : live[r]) runners_[r]->Release(item.slot);
    if (kept) kept_->Leave(index);
    RETURN_IF_ERROR(status);
    return finished;
  }

 private:
  static Status AdmitAll(Executor& runner, const std::vector<std::vector<int32_t>>& fed, std::vector<StepItem>& live) {
    for (const std::vector<int32_t>& tokens : fed) {
      ASSIGN_OR_RETURN(const SeqSlot slot, runner.Admit(static_cast<int64_t>(tokens.size())));
      live.push_back({.slot = slot, .token = 0, .row = 0});
    }
    return Ok();
  }

  // After a step: every sequence has one row more, and those that were fed their last token go.
  void DropEnded(const std::vector<std::vector<int32_t>>& fed, std::vector<std::vector<StepItem>>& live,
                 std::vector<size_t>& window_of) {
    for (size_t i = window_of.size(); i-- > 0;) {
      const bool ended = live[0][i].row + 1 == static_cast<int64_t>(fed[window_of[i]].size());
      for (size_t r = 0; r < live.size(); ++r) {
        ++live[r][i].row;
        if (ended) runners_[r]->Release(live[r][i].slot);
        if (ended) live[r].erase(live[r].begin() + static_cast<ptrdiff_t>(i));
      }
      if (ended) window_of.erase(window_of.begin() + static_cast<ptrdiff_t>(i));
    }
  }

  void Count(const Executor* runner, Clock::time_point start, int64_t tokens) {
    if (runner != &method_) return;
    timing_.prefill_s += Seconds(start);
    timing_.prefill_tokens += tokens;
  }

  void Step(Executor* runner, std::span<const StepItem> items, std::vector<float>& logits) {
    const Clock::time_point start = Clock::now();
    runner->Step(items, std::span(logits).first(items.size() * static_cast<size_t>(vocab_)));
    if (runner != &method_) return;
    const double elapsed = Seconds(start);
    timing_.decode_s += elapsed;
    timing_.decode_tokens += static_cast<int64_t>(items.size());
    timing_.step_ms.push_back(static_cast<float>(elapsed * 1e3));
  }

  void VisitSlices(const std::vector<SeqSlot>& slots, const PplWindow& window) {
    const int64_t rows = opening_ + window.count - 1;
    const int64_t slice = std::clamp<int64_t>(kSliceBytes / (vocab_ * static_cast<int64_t>(sizeof(float))), 1, rows);
    slices_.resize(runners_.size());
    for (std::vector<float>& of : slices_) of.resize(static_cast<size_t>(slice * vocab_));
    const int64_t first_scored_row = window.scored - window.first + opening_ - 1;
    for (int64_t row = first_scored_row; row < rows && !Interrupted(); row += slice) {
      const int64_t count = std::min(slice, rows - row);
      for (size_t r = 0; r < runners_.size(); ++r) {
        const Clock::time_point start = Clock::now();
        runners_[r]->PrefillLogits(slots[r], row, count,
                                   std::span(slices_[r]).first(static_cast<size_t>(count * vocab_)));
        Count(runners_[r], start, 0);
      }
      for (int64_t i = 0; i < count; ++i) VisitRow(window, row + i, slices_, static_cast<size_t>(i));
    }
  }

  // `logits` of each runner; the prediction is row `index` of them.
  void VisitRow(const PplWindow& window, int64_t row, const std::vector<std::vector<float>>& logits, size_t index) {
    const int64_t token = window.first + row + 1 - opening_;
    if (token < window.scored) return;
    const auto at = [&](size_t runner) {
      return std::span(logits[runner]).subspan(index * static_cast<size_t>(vocab_), static_cast<size_t>(vocab_));
    };
    visit_(token, at(0), runners_.size() > 1 ? at(1) : std::span<const float>());
  }

  Executor& method_;
  WindowReader* const kept_;        // full's, where it keeps windows
  std::vector<Executor*> runners_;  // the method, then full where there is one
  std::vector<std::unique_ptr<WindowReader>> own_;
  std::vector<WindowReader*> readers_;  // of each runner: one of ours, or kept_
  const PplText& text_;
  const PredictionVisitor& visit_;
  Timing& timing_;
  const int64_t vocab_;
  const int64_t opening_;
  std::vector<std::vector<float>> slices_;  // [runners][slice][vocab]
};

}  // namespace

std::vector<int32_t> FedTokens(const PplText& text, const PplWindow& window) {
  std::vector<int32_t> fed = text.opening;
  fed.insert(fed.end(), text.ids.begin() + window.first, text.ids.begin() + window.end() - 1);
  return fed;
}

std::vector<PplWindow> CutWindows(const PplText& text, const PplOptions& options) {
  const int64_t total = static_cast<int64_t>(text.ids.size());
  const int64_t opening = static_cast<int64_t>(text.opening.size());
  CHECK(options.context >= 2 && options.context >= opening);
  const int64_t length = opening > 0 ? options.context - opening + 1 : options.context;
  std::vector<PplWindow> windows;
  for (int64_t first = 0; first < total; first += length) {
    const PplWindow window{
        .first = first, .count = std::min(length, total - first), .scored = opening > 0 ? first : first + 1};
    if (window.scored < window.end()) windows.push_back(window);
  }
  return windows;
}

double PplResult::nll() const {
  double sum = 0;
  for (const double window : window_nll) sum += window;
  return tokens > 0 ? sum / static_cast<double>(tokens) : std::numeric_limits<double>::quiet_NaN();
}

double PplResult::ppl() const { return std::exp(nll()); }

double PplResult::kld_mean() const {
  return tokens > 0 ? kld / static_cast<double>(tokens) : std::numeric_limits<double>::quiet_NaN();
}

double PplResult::top1_agree() const {
  return tokens > 0 ? static_cast<double>(same_top) / static_cast<double>(tokens)
                    : std::numeric_limits<double>::quiet_NaN();
}

double PplResult::clear_agree() const {
  return clear > 0 ? static_cast<double>(same_clear) / static_cast<double>(clear)
                   : std::numeric_limits<double>::quiet_NaN();
}

namespace {

// How far the best is ahead of the second.
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

void AddChunk(const PplChunk& more, PplChunk& sum) {
  sum.nll += more.nll;
  sum.kld += more.kld;
  sum.tokens += more.tokens;
}

int64_t Top(std::span<const float> logits) { return std::max_element(logits.begin(), logits.end()) - logits.begin(); }

}  // namespace

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

Status VisitPredictions(const PplRunners& runners, const PplText& text, std::span<const PplWindow> windows,
                        PplMode mode, const PredictionVisitor& visit, const std::function<void(size_t)>& on_window,
                        Timing* timing) {
  Walk walk(runners, text, visit, *timing);
  const bool together = mode == PplMode::kStep && runners.kept == nullptr;
  const size_t batch = together ? static_cast<size_t>(runners.method->options().max_batch) : 1;
  for (size_t next = 0; next < windows.size() && !Interrupted();) {
    const std::span<const PplWindow> group = windows.subspan(next, std::min(batch, windows.size() - next));
    ASSIGN_OR_RETURN(const bool finished,
                     mode == PplMode::kStep ? walk.Steps(next, group) : walk.Prefill(next, group[0]));
    if (!finished) break;
    next += group.size();
    on_window(group.size());
  }
  return Ok();
}

Result<PplResult> ScoreText(const PplRunners& runners, const PplText& text, const PplOptions& options,
                            const std::function<void(const PplResult&)>& on_window) {
  struct Sums {
    double nll = 0, kld = 0;
    int64_t same_top = 0, clear = 0, same_clear = 0;
    std::vector<PplChunk> chunks;
  };
  const std::vector<PplWindow> windows = CutWindows(text, options);
  const int64_t length = windows.empty() ? 1 : windows[0].count;
  PplResult result;
  result.windows = static_cast<int64_t>(windows.size());
  std::vector<Sums> sums(windows.size());
  const size_t chunks = options.chunk > 0 ? static_cast<size_t>((length + options.chunk - 1) / options.chunk) : 0;
  for (Sums& of : sums) of.chunks.resize(chunks);
  result.chunks.resize(chunks);
  const Clock::time_point start = Clock::now();
  const auto visit = [&](int64_t token, std::span<const float> logits, std::span<const float> full) {
    Sums& of = sums[static_cast<size_t>(token / length)];
    const double nll = NegativeLogLikelihood(logits, text.ids[static_cast<size_t>(token)]);
    const double kld = full.empty() ? 0 : KlDivergence(full, logits);
    of.nll += nll;
    of.kld += kld;
    if (chunks > 0) AddChunk({nll, kld, 1}, of.chunks[static_cast<size_t>(token % length / options.chunk)]);
    const bool same = full.empty() || Top(full) == Top(logits), clear = !full.empty() && TopGap(full) > kClearGap;
    of.same_top += same ? 1 : 0;
    of.clear += clear ? 1 : 0;
    of.same_clear += clear && same ? 1 : 0;
  };
  const auto finished = [&](size_t count) {
    for (; count > 0; --count) {
      const size_t next = result.window_nll.size();
      result.window_nll.push_back(sums[next].nll);
      result.kld += sums[next].kld;
      for (size_t i = 0; i < chunks; ++i) AddChunk(sums[next].chunks[i], result.chunks[i]);
      result.same_top += sums[next].same_top;
      result.clear += sums[next].clear;
      result.same_clear += sums[next].same_clear;
      result.tokens += windows[next].end() - windows[next].scored;
    }
    result.seconds = Seconds(start);
    // Windows that are kept pile up; what a window takes is known from the first, the longest.
    if (runners.kept == nullptr || result.pool.peak_bytes == 0)
      result.pool = {runners.method->instruments().pool_peak_bytes(), runners.method->instruments().pool_peak_bytes()};
    on_window(result);
  };
  RETURN_IF_ERROR(VisitPredictions(runners, text, windows, options.mode, visit, finished, &result.timing));
  return result;
}

}  // namespace infinigen
