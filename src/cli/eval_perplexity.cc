#include "cli/eval_perplexity.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

#include "cli/interrupt.h"
#include "model/decoder.h"

namespace infinigen {
namespace {

using Clock = std::chrono::steady_clock;

// Logits on the host at once: a slice of positions, however large the vocabulary.
constexpr int64_t kSliceBytes = int64_t{16} << 20;

double Seconds(Clock::time_point since) { return std::chrono::duration<double>(Clock::now() - since).count(); }

// What a window feeds: opening, then its tokens but the last. Row r predicts token first + r + 1 − opening.
std::vector<int32_t> FedTokens(const PplText& text, const PplWindow& window) {
  std::vector<int32_t> fed = text.opening;
  fed.insert(fed.end(), text.ids.begin() + window.first, text.ids.begin() + window.end() - 1);
  return fed;
}

class Walk {
 public:
  Walk(Executor& executor, const PplText& text, const PredictionVisitor& visit, Timing& timing)
      : executor_(executor),
        text_(text),
        visit_(visit),
        timing_(timing),
        vocab_(executor.config().vocab),
        opening_(static_cast<int64_t>(text.opening.size())) {}

  // False: interrupted.
  Result<bool> Prefill(const PplWindow& window) {
    const std::vector<int32_t> fed = FedTokens(text_, window);
    ASSIGN_OR_RETURN(const SeqSlot slot, executor_.Admit(static_cast<int64_t>(fed.size())));
    const Clock::time_point start = Clock::now();
    Status begun = executor_.BeginPrefill(slot, 0, fed);
    bool done = false;
    while (begun.ok() && !done && !Interrupted()) done = executor_.RunPrefillUnit(slot);
    timing_.prefill_s += Seconds(start);
    timing_.prefill_tokens += static_cast<int64_t>(fed.size());
    if (done) VisitSlices(slot, window);
    executor_.Release(slot);
    RETURN_IF_ERROR(begun);
    return done && !Interrupted();
  }

  // All windows at once, one token of each a step; the shorter ones leave earlier. False: interrupted.
  Result<bool> Steps(std::span<const PplWindow> windows) {
    std::vector<std::vector<int32_t>> fed;
    std::vector<StepItem> live;     // those that still run
    std::vector<size_t> window_of;  // for each of `live`
    Status status = Ok();
    for (const PplWindow& window : windows) {
      fed.push_back(FedTokens(text_, window));
      Result<SeqSlot> slot = executor_.Admit(static_cast<int64_t>(fed.back().size()));
      if (!slot.ok()) {
        status = slot.error();
        break;
      }
      window_of.push_back(live.size());
      live.push_back({.slot = *slot, .token = 0, .row = 0});
    }
    std::vector<float> logits(windows.size() * static_cast<size_t>(vocab_));
    while (status.ok() && !live.empty() && !Interrupted()) {
      for (size_t i = 0; i < live.size(); ++i) live[i].token = fed[window_of[i]][static_cast<size_t>(live[i].row)];
      status = Step(live, logits);
      if (!status.ok()) break;
      for (size_t i = 0; i < live.size(); ++i)
        VisitRow(windows[window_of[i]], live[i].row, std::span(logits).subspan(i * static_cast<size_t>(vocab_)));
      for (size_t i = live.size(); i-- > 0;) {
        if (++live[i].row < static_cast<int64_t>(fed[window_of[i]].size())) continue;
        executor_.Release(live[i].slot);
        live.erase(live.begin() + static_cast<ptrdiff_t>(i));
        window_of.erase(window_of.begin() + static_cast<ptrdiff_t>(i));
      }
    }
    const bool finished = live.empty();
    for (const StepItem& item : live) executor_.Release(item.slot);
    RETURN_IF_ERROR(status);
    return finished;
  }

 private:
  Status Step(std::span<const StepItem> items, std::vector<float>& logits) {
    const Clock::time_point start = Clock::now();
    executor_.Step(items, std::span(logits).first(items.size() * static_cast<size_t>(vocab_)));
    const double elapsed = Seconds(start);
    timing_.decode_s += elapsed;
    timing_.decode_tokens += static_cast<int64_t>(items.size());
    timing_.step_ms.push_back(static_cast<float>(elapsed * 1e3));
    return Ok();
  }

  void VisitSlices(SeqSlot slot, const PplWindow& window) {
    const int64_t rows = opening_ + window.count - 1;
    const int64_t slice = std::clamp<int64_t>(kSliceBytes / (vocab_ * static_cast<int64_t>(sizeof(float))), 1, rows);
    slice_.resize(static_cast<size_t>(slice * vocab_));
    const int64_t first_scored_row = window.scored - window.first + opening_ - 1;
    for (int64_t row = first_scored_row; row < rows && !Interrupted(); row += slice) {
      const int64_t count = std::min(slice, rows - row);
      const Clock::time_point start = Clock::now();
      executor_.PrefillLogits(slot, row, count, std::span(slice_).first(static_cast<size_t>(count * vocab_)));
      timing_.prefill_s += Seconds(start);
      for (int64_t i = 0; i < count; ++i)
        VisitRow(window, row + i, std::span(slice_).subspan(static_cast<size_t>(i * vocab_)));
    }
  }

  void VisitRow(const PplWindow& window, int64_t row, std::span<const float> logits) {
    const int64_t token = window.first + row + 1 - opening_;
    if (token >= window.scored) visit_(token, logits.first(static_cast<size_t>(vocab_)));
  }

  Executor& executor_;
  const PplText& text_;
  const PredictionVisitor& visit_;
  Timing& timing_;
  const int64_t vocab_;
  const int64_t opening_;
  std::vector<float> slice_;  // [slice][vocab]
};

}  // namespace

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

double NegativeLogLikelihood(std::span<const float> logits, int32_t target) {
  const float most = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - most);
  return std::log(sum) - (static_cast<double>(logits[static_cast<size_t>(target)]) - static_cast<double>(most));
}

Status VisitPredictions(Executor& executor, const PplText& text, std::span<const PplWindow> windows, PplMode mode,
                        const PredictionVisitor& visit, const std::function<void(size_t)>& on_window, Timing* timing) {
  Walk walk(executor, text, visit, *timing);
  const size_t batch = mode == PplMode::kStep ? static_cast<size_t>(executor.options().max_batch) : 1;
  for (size_t next = 0; next < windows.size() && !Interrupted();) {
    const std::span<const PplWindow> group = windows.subspan(next, std::min(batch, windows.size() - next));
    ASSIGN_OR_RETURN(const bool finished, mode == PplMode::kStep ? walk.Steps(group) : walk.Prefill(group[0]));
    if (!finished) break;
    next += group.size();
    on_window(group.size());
  }
  return Ok();
}

Result<PplResult> ScoreText(Executor& executor, const PplText& text, const PplOptions& options,
                            const std::function<void(const PplResult&)>& on_window) {
  const std::vector<PplWindow> windows = CutWindows(text, options);
  const int64_t length = windows.empty() ? 1 : windows[0].count;
  PplResult result;
  result.windows = static_cast<int64_t>(windows.size());
  std::vector<double> sums(windows.size());
  const Clock::time_point start = Clock::now();
  const auto visit = [&](int64_t token, std::span<const float> logits) {
    sums[static_cast<size_t>(token / length)] += NegativeLogLikelihood(logits, text.ids[static_cast<size_t>(token)]);
  };
  const auto finished = [&](size_t count) {
    for (; count > 0; --count) {
      const PplWindow& window = windows[result.window_nll.size()];
      result.window_nll.push_back(sums[result.window_nll.size()]);
      result.tokens += window.end() - window.scored;
    }
    result.seconds = Seconds(start);
    on_window(result);
  };
  RETURN_IF_ERROR(VisitPredictions(executor, text, windows, options.mode, visit, finished, &result.timing));
  result.pool = {executor.pool_peak_bytes(), executor.pool_peak_bytes()};
  return result;
}

}  // namespace infinigen
