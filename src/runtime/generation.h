// Generation: many prompts through one engine, as a client of its request interface. Submits a few at a time, turns
// tokens into text, cuts at stop strings, and ends early when the caller cancels. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "engine/request.h"
#include "model/executor.h"
#include "runtime/callbacks.h"
#include "runtime/report.h"
#include "text/tokenizer.h"

namespace infinigen {

struct Job {
  std::vector<int32_t> prompt;  // already checked against vocabulary and context
  int64_t max_new_tokens = 0;
  SamplingOptions sampling;
};

struct Outcome {
  FinishReason reason = FinishReason::kCancelled;
  std::string error;  // one line, with kError
  std::vector<int32_t> tokens;
  int64_t reused_tokens = 0;  // of the prompt, not computed again
  std::string text;           // valid UTF-8; empty without a tokenizer
  Timing timing;
};

struct GenerationOptions {
  const Tokenizer* tokenizer = nullptr;  // null: the display text of a token is its id
  std::vector<std::string> stops;
  bool ignore_eos = false;
  bool hold_rows = false;  // see Request
  Callbacks callbacks;     // progress of prefills; cancelled ends everything
  // New text of one job, as it comes. False ends everything.
  std::function<bool(size_t job, std::string_view text)> on_text;
  std::function<bool(size_t job, const Outcome& outcome)> on_done;
};

struct GenerationResult {
  std::vector<Outcome> outcomes;  // one per job, in order; jobs that never ran are kCancelled
  Timing timing;                  // of the engine's steps; load_s is the caller's
  PoolUse pool;
  bool interrupted = false;
};

GenerationResult RunGeneration(Executor& executor, const std::vector<Job>& jobs, const GenerationOptions& options);
// With an engine that lives longer; `timing` then covers all that it ever did.
GenerationResult RunGeneration(Engine& engine, const std::vector<Job>& jobs, const GenerationOptions& options);

}  // namespace infinigen
