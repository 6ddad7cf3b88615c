#include "eval/windows.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>

#include "base/check.h"
#include "eval/session.h"
#include "runtime/report.h"

namespace infinigen {

std::vector<PplWindow> CutWindows(const PplText& text, int64_t context, int64_t from) {
  const int64_t total = std::ssize(text.ids), opening = std::ssize(text.opening);
  CHECK(context >= 2 && context >= opening && from >= 0 && from < context);
  const int64_t length = WindowTokens(context, opening);
  // Row r predicts token r + 1 − opening of its window.
  const int64_t first_scored = std::max<int64_t>(opening > 0 ? 0 : 1, from + 1 - opening);
  std::vector<PplWindow> windows;
  for (int64_t first = 0; first < total; first += length) {
    const PplWindow window{.first = first, .count = std::min(length, total - first), .scored = first + first_scored};
    if (window.scored < window.end()) windows.push_back(window);
  }
  return windows;
}

std::vector<int32_t> FedTokens(const PplText& text, const PplWindow& window) {
  std::vector<int32_t> fed = text.opening;
  fed.insert(fed.end(), text.ids.begin() + window.first, text.ids.begin() + window.end() - 1);
  return fed;
}

// A dense prefill has the logits of all rows; otherwise the prompt is a prefill of its own.
WindowReader::WindowReader(Executor& executor, Callbacks callbacks, size_t keep, int64_t from)
    : executor_(executor),
      callbacks_(std::move(callbacks)),
      kind_(KindOfSteps(executor)),
      from_(from),
      first_row_(kind_ == PrefillKind::kDense ? 0 : from),
      keep_(keep) {}

Result<bool> WindowReader::Read(size_t index, std::span<const int32_t> fed) {
  if (read_.contains(index)) return true;
  CHECK(std::ssize(fed) > from_);
  ASSIGN_OR_RETURN(Sequence sequence, Sequence::Admit(executor_, std::ssize(fed)));
  const auto goes_on = [this](int64_t, int64_t) { return !callbacks_.Cancelled(); };
  const auto prompt = static_cast<size_t>(first_row_);
  if (prompt > 0) {
    ASSIGN_OR_RETURN(const bool whole, sequence.Prefill(fed.first(prompt), PrefillKind::kDense, goes_on));
    if (!whole) return false;
  }
  ASSIGN_OR_RETURN(const bool whole, sequence.Prefill(fed.subspan(prompt), kind_, goes_on, first_row_));
  if (!whole) return false;
  read_.emplace(index, std::move(sequence));
  return true;
}

Sequence& WindowReader::Of(size_t index) {
  const auto found = read_.find(index);
  CHECK(found != read_.end());
  return found->second;
}

Status WindowReader::Logits(size_t index, int64_t row, int64_t count, std::span<float> logits) {
  CHECK(row >= first_row_);
  Of(index).Logits(row - first_row_, count, logits);
  return Ok();
}

Status WindowReader::Hidden(size_t index, int64_t row, int64_t count, std::span<float> hidden) {
  CHECK(row >= first_row_);
  return executor_.instruments().PrefillHidden(Of(index).slot(), row - first_row_, count, hidden);
}

void WindowReader::Leave(size_t index) {
  if (index >= keep_) read_.erase(index);
}

namespace {

// Limit of logits in host memory at once; it determines the rows of a slice.
constexpr int64_t kSliceBytes = int64_t{16} << 20;

// Runs every token through all runners side by side, so that predictions can be compared immediately. Only the method's
// time is counted.
class Walk {
 public:
  Walk(const PplRunners& runners, const PplText& text, int64_t from, const Callbacks& callbacks,
       const PredictionVisitor& visit, Timing& timing)
      : kept_(runners.other != nullptr ? runners.kept : nullptr),
        text_(text),
        from_(from),
        callbacks_(callbacks),
        visit_(visit),
        timing_(timing),
        vocab_(runners.method->config().vocab),
        opening_(std::ssize(text.opening)) {
    for (Executor* runner : {runners.method, runners.other}) {
      if (runner == nullptr) continue;
      const bool keeps = runners.kept != nullptr && (runner == runners.other || runners.other == nullptr);
      runners_.push_back(runner);
      sources_.push_back(keeps ? runners.kept
                               : own_.emplace_back(std::make_unique<WindowReader>(*runner, callbacks, 0, from)).get());
    }
  }

  // Runs window `index` with one prefill per runner, in which every token is a step. False: cancelled.
  Result<bool> Prefill(size_t index, const PplWindow& window) {
    const Result<bool> done = ReadAndVisit(index, window);
    for (WindowSource* source : sources_) source->Leave(index);
    return done;
  }

  // Runs all `windows` at once, beginning with window `index`, one token of each per step; shorter windows end earlier.
  // If the other runner's predictions are kept, they come from there. False: cancelled.
  Result<bool> Steps(size_t index, std::span<const PplWindow> windows) {
    std::vector<std::vector<int32_t>> fed;
    for (const PplWindow& window : windows) fed.push_back(FedTokens(text_, window));
    const Result<bool> done = StepAll(index, windows, fed);
    for (size_t w = 0; kept_ != nullptr && w < windows.size(); ++w) kept_->Leave(index + w);
    return done;
  }

 private:
  Result<bool> ReadAndVisit(size_t index, const PplWindow& window) {
    const std::vector<int32_t> fed = FedTokens(text_, window);
    for (size_t r = 0; r < sources_.size(); ++r) {
      const Clock::time_point start = Clock::now();
      ASSIGN_OR_RETURN(const bool read, sources_[r]->Read(index, fed));
      if (!read) return false;
      if (r == 0) timing_.AddPrefill(Seconds(start), std::ssize(fed));
    }
    RETURN_IF_ERROR(VisitSlices(index, window));
    return !callbacks_.Cancelled();
  }

  // A sequence for each window, with its prompt read. Empty: cancelled.
  Result<std::vector<std::optional<Sequence>>> Begin(size_t runner, const std::vector<std::vector<int32_t>>& fed) {
    std::vector<std::optional<Sequence>> sequences;
    const auto goes_on = [this](int64_t, int64_t) { return !callbacks_.Cancelled(); };
    for (const std::vector<int32_t>& tokens : fed) {
      ASSIGN_OR_RETURN(Sequence sequence, Sequence::Admit(*runners_[runner], std::ssize(tokens)));
      if (from_ > 0) {
        const Clock::time_point start = Clock::now();
        ASSIGN_OR_RETURN(const bool whole, sequence.Prefill(std::span(tokens).first(static_cast<size_t>(from_)),
                                                            PrefillKind::kDense, goes_on));
        sequence.EndPrefill();
        if (!whole) return std::vector<std::optional<Sequence>>();
        if (runner == 0) timing_.AddPrefill(Seconds(start), from_);
      }
      sequences.emplace_back(std::move(sequence));
    }
    return sequences;
  }

  Result<bool> StepAll(size_t index, std::span<const PplWindow> windows, const std::vector<std::vector<int32_t>>& fed) {
    for (size_t w = 0; kept_ != nullptr && w < windows.size(); ++w) {
      ASSIGN_OR_RETURN(const bool read, kept_->Read(index + w, fed[w]));
      if (!read) return false;
    }
    std::vector<std::vector<std::optional<Sequence>>> sequences(kept_ != nullptr ? 1 : runners_.size());  // [][windows]
    for (size_t r = 0; r < sequences.size(); ++r) {
      ASSIGN_OR_RETURN(sequences[r], Begin(r, fed));
      if (sequences[r].empty()) return false;
    }
    std::vector<std::vector<float>> logits(runners_.size());
    for (std::vector<float>& of : logits) of.resize(windows.size() * static_cast<size_t>(vocab_));
    std::vector<size_t> live(windows.size());  // unfinished windows
    std::iota(live.begin(), live.end(), size_t{0});
    std::vector<StepItem> items;
    // All unfinished windows are at the same row.
    for (int64_t row = from_; !live.empty() && !callbacks_.Cancelled(); ++row) {
      for (size_t r = 0; r < sequences.size(); ++r) {
        items.clear();
        for (const size_t w : live) items.push_back({sequences[r][w]->slot(), fed[w][static_cast<size_t>(row)], row});
        Step(r, items, logits[r]);
      }
      predictions_.clear();
      for (size_t i = 0; i < live.size(); ++i) {
        if (kept_ != nullptr) RETURN_IF_ERROR(kept_->Logits(index + live[i], row, 1, Row(logits[1], i)));
        Add(index + live[i], windows[live[i]], row, logits, i);
      }
      visit_(predictions_);
      std::erase_if(live, [&](size_t w) {
        const bool ended = row + 1 == std::ssize(fed[w]);
        for (std::vector<std::optional<Sequence>>& of : sequences)
          if (ended) of[w].reset();
        return ended;
      });
    }
    return live.empty();
  }

  void Step(size_t runner, std::span<const StepItem> items, std::vector<float>& logits) {
    const Clock::time_point start = Clock::now();
    runners_[runner]->Step(items, std::span(logits).first(items.size() * static_cast<size_t>(vocab_)));
    if (runner == 0) timing_.AddStep(Seconds(start), std::ssize(items));
  }

  Status VisitSlices(size_t index, const PplWindow& window) {
    const int64_t rows = opening_ + window.count - 1;
    const int64_t slice = std::clamp<int64_t>(kSliceBytes / (vocab_ * static_cast<int64_t>(sizeof(float))), 1, rows);
    slices_.resize(runners_.size());
    for (std::vector<float>& of : slices_) of.resize(static_cast<size_t>(slice * vocab_));
    const int64_t first_scored_row = window.scored - window.first + opening_ - 1;
    for (int64_t row = first_scored_row; row < rows && !callbacks_.Cancelled(); row += slice) {
      const int64_t count = std::min(slice, rows - row);
      for (size_t r = 0; r < sources_.size(); ++r) {
        const Clock::time_point start = Clock::now();
        RETURN_IF_ERROR(
            sources_[r]->Logits(index, row, count, std::span(slices_[r]).first(static_cast<size_t>(count * vocab_))));
        if (r == 0) timing_.AddPrefill(Seconds(start), 0);
      }
      predictions_.clear();
      for (int64_t i = 0; i < count; ++i) Add(index, window, row + i, slices_, static_cast<size_t>(i));
      visit_(predictions_);
    }
    return Ok();
  }

  std::span<float> Row(std::vector<float>& logits, size_t index) const {
    return std::span(logits).subspan(index * static_cast<size_t>(vocab_), static_cast<size_t>(vocab_));
  }

  // Adds a prediction unless it is not scored. `logits`: of each runner; the prediction is row `index`.
  void Add(size_t number, const PplWindow& window, int64_t row, std::vector<std::vector<float>>& logits, size_t index) {
    const int64_t token = window.first + row + 1 - opening_;
    if (token < window.scored) return;
    predictions_.push_back({.window = number, .token = token, .logits = Row(logits[0], index)});
    if (runners_.size() > 1) predictions_.back().other_logits = Row(logits[1], index);
  }

  WindowSource* const kept_;        // the other runner's source, if it does not run beside the method
  std::vector<Executor*> runners_;  // the method, then the other if there is one
  std::vector<std::unique_ptr<WindowReader>> own_;
  std::vector<WindowSource*> sources_;  // [runners], from own_ or from the caller
  const PplText& text_;
  const int64_t from_;
  const Callbacks& callbacks_;
  const PredictionVisitor& visit_;
  Timing& timing_;
  const int64_t vocab_;
  const int64_t opening_;
  std::vector<std::vector<float>> slices_;  // [runners][slice][vocab]
  std::vector<Prediction> predictions_;
};

}  // namespace

Status VisitPredictions(const PplRunners& runners, const PplText& text, std::span<const PplWindow> windows,
                        int64_t from, PplMode mode, const Callbacks& callbacks, const PredictionVisitor& visit,
                        const std::function<void(size_t)>& on_window, Timing* timing) {
  Walk walk(runners, text, from, callbacks, visit, *timing);
  size_t batch = mode == PplMode::kStep ? static_cast<size_t>(runners.method->options().max_batch) : 1;
  if (runners.kept != nullptr) batch = std::min(batch, runners.kept->most_at_once());
  for (size_t next = 0; next < windows.size() && !callbacks.Cancelled();) {
    const std::span<const PplWindow> group = windows.subspan(next, std::min(batch, windows.size() - next));
    ASSIGN_OR_RETURN(const bool finished,
                     mode == PplMode::kStep ? walk.Steps(next, group) : walk.Prefill(next, group[0]));
    if (!finished) break;
    next += group.size();
    on_window(group.size());
  }
  return Ok();
}

}  // namespace infinigen
