// Perplexity of a text under a KV method, and the distance of its predictions from those of a second run (KL
// divergence, agreement of the most likely token). eval/windows.h describes how the text is cut and read. Call
// MakePplTask, start the session, call MeasurePpl, and report. One thread.
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
  int64_t context = 0;  // maximum rows of a window; ≥ 2
  PplMode mode = PplMode::kBatched;
  int64_t chunk = 0;  // > 0: also sum over every `chunk` tokens along a window
  // If set, receives the [vocab] logits of every scored token; in the order of the text if the mode is kBatched.
  std::function<void(std::span<const float> logits)> on_logits;
};

// Sums over the same part of every window, which show how a method's loss changes as the context grows.
struct PplChunk {
  double nll = 0, kld = 0;
  int64_t tokens = 0;  // scored
};

// A prediction is clear if the best logit exceeds the second by more than this. Smaller differences may be rounding.
inline constexpr float kClearGap = 0.05f;

struct PplResult {
  std::vector<double> window_nll;  // Σ −ln p over the scored tokens of each finished window, in order
  int64_t windows = 0;             // windows to score; more than window_nll.size() if cancelled
  int64_t tokens = 0;              // scored tokens
  double seconds = 0;              // wall time without loading
  Timing timing;                   // of the measured method only
  double kld = 0;                  // Σ KL(other ‖ method) over the scored predictions; 0 without a comparison
  int64_t same_top = 0;            // predictions with the same most likely token as the other run
  int64_t clear = 0;               // clear predictions of the other run
  int64_t same_clear = 0;          // clear predictions with the same most likely token
  std::vector<PplChunk> chunks;    // sums over the finished windows; empty unless requested
  PoolUse pool;

  bool complete() const { return std::ssize(window_nll) == windows; }
  // Means over the scored tokens; NaN if nothing was scored.
  double nll() const;
  double ppl() const;
  double kld_mean() const;
  double top1_agree() const;
  double clear_agree() const;
  double tokens_per_s() const { return seconds > 0 ? static_cast<double>(tokens) / seconds : 0; }
};

// −ln p(target) from one row of logits. Subtracts the largest logit first and sums in double.
double NegativeLogLikelihood(std::span<const float> logits, int32_t target);

// KL(p ‖ q) of the distributions that two rows of logits define, in nats.
double KlDivergence(std::span<const float> p, std::span<const float> q);

// Scores a text. `on_window` receives the result so far after each window or batch of windows.
Result<PplResult> ScoreText(const PplRunners& runners, const PplText& text, const PplOptions& options,
                            const Callbacks& callbacks, const std::function<void(const PplResult&)>& on_window);

// ---- the evaluation ----

struct PplSource {
  std::string bytes;
  std::string name;          // for messages
  int64_t limit_tokens = 0;  // number of tokens to score; 0: all
};

// A text ready to be scored.
struct PplTask {
  PplText text;
  PplOptions options;
  std::vector<PplWindow> windows;  // at least one
  int64_t rows = 0;                // of the longest window
};

// Tokens of a window: `asked`, or if that is 0 the model's context, at most 8192.
Result<int64_t> ChooseWindow(const ModelConfig& config, int64_t asked);
Result<PplTask> MakePplTask(const Model& model, const PplSource& source, const PplOptions& options);
// Refuses methods that need a prompt, because every window starts with an empty cache.
Status CheckScorable(const KvRequest& kv);

// The results of `eval ppl`.
struct PplReport {
  PplResult result;
  int64_t bytes = 0;  // length of the scored text
  double selection_overlap = std::numeric_limits<double>::quiet_NaN();
  std::optional<StepOverlap> step_overlap;

  double bits_per_byte() const;
};
// Precondition: the session was started for the task's rows, with a comparison. `selection_overlap` needs a session
// that compares with the CPU; both overlaps need a method that evicts nothing.
Result<PplReport> MeasurePpl(const EvalSession& session, const PplTask& task, bool selection_overlap,
                             bool step_overlap);

// `file`: the path that the user gave.
nlohmann::ordered_json PplJson(const EvalSession& session, const PplTask& task, const PplReport& report,
                               const std::string& file);
std::string PplSummary(const EvalSession& session, const PplTask& task, const PplReport& report);

}  // namespace infinigen
