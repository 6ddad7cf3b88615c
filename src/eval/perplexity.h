// Perplexity of a text under a KV method, and how far the method's predictions are from those that it is compared with
// (KL divergence, most likely token). eval/windows.h says how the text is cut and read. Prepare with MakePplTask, start
// the session, run MeasurePpl, report. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "eval/selection_overlap.h"
#include "eval/session.h"
#include "eval/windows.h"
#include "runtime/kv_request.h"
#include "runtime/report.h"

namespace infinigen {

struct PplOptions {
  int64_t context = 0;  // rows of a window at most; ≥ 2
  PplMode mode = PplMode::kBatched;
  int64_t chunk = 0;  // > 0: sums are also kept for every so many tokens along a window
};

// Sums over the same stretch of every window: what a method loses as the context grows.
struct PplChunk {
  double nll = 0, kld = 0;
  int64_t tokens = 0;  // scored
};

// A prediction is clear where the best logit is ahead of the second by more than this: less may be rounding.
inline constexpr float kClearGap = 0.05f;

struct PplResult {
  std::vector<double> window_nll;  // Σ −ln p of each finished window's scored tokens, in order
  int64_t windows = 0;             // to be scored; more than window_nll has: cancelled
  int64_t tokens = 0;              // scored
  double seconds = 0;              // everything but the loading
  Timing timing;                   // of the model alone
  double kld = 0;                  // Σ KL(other ‖ method) of the scored predictions; 0: nothing is compared
  int64_t same_top = 0;            // predictions with the same most likely token as the other
  int64_t clear = 0;               // predictions of the other that are clear
  int64_t same_clear = 0;          // clear predictions with the same most likely token
  std::vector<PplChunk> chunks;    // over the finished windows; empty unless asked for
  PoolUse pool;

  bool complete() const { return std::ssize(window_nll) == windows; }
  // Means over the scored tokens; NaN when nothing was scored.
  double nll() const;
  double ppl() const;
  double kld_mean() const;
  double top1_agree() const;
  double clear_agree() const;
  double tokens_per_s() const { return seconds > 0 ? static_cast<double>(tokens) / seconds : 0; }
};

// −ln p(target), from one row of logits. The largest logit is subtracted first; the sum is kept in double.
double NegativeLogLikelihood(std::span<const float> logits, int32_t target);

// KL(p ‖ q) of the distributions of two rows of logits, in nats.
double KlDivergence(std::span<const float> p, std::span<const float> q);

// Scores a text. `on_window` sees the result so far, after each window or batch of windows.
Result<PplResult> ScoreText(const PplRunners& runners, const PplText& text, const PplOptions& options,
                            const Callbacks& callbacks, const std::function<void(const PplResult&)>& on_window);

// ---- the evaluation ----

struct PplSource {
  std::string bytes;
  std::string name;          // for messages
  int64_t limit_tokens = 0;  // only the first so many; 0: all
};

// A text ready to be scored.
struct PplTask {
  PplText text;
  PplOptions options;
  std::vector<PplWindow> windows;  // at least one
  int64_t rows = 0;                // of the longest window
};

// Tokens of a window: `asked` unless it is 0, else what the model was made for, at most 8192.
Result<int64_t> ChooseWindow(const ModelConfig& config, int64_t asked);
Result<PplTask> MakePplTask(const Model& model, const PplSource& source, const PplOptions& options);
// Refuses methods that need a prompt: every window is read from an empty cache.
Status CheckScorable(const KvRequest& kv);

// What `eval ppl` found.
struct PplReport {
  PplResult result;
  int64_t bytes = 0;  // that the scored tokens spell
  double selection_overlap = std::numeric_limits<double>::quiet_NaN();
  std::optional<StepOverlap> step_overlap;

  double bits_per_byte() const;
};
// Precondition: the session was started for the task's rows, with a comparison. `selection_overlap` needs a session
// that compares with the CPU; both overlaps need a method that evicts nothing.
Result<PplReport> MeasurePpl(const EvalSession& session, const PplTask& task, bool selection_overlap,
                             bool step_overlap);

// `file`: as the user names it.
nlohmann::ordered_json PplJson(const EvalSession& session, const PplTask& task, const PplReport& report,
                               const std::string& file);
std::string PplSummary(const EvalSession& session, const PplTask& task, const PplReport& report);

}  // namespace infinigen
