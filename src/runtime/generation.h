// Text generation on one engine, as a client of its request interface. RunGeneration takes a list of prompts: it
// submits a few at a time, turns tokens into text, cuts at stop strings, and stops when the caller cancels.
// Conversation holds a chat: messages in, answers out, with the cache rows held from turn to turn. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "engine/engine.h"
#include "engine/request.h"
#include "model/executor.h"
#include "runtime/callbacks.h"
#include "runtime/model.h"
#include "runtime/report.h"
#include "text/chat_prompt.h"
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
  int64_t reused_tokens = 0;  // prompt tokens whose entries were already cached
  std::string text;           // valid UTF-8; empty without a tokenizer
  Timing timing;
};

struct GenerationOptions {
  const Tokenizer* tokenizer = nullptr;  // null: on_text gets token ids as text
  std::vector<std::string> stops;
  bool ignore_eos = false;
  bool hold_rows = false;  // see Request
  Callbacks callbacks;     // prefill progress; `cancelled` ends all jobs
  // Receives new text of one job as it is generated. Returning false ends all jobs.
  std::function<bool(size_t job, std::string_view text)> on_text;
  std::function<bool(size_t job, const Outcome& outcome)> on_done;
};

struct GenerationResult {
  std::vector<Outcome> outcomes;  // one per job, in order; jobs that never ran are kCancelled
  Timing timing;                  // sums over the engine's steps; the caller sets load_s
  PoolUse pool;
  bool interrupted = false;
};

GenerationResult RunGeneration(Executor& executor, const std::vector<Job>& jobs, const GenerationOptions& options);
// Uses an existing engine; `timing` then covers everything that this engine has run.
GenerationResult RunGeneration(Engine& engine, const std::vector<Job>& jobs, const GenerationOptions& options);

// ---- conversations ----

struct ConversationOptions {
  std::string system;  // empty: no system message
  int64_t max_new_tokens = 0;
  SamplingOptions sampling;
  bool ignore_eos = false;
  bool stats_per_layer = false;  // in DescribeStats
  Callbacks callbacks;           // progress of long prompts; `cancelled` ends an answer
};

struct Answer {
  Outcome outcome;
  int64_t prompt_tokens = 0;
  int64_t dropped_turns = 0;  // oldest turns removed because the context was full
  bool interrupted = false;
};

class Conversation {
 public:
  // All arguments outlive it. The executor has room for one sequence of its whole context.
  Conversation(const Model& model, Executor& executor, const ChatPrompt& prompt, ConversationOptions options);

  // Sends `message` and waits for the answer, which is passed to `on_text` as it is generated (false ends it). Message
  // and answer join the conversation, even if the answer was interrupted, but not if it is empty for that reason. On an
  // error (message longer than the context, refused by the template) the conversation is unchanged.
  Result<Answer> Say(std::string message, const std::function<bool(std::string_view text)>& on_text);

  // Removes all messages except the system message.
  void Clear();

  // Several lines for people each.
  std::string DescribeStats() const;
  std::string DescribeKv() const;

 private:
  // The tokens of messages_. Drops the oldest turns if they would fill the context, and adds their number to `dropped`.
  Result<std::vector<int32_t>> Prompt(int64_t* dropped);

  const Model& model_;
  Executor& executor_;
  const ChatPrompt& prompt_;
  const ConversationOptions options_;
  Engine engine_;
  std::vector<ChatMessage> messages_;  // [system,] then user and assistant alternating

  int64_t turns_ = 0;           // answers since the start, including those before Clear
  int64_t context_tokens_ = 0;  // tokens of the conversation after the latest answer
  int64_t generated_tokens_ = 0;
  Answer last_;
};

}  // namespace infinigen
