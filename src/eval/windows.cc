#include "eval/windows.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>

#include "base/check.h"
#include "eval/session.h"
#include "runtime/report.h"

namespace infinigen {

std::vector<PplWindow> CutWindows(const PplText& text, int64_t context) {
  const int64_t total = std::ssize(text.ids), opening = std::ssize(text.opening);
  CHECK(context >= 2 && context >= opening);
  const int64_t length = opening > 0 ? context - opening + 1 : context;
  std::vector<PplWindow> windows;
  for (int64_t first = 0; first < total; first += length) {
    const PplWindow window{
        .first = first, .count = std::min(length, total - first), .scored = opening > 0 ? first : first + 1};
    if (window.scored < window.end()) windows.push_back(window);
  }
  return windows;
}

std::vector<int32_t> FedTokens(const PplText& text, const PplWindow& window) {
  std::vector<int32_t> fed = text.opening;
  fed.insert(fed.end(), text.ids.begin() + window.first, text.ids.begin() + window.end() - 1);
  return fed;
}

Result<Sequence*> WindowReader::Read(size_t index, std::span<const int32_t> fed) {
  if (const auto known = read_.find(index); known != read_.end()) return &known->second;
  ASSIGN_OR_RETURN(Sequence sequence, Sequence::Admit(executor_, std::ssize(fed)));
  const auto goes_on = [this](int64_t, int64_t) { return !callbacks_.Cancelled(); };
  ASSIGN_OR_RETURN(const bool whole, sequence.Prefill(fed, KindOfSteps(executor_), goes_on));
  if (!whole) return nullptr;
  return &read_.emplace(index, std::move(sequence)).first->second;
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
  Walk(const PplRunners& runners, const PplText& text, const Callbacks& callbacks, const PredictionVisitor& visit,
       Timing& timing)
      : method_(*runners.method),
        kept_(runners.other != nullptr ? runners.kept : nullptr),
        text_(text),
        callbacks_(callbacks),
        visit_(visit),
        timing_(timing),
        vocab_(runners.method->config().vocab),
        opening_(std::ssize(text.opening)) {
    for (Executor* runner : {runners.method, runners.other}) {
      if (runner == nullptr) continue;
      const bool keeps = runners.kept != nullptr && &runners.kept->executor() == runner;
      runners_.push_back(runner);
      readers_.push_back(keeps ? runners.kept
                               : own_.emplace_back(std::make_unique<WindowReader>(*runner, callbacks)).get());
    }
  }

  // Runs window `index` with one prefill per runner, in which every token is a step. False: cancelled.
  Result<bool> Prefill(size_t index, const PplWindow& window) {
    const Result<bool> done = ReadAndVisit(index, window);
    for (WindowReader* reader : readers_) reader->Leave(index);
    return done;
  }

  // Runs all `windows` at once, beginning with window `index`, one token of each per step; shorter windows end earlier.
  // If the other runner keeps its windows, its predictions come from there. False: cancelled.
  Result<bool> Steps(size_t index, std::span<const PplWindow> windows) {
    std::vector<std::vector<int32_t>> fed;
    for (const PplWindow& window : windows) fed.push_back(FedTokens(text_, window));
    if (kept_ == nullptr) return StepAll(windows, fed, nullptr);
    CHECK(windows.size() == 1);
    ASSIGN_OR_RETURN(Sequence* const kept, kept_->Read(index, fed[0]));
    if (kept == nullptr) return false;
    const Result<bool> done = StepAll(windows, fed, kept);
    kept_->Leave(index);
    return done;
  }

 private:
  Result<bool> ReadAndVisit(size_t index, const PplWindow& window) {
    const std::vector<int32_t> fed = FedTokens(text_, window);
    std::vector<Sequence*> read;
    for (WindowReader* reader : readers_) {
      const Clock::time_point start = Clock::now();
      ASSIGN_OR_RETURN(Sequence* const sequence, reader->Read(index, fed));
      if (sequence == nullptr) return false;
      read.push_back(sequence);
      Count(&reader->executor(), start, std::ssize(fed));
    }
    VisitSlices(read, window);
    return !callbacks_.Cancelled();
  }

  // `kept`: the only window as the other runner has read it; null: the other runner takes steps too.
  Result<bool> StepAll(std::span<const PplWindow> windows, const std::vector<std::vector<int32_t>>& fed,
                       Sequence* kept) {
    std::vector<std::vector<std::optional<Sequence>>> sequences(kept != nullptr ? 1 : runners_.size());  // [][windows]
    for (size_t r = 0; r < sequences.size(); ++r)
      for (const std::vector<int32_t>& tokens : fed) {
        ASSIGN_OR_RETURN(Sequence sequence, Sequence::Admit(*runners_[r], std::ssize(tokens)));
        sequences[r].emplace_back(std::move(sequence));
      }
    std::vector<std::vector<float>> logits(runners_.size());
    for (std::vector<float>& of : logits) of.resize(windows.size() * static_cast<size_t>(vocab_));
    std::vector<size_t> live(windows.size());  // unfinished windows
    std::iota(live.begin(), live.end(), size_t{0});
    std::vector<StepItem> items;
    // Every window begins at row 0, so all unfinished windows are at the same row.
    for (int64_t row = 0; !live.empty() && !callbacks_.Cancelled(); ++row) {
      for (size_t r = 0; r < sequences.size(); ++r) {
        items.clear();
        for (const size_t w : live) items.push_back({sequences[r][w]->slot(), fed[w][static_cast<size_t>(row)], row});
        Step(runners_[r], items, logits[r]);
      }
      if (kept != nullptr) kept->Logits(row, 1, logits[1]);
      for (size_t i = 0; i < live.size(); ++i) VisitRow(windows[live[i]], row, logits, i);
      std::erase_if(live, [&](size_t w) {
        const bool ended = row + 1 == std::ssize(fed[w]);
        for (std::vector<std::optional<Sequence>>& of : sequences)
          if (ended) of[w].reset();
        return ended;
      });
    }
    return live.empty();
  }

  void Count(const Executor* runner, Clock::time_point start, int64_t tokens) {
    if (runner == &method_) timing_.AddPrefill(Seconds(start), tokens);
  }

  void Step(Executor* runner, std::span<const StepItem> items, std::vector<float>& logits) {
    const Clock::time_point start = Clock::now();
    runner->Step(items, std::span(logits).first(items.size() * static_cast<size_t>(vocab_)));
    if (runner == &method_) timing_.AddStep(Seconds(start), std::ssize(items));
  }

  void VisitSlices(const std::vector<Sequence*>& read, const PplWindow& window) {
    const int64_t rows = opening_ + window.count - 1;
    const int64_t slice = std::clamp<int64_t>(kSliceBytes / (vocab_ * static_cast<int64_t>(sizeof(float))), 1, rows);
    slices_.resize(runners_.size());
    for (std::vector<float>& of : slices_) of.resize(static_cast<size_t>(slice * vocab_));
    const int64_t first_scored_row = window.scored - window.first + opening_ - 1;
    for (int64_t row = first_scored_row; row < rows && !callbacks_.Cancelled(); row += slice) {
      const int64_t count = std::min(slice, rows - row);
      for (size_t r = 0; r < runners_.size(); ++r) {
        const Clock::time_point start = Clock::now();
        read[r]->Logits(row, count, std::span(slices_[r]).first(static_cast<size_t>(count * vocab_)));
        Count(runners_[r], start, 0);
      }
      for (int64_t i = 0; i < count; ++i) VisitRow(window, row + i, slices_, static_cast<size_t>(i));
    }
  }

  // `logits`: of each runner; the prediction is row `index`.
  void VisitRow(const PplWindow& window, int64_t row, const std::vector<std::vector<float>>& logits, size_t index) {
    const int64_t token = window.first + row + 1 - opening_;
    if (token < window.scored) return;
    const auto at = [&](size_t runner) {
      return std::span(logits[runner]).subspan(index * static_cast<size_t>(vocab_), static_cast<size_t>(vocab_));
    };
    visit_(token, at(0), runners_.size() > 1 ? at(1) : std::span<const float>());
  }

  Executor& method_;
  WindowReader* const kept_;        // the other runner's reader, if it keeps windows
  std::vector<Executor*> runners_;  // the method, then the other if there is one
  std::vector<std::unique_ptr<WindowReader>> own_;
  std::vector<WindowReader*> readers_;  // [runners], from own_ or from the caller
  const PplText& text_;
  const Callbacks& callbacks_;
  const PredictionVisitor& visit_;
  Timing& timing_;
  const int64_t vocab_;
  const int64_t opening_;
  std::vector<std::vector<float>> slices_;  // [runners][slice][vocab]
};

}  // namespace

Status VisitPredictions(const PplRunners& runners, const PplText& text, std::span<const PplWindow> windows,
                        PplMode mode, const Callbacks& callbacks, const PredictionVisitor& visit,
                        const std::function<void(size_t)>& on_window, Timing* timing) {
  Walk walk(runners, text, callbacks, visit, *timing);
  const bool together = mode == PplMode::kStep && runners.kept == nullptr;
  const size_t batch = together ? static_cast<size_t>(runners.method->options().max_batch) : 1;
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
