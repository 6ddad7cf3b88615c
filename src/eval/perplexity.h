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
#include "eval/prediction_score.h"
#include "eval/selection_overlap.h"
#include "eval/session.h"
#include "eval/windows.h"
#include "runtime/kv_request.h"
#include "runtime/report.h"

namespace infinigen {

struct PplOptions {
  int64_t context = 0;  // maximum rows of a window; ≥ 2
  int64_t from = 0;     // rows of a window that are a dense prompt; predictions of later rows are scored; < context
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

// A number with its standard error, which is NaN for fewer than two windows.
struct Estimate {
  double value = 0, stderror = 0;
};

struct PplResult {
  // Sums over the scored tokens of each finished window, in order.
  std::vector<double> window_nll;        // Σ −ln p
  std::vector<double> window_other_nll;  // the same of the other run; 0 without a comparison
  std::vector<double> window_kld;
  std::vector<int64_t> window_tokens;  // scored tokens

  int64_t windows = 0;           // windows to score; more than window_nll.size() if cancelled
  int64_t tokens = 0;            // scored tokens
  double seconds = 0;            // wall time without loading
  Timing timing;                 // of the measured method only
  double kld = 0;                // Σ KL(other ‖ method) over the scored predictions; 0 without a comparison
  int64_t same_top = 0;          // predictions with the same most likely token as the other run
  int64_t clear = 0;             // clear predictions of the other run
  int64_t same_clear = 0;        // clear predictions with the same most likely token
  std::vector<PplChunk> chunks;  // sums over the finished windows; empty unless requested
  PoolUse pool;

  bool complete() const { return std::ssize(window_nll) == windows; }
  // Means over the scored tokens; NaN if nothing was scored.
  double nll() const;
  double ppl() const;
  double other_nll() const;
  double kld_mean() const;
  // With standard errors over windows: the perplexity's change against the other run in percent, and kld_mean.
  Estimate ppl_change() const;
  Estimate kld_estimate() const;
  double top1_agree() const;
  double clear_agree() const;
  double tokens_per_s() const { return seconds > 0 ? static_cast<double>(tokens) / seconds : 0; }
};

// Σ sums / Σ tokens over windows, with its standard error as an estimate from windows drawn at random: windows differ,
// and the tokens of one window are not independent. For windows of equal length it is the deviation of their means
// divided by √windows.
Estimate MeanOverWindows(std::span<const double> sums, std::span<const int64_t> tokens);

// Scores windows of a text. `on_window` receives the result so far after each window or batch of windows.
Result<PplResult> ScoreWindows(const PplRunners& runners, const PplText& text, std::span<const PplWindow> windows,
                               const PplOptions& options, const Callbacks& callbacks,
                               const std::function<void(const PplResult&)>& on_window);
// The same for all windows of a text.
Result<PplResult> ScoreText(const PplRunners& runners, const PplText& text, const PplOptions& options,
                            const Callbacks& callbacks, const std::function<void(const PplResult&)>& on_window);

// ---- the evaluation ----

struct PplSource {
  std::string bytes;
  std::string name;           // for messages
  int64_t limit_tokens = 0;   // number of tokens to use; 0: all
  int64_t limit_windows = 0;  // number of windows; 0: all
};

// The windows of one source.
struct PplFile {
  std::string name;
  size_t first = 0, count = 0;
};

// Texts ready to be scored. A window has tokens of one source only.
struct PplTask {
  PplText text;  // the tokens of all sources, one after the other
  PplOptions options;
  std::vector<PplWindow> windows;  // at least one of each source
  std::vector<PplFile> files;
  int64_t rows = 0;  // of the longest window
};

// Tokens of a window: `asked`, or if that is 0 the model's context, at most 8192.
Result<int64_t> ChooseWindow(const ModelConfig& config, int64_t asked);
Result<PplTask> MakePplTask(const Model& model, std::span<const PplSource> sources, const PplOptions& options);
// Refuses methods that need a prompt if windows have none (from = 0).
Status CheckScorable(const KvRequest& kv, int64_t from);

// The results of `eval ppl`.
struct PplReport {
  PplResult result;
  int64_t bytes = 0;         // length of the scored text
  int64_t kept_windows = 0;  // windows whose predictions of full came from the cache
  double selection_overlap = std::numeric_limits<double>::quiet_NaN();
  std::optional<StepOverlap> step_overlap;

  double bits_per_byte() const;
};
// Precondition: the session was started for the task's rows, with a comparison. `selection_overlap` needs a session
// that compares with the CPU; both overlaps need a method that evicts nothing. `full_cache_bytes` > 0: the predictions
// of full are kept in the user's cache, in so many bytes (eval/full_cache.h).
Result<PplReport> MeasurePpl(const EvalSession& session, const PplTask& task, bool selection_overlap, bool step_overlap,
                             uint64_t full_cache_bytes);

nlohmann::ordered_json PplJson(const EvalSession& session, const PplTask& task, const PplReport& report);
std::string PplSummary(const EvalSession& session, const PplTask& task, const PplReport& report);

}  // namespace infinigen
