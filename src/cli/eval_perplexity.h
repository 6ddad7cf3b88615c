// Perplexity of a text: cut into windows side by side, every window read from an empty cache, every prediction scored.
//
// With a tokenizer that opens texts (BOS), each window is fed the opening and then its tokens; all of its tokens are
// scored, the last one is scored but need not be fed, so a window has as many rows as tokens. Without one, the first
// token of a window has nothing before it and is not scored.
//
// Every token attends as in a decode step. kStep makes each one such a step, several windows at once; kBatched takes a
// window through the layers in chunks, which share the matrix products, and asks for its logits slice by slice. On one
// device both give the same logits; the CPU backends do so bit for bit.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/result.h"
#include "cli/window_reader.h"
#include "model/executor.h"
#include "runtime/report.h"

namespace infinigen {

enum class PplMode { kStep, kBatched };

struct PplOptions {
  int64_t context = 0;  // rows of a window at most; ≥ 2
  PplMode mode = PplMode::kBatched;
  int64_t chunk = 0;  // predictions are also summed for every so many tokens along a window; 0: they are not
};

// A text as tokens.
struct PplText {
  std::vector<int32_t> ids;
  std::vector<int32_t> opening;  // what the tokenizer puts before a text; fed, never scored
};

// One window: tokens [first, first + count) of the text, of which [scored, first + count) are scored.
struct PplWindow {
  int64_t first = 0, count = 0, scored = 0;

  int64_t end() const { return first + count; }
};
// A last window too short to score anything is left out. Precondition: options.context ≥ 2 and ≥ opening.
std::vector<PplWindow> CutWindows(const PplText& text, const PplOptions& options);

// What a window feeds: opening, then its tokens but the last. Row r predicts token first + r + 1 − opening.
std::vector<int32_t> FedTokens(const PplText& text, const PplWindow& window);

// Predictions of the same stretch of every window: what a method loses as the context grows.
struct PplChunk {
  double nll = 0, kld = 0;  // sums
  int64_t tokens = 0;       // scored
};

struct PplResult {
  std::vector<double> window_nll;  // Σ −ln p of each finished window's scored tokens, in order
  int64_t windows = 0;             // to be scored; more than window_nll has: interrupted
  int64_t tokens = 0;              // scored
  double seconds = 0;              // everything but the loading
  Timing timing;                   // of the model alone
  double kld = 0;                  // Σ KL(full ‖ method) of the scored predictions; 0 where nothing is compared
  int64_t same_top = 0;            // predictions whose most likely token is that of full
  int64_t clear = 0;               // predictions where full's best is ahead of its second by more than kClearGap
  int64_t same_clear = 0;          // of those, the same most likely token
  std::vector<PplChunk> chunks;    // of the finished windows, along the window; empty unless asked for
  PoolUse pool;

  bool complete() const { return static_cast<int64_t>(window_nll.size()) == windows; }
  double nll() const;  // mean a token; NaN when nothing was scored
  double ppl() const;
  double kld_mean() const;    // NaN when nothing was scored
  double top1_agree() const;  // the same
  double clear_agree() const;
};

// Between the best two logits: below it, rounding alone may turn them.
inline constexpr float kClearGap = 0.05f;

// −ln p(target), from one row of logits. The largest logit is subtracted first; the sum is kept in double.
double NegativeLogLikelihood(std::span<const float> logits, int32_t target);

// KL(p ‖ q) of the distributions of two rows of logits, in nats.
double KlDivergence(std::span<const float> p, std::span<const float> q);

// Two ways of keeping the cache on the same tokens; `full` may be null. `kept`: who reads for full, or for the method
// where full itself is scored, and keeps what was read for the next method; then windows go one by one in either mode.
struct PplRunners {
  Executor* method;
  Executor* full;
  WindowReader* kept = nullptr;
};

// Called with each row of logits that predicts a scored token, in the order of the tokens within a window: the index of
// that token in the text, and [vocab] logits that live until the call returns; `full` is empty where nothing is
// compared.
using PredictionVisitor =
    std::function<void(int64_t token, std::span<const float> logits, std::span<const float> full)>;

// Takes the windows through the model and shows every scored prediction to `visit`; `on_window(n)` after n more windows
// are finished. Ends early, with Ok, on Ctrl-C: then the windows of which on_window was not told are incomplete.
Status VisitPredictions(const PplRunners& runners, const PplText& text, std::span<const PplWindow> windows,
                        PplMode mode, const PredictionVisitor& visit, const std::function<void(size_t)>& on_window,
                        Timing* timing);

// Scores a text. `on_window` sees the result so far, after each window or batch of them.
Result<PplResult> ScoreText(const PplRunners& runners, const PplText& text, const PplOptions& options,
                            const std::function<void(const PplResult&)>& on_window);

}  // namespace infinigen
