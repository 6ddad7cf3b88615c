// A text cut into windows, and every prediction that executors make in them.
//
// Windows lie side by side, and each is read from an empty cache. Where the tokenizer opens texts with special tokens
// (BOS), a window is fed the opening and then its tokens. All of its tokens are scored; the last one is scored without
// being fed, so a window has as many rows as tokens. Where there is no opening, the first token of a window has nothing
// before it and is not scored.
//
// Every token attends as in a decode step. kStep runs each one as such a step, several windows at once. kBatched takes
// a window through the layers in chunks, which share the matrix products, and asks for its logits slice by slice. On
// one device both give the same logits; the CPU backends give the same bits. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "base/result.h"
#include "runtime/callbacks.h"
#include "runtime/launch.h"
#include "runtime/report.h"

namespace infinigen {

enum class PplMode { kStep, kBatched };

// A text as tokens.
struct PplText {
  std::vector<int32_t> ids;
  std::vector<int32_t> opening;  // what the tokenizer puts before a text; fed, never scored
};

// Tokens [first, first + count) of the text; [scored, first + count) are scored.
struct PplWindow {
  int64_t first = 0, count = 0, scored = 0;

  int64_t end() const { return first + count; }
};

// Windows of at most `context` rows. A last window too short to score anything is left out. Precondition: context ≥ 2
// and ≥ the opening.
std::vector<PplWindow> CutWindows(const PplText& text, int64_t context);

// What a window feeds: opening, then its tokens but the last. Row r predicts token first + r + 1 − opening.
std::vector<int32_t> FedTokens(const PplText& text, const PplWindow& window);

// Reads windows with one executor. The residual stream of a window that was read stays until the window is left, so
// that its logits can be asked for in slices. The first `keep` windows stay for good: several methods are compared with
// predictions of `full`, which reads the text once.
class WindowReader {
 public:
  // `executor` outlives it, and has room for each of the first `keep` windows and for one more where there are more.
  WindowReader(Executor& executor, Callbacks callbacks, size_t keep = 0)
      : executor_(executor), callbacks_(std::move(callbacks)), keep_(keep) {}

  // Window `index`, which feeds `fed`, always the same for the same index. Null: cancelled. Valid until Leave.
  Result<Sequence*> Read(size_t index, std::span<const int32_t> fed);
  // Gives the window back unless it is kept; without effect where it was not read.
  void Leave(size_t index);

  Executor& executor() const { return executor_; }

 private:
  Executor& executor_;
  const Callbacks callbacks_;
  const size_t keep_;
  std::map<size_t, Sequence> read_;
};

// A method and what it is compared with, on the same tokens.
struct PplRunners {
  Executor* method = nullptr;
  Executor* other = nullptr;  // null: nothing is compared
  // Reads for `other` (for `method` where there is no other) and keeps windows for the next call. Windows then go one
  // by one in either mode.
  WindowReader* kept = nullptr;
};

// Called with each row of logits that predicts a scored token, in the order of the tokens within a window: the index of
// that token in the text, and [vocab] logits that live until the call returns. `other` is empty where nothing is
// compared.
using PredictionVisitor =
    std::function<void(int64_t token, std::span<const float> logits, std::span<const float> other)>;

// Takes the windows through the model and shows every scored prediction to `visit`; calls `on_window(n)` when n more
// windows are finished. Cancelled: ends early with Ok, and the windows that on_window did not report are incomplete.
// `timing` gets the method's time alone.
Status VisitPredictions(const PplRunners& runners, const PplText& text, std::span<const PplWindow> windows,
                        PplMode mode, const Callbacks& callbacks, const PredictionVisitor& visit,
                        const std::function<void(size_t)>& on_window, Timing* timing);

}  // namespace infinigen
