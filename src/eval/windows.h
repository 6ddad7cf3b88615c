// Cuts a text into windows and visits every prediction that executors make in them.
//
// Windows are consecutive, and each starts with an empty cache. If the tokenizer opens texts with special tokens (BOS),
// every window is fed this opening before its tokens. All tokens of a window are scored; the last one is scored without
// being fed, so with a one-token opening a window has as many rows as tokens. Without an opening, the first token of a
// window has no token before it and is not scored.
//
// With `from` > 0 the first `from` rows of a window are a prompt: a dense prefill, as `generate` reads one. Only the
// predictions of the rows after it are scored.
//
// Every other token attends as in a decode step. kStep runs each token as a decode step, several windows at once.
// kBatched prefills a window in chunks, which share the matrix products, and computes its logits slice by slice. On one
// device both give the same logits; on the CPU they are bit-identical. One thread.
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

// Tokens of a window of `context` rows. Precondition: context ≥ 2 and ≥ opening.
inline int64_t WindowTokens(int64_t context, int64_t opening) { return opening > 0 ? context - opening + 1 : context; }

// Windows of at most `context` rows. A last window that is too short to score a token after row `from` is left out.
// Precondition: context ≥ 2 and ≥ opening.size(); 0 ≤ from < context.
std::vector<PplWindow> CutWindows(const PplText& text, int64_t context, int64_t from = 0);

// The tokens that a window feeds: the opening, then its tokens without the last. Row r predicts token
// first + r + 1 − opening.size().
std::vector<int32_t> FedTokens(const PplText& text, const PplWindow& window);

// Where the predictions of windows come from.
class WindowSource {
 public:
  virtual ~WindowSource() = default;

  // Makes the predictions of window `index` available until Leave; it feeds the tokens `fed`, which must be the same in
  // every call with this index. False: cancelled.
  virtual Result<bool> Read(size_t index, std::span<const int32_t> fed) = 0;
  // Logits [count][vocab] of rows [row, row + count) of a window that was read; row ≥ from.
  virtual Status Logits(size_t index, int64_t row, int64_t count, std::span<float> logits) = 0;
  // Frees the window; without effect if it was not read.
  virtual void Leave(size_t index) = 0;
  // How many windows can be read at once.
  virtual size_t most_at_once() const = 0;
};

// Prefills windows with one executor. The residual stream of a window stays until Leave, so that its logits can be
// computed in slices. The first `keep` windows stay for good: several methods are compared with the predictions of
// `full`, which reads the text only once.
class WindowReader final : public WindowSource {
 public:
  // `executor` outlives it and has room for the first `keep` windows, and for one more if there are more windows.
  WindowReader(Executor& executor, Callbacks callbacks, size_t keep = 0, int64_t from = 0);

  Result<bool> Read(size_t index, std::span<const int32_t> fed) override;
  Status Logits(size_t index, int64_t row, int64_t count, std::span<float> logits) override;
  void Leave(size_t index) override;
  size_t most_at_once() const override { return 1; }

  // The hidden states [count][hidden] that the logits of these rows are computed from.
  Status Hidden(size_t index, int64_t row, int64_t count, std::span<float> hidden);

  Executor& executor() const { return executor_; }

 private:
  Sequence& Of(size_t index);

  Executor& executor_;
  const Callbacks callbacks_;
  const PrefillKind kind_;
  const int64_t from_;
  const int64_t first_row_;  // row of the first token of the prefill that has the logits
  const size_t keep_;
  std::map<size_t, Sequence> read_;
};

// The executors that process the same tokens: a method, and the one it is compared with.
struct PplRunners {
  Executor* method = nullptr;
  Executor* other = nullptr;  // null: no comparison
  // The predictions of `other` (of `method` if there is no other), where they do not come from an executor that runs
  // beside the method: kept for the next call, or in a file. Null: they do.
  WindowSource* kept = nullptr;
};

// One scored prediction.
struct Prediction {
  size_t window = 0;                              // index
  int64_t token = 0;                              // index in the text of the token that came
  std::span<const float> logits, other_logits{};  // [vocab]; the other's are empty without a comparison
};
// Receives some scored predictions, those of one window in the order of the text. The logits are valid until the call
// returns.
using PredictionVisitor = std::function<void(std::span<const Prediction> predictions)>;

// Runs the windows and passes every scored prediction to `visit`; calls `on_window(n)` when n more windows are
// finished. If cancelled, returns Ok early; windows that on_window did not report are incomplete. `timing` receives the
// time of `method` only.
Status VisitPredictions(const PplRunners& runners, const PplText& text, std::span<const PplWindow> windows,
                        int64_t from, PplMode mode, const Callbacks& callbacks, const PredictionVisitor& visit,
                        const std::function<void(size_t)>& on_window, Timing* timing);

}  // namespace infinigen
