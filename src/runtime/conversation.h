// A conversation with a model: messages in, answers out as they are made, the rows of what was said kept from turn to
// turn. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "engine/engine.h"
#include "runtime/callbacks.h"
#include "runtime/generation.h"
#include "runtime/model.h"
#include "text/chat_prompt.h"

namespace infinigen {

struct ConversationOptions {
  std::string system;  // empty: no such message
  int64_t max_new_tokens = 0;
  SamplingOptions sampling;
  bool ignore_eos = false;
  bool stats_per_layer = false;  // in DescribeStats
  Callbacks callbacks;           // progress of long prompts; cancelled ends an answer
};

struct Answer {
  Outcome outcome;
  int64_t prompt_tokens = 0;
  int64_t dropped_turns = 0;  // the oldest, because they no longer fitted
  bool interrupted = false;
};

class Conversation {
 public:
  // Everything passed outlives it. The executor has room for one sequence of its whole context.
  Conversation(const Model& model, Executor& executor, const ChatPrompt& prompt, ConversationOptions options);

  // Says `message` and waits for the answer, which goes to `on_text` as it comes (false ends it).
  // Message and answer become part of the conversation, also when the answer was interrupted, but not when nothing was
  // answered at all. An error (a message larger than the context, a template's refusal) leaves the conversation as it
  // was.
  Result<Answer> Say(std::string message, const std::function<bool(std::string_view text)>& on_text);

  // Back to the beginning.
  void Clear();

  // For people: several lines each.
  std::string DescribeStats() const;
  std::string DescribeKv() const;

 private:
  // The prompt of messages_; drops the oldest turns when it would fill the context. Counts them in `dropped`.
  Result<std::vector<int32_t>> Prompt(int64_t* dropped);

  const Model& model_;
  Executor& executor_;
  const ChatPrompt& prompt_;
  const ConversationOptions options_;
  Engine engine_;
  std::vector<ChatMessage> messages_;  // [system] then user and assistant in turn

  int64_t turns_ = 0;           // answered since the start, cleared ones included
  int64_t context_tokens_ = 0;  // of the conversation as the model last saw it
  int64_t generated_tokens_ = 0;
  Answer last_;
};

}  // namespace infinigen
