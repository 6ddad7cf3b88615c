// A text made ready to be scored: its tokens, its windows, and the rows that they take. Shared by the evaluations that
// measure perplexity.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/eval.h"
#include "cli/eval_perplexity.h"

namespace infinigen {

struct PplSource {
  std::string bytes;
  std::string name;          // as messages call it
  int64_t limit_tokens = 0;  // only the first so many; 0: all
};

struct PplTask {
  PplText text;
  PplOptions options;
  std::vector<PplWindow> windows;  // at least one
  int64_t rows = 0;                // of the longest window
};

// Tokens of a window: `flag` unless it is 0, else what the model was made for, at most 8192.
Result<int64_t> ChooseWindow(const ModelConfig& config, int64_t flag);

Result<PplTask> MakePplTask(const EvalSession& session, const PplSource& source, const PplOptions& options);

// Methods that cannot be scored: those that need a prompt, where every window is read from an empty cache.
Status CheckScorable(const KvRequest& kv);

}  // namespace infinigen
