// Cuts a text into windows and visits every prediction that executors make in them.
//
// Windows are consecutive, and each starts with an empty cache. If the tokenizer opens texts with special tokens (BOS),
// every window is fed this opening before its tokens. All tokens of a window are scored; the last one is scored without
// being fed, so with a one-token opening a window has as many rows as tokens. Without an opening, the first token of a
// window has no token before it and is not scored.
//
// Every token attends as in a decode step. kStep runs each token as a decode step, several windows at once. kBatched
// prefills a window in chunks, which share the matrix products, and computes its logits slice by slice. On one device
// both give the same logits; on the CPU they are bit-identical. One thread.
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
  std::vector<int32_t> opening;  // special tokens before a text; fed, never scored
};

// Tokens [first, first + count) of the text; [scored, first + count) are scored.
struct PplWindow {
  int64_t first = 0, count = 0, scored = 0;

  int64_t end() const { return first + count; }
};

// Windows of at most `context` rows. A last window that is too short to score a token is left out. Precondition:
// context ≥ 2 and ≥ opening.size().
std::vector<PplWindow> CutWindows(const PplText& text, int64_t context);

// The tokens that a window feeds: the opening, then its tokens without the last. Row r predicts token
// first + r + 1 − opening.size().
std::vector<int32_t> FedTokens(const PplText& text, const PplWindow& window);

// Prefills windows with one executor. The residual stream of a window stays until Leave, so that its logits can be
// computed in slices. The first `keep` windows stay for good: several methods are compared with the predictions of
// `full`, which reads the text only once.
class WindowReader {
 public:
  // `executor` outlives it and has room for the first `keep` windows, and for one more if there are more windows.
  WindowReader(Executor& executor, Callbacks callbacks, size_t keep = 0)
      : executor_(executor), callbacks_(std::move(callbacks)), keep_(keep) {}

  // Prefills window `index` with the tokens `fed`, which must be the same in every call with this index. Null:
  // cancelled. The result is valid until Leave.
  Result<Sequence*> Read(size_t index, std::span<const int32_t> fed);
  // Releases the window unless it is kept; without effect if it was not read.
  void Leave(size_t index);

  Executor& executor() const { return executor_; }

 private:
  Executor& executor_;
  const Callbacks callbacks_;
  const size_t keep_;
  std::map<size_t, Sequence> read_;
};

// The executors that process the same tokens: a method, and the one it is compared with.
struct PplRunners {
  Executor* method = nullptr;
  Executor* other = nullptr;  // null: no comparison
  // Reads for `other` (for `method` if there is no other) and keeps windows for the next call. Windows are then
  // processed one by one in both modes.
  WindowReader* kept = nullptr;
};

// Called for each scored token, in order within a window: the token's index in the text, and the [vocab] logits that
// predict it, valid until the call returns. `other` is empty without a comparison.
using PredictionVisitor =
    std::function<void(int64_t token, std::span<const float> logits, std::span<const float> other)>;

// Runs the windows and passes every scored prediction to `visit`; calls `on_window(n)` when n more windows are
// finished. If cancelled, returns Ok early; windows that on_window did not report are incomplete. `timing` receives the
// time of `method` only.
Status VisitPredictions(const PplRunners& runners, const PplText& text, std::span<const PplWindow> windows,
                        PplMode mode, const Callbacks& callbacks, const PredictionVisitor& visit,
                        const std::function<void(size_t)>& on_window, Timing* timing);

}  // namespace infinigen
