#include "runtime/conversation.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/machine.h"
#include "base/size.h"
#include "runtime/describe.h"

namespace infinigen {
namespace {

// An answer gets at least this share of the context to itself: beyond it the oldest turns go.
constexpr int64_t kAnswerShare = 8;
// When turns go, they go until this share is free. Each time the rows behind the system message are computed again, so
// that must not happen in every turn.
constexpr int64_t kFreedShare = 4;

}  // namespace

Conversation::Conversation(const Model& model, Executor& executor, const ChatPrompt& prompt,
                           ConversationOptions options)
    : model_(model), executor_(executor), prompt_(prompt), options_(std::move(options)), engine_(executor) {
  Clear();
}

void Conversation::Clear() {
  messages_.clear();
  if (!options_.system.empty()) messages_.push_back({"system", options_.system});
  engine_.DropHeld();
  context_tokens_ = 0;
}

Result<std::vector<int32_t>> Conversation::Prompt(int64_t* dropped) {
  const int64_t context = executor_.options().max_tokens;
  const ptrdiff_t first = options_.system.empty() ? 0 : 1;
  int64_t most = context - std::min(options_.max_new_tokens, context / kAnswerShare);
  while (true) {
    ASSIGN_OR_RETURN(std::vector<int32_t> ids, prompt_.Encode(messages_));
    const int64_t count = static_cast<int64_t>(ids.size());
    const bool alone = static_cast<ptrdiff_t>(messages_.size()) == first + 1;
    if (count <= most || (alone && count <= context)) return ids;
    if (alone)
      return Invalid("the message makes a prompt of {} tokens, the context holds {}; shorten it{}", count, context,
                     context < model_.config.max_positions ? " or raise --ctx" : "");
    messages_.erase(messages_.begin() + first, messages_.begin() + first + 2);  // a message and its answer
    ++*dropped;
    most = context - context / kFreedShare;
  }
}

Result<Answer> Conversation::Say(std::string message, const std::function<bool(std::string_view text)>& on_text) {
  const std::vector<ChatMessage> before = messages_;
  Answer answer;
  messages_.push_back({"user", std::move(message)});
  Result<std::vector<int32_t>> ids = Prompt(&answer.dropped_turns);
  if (!ids.ok()) {
    messages_ = before;
    return ids.error();
  }
  answer.prompt_tokens = static_cast<int64_t>(ids->size());
  std::vector<Job> jobs(1);
  jobs[0] = {.prompt = std::move(*ids), .max_new_tokens = options_.max_new_tokens, .sampling = options_.sampling};
  jobs[0].sampling.seed += static_cast<uint64_t>(turns_);  // the same question twice may get two answers
  const GenerationOptions options{
      .tokenizer = model_.tokenizer.get(),
      .stops = {},
      .ignore_eos = options_.ignore_eos,
      .hold_rows = true,
      .callbacks = options_.callbacks,
      .on_text = [&](size_t, std::string_view text) { return on_text(text); },
      .on_done = {},
  };
  GenerationResult result = RunGeneration(engine_, jobs, options);
  answer.outcome = std::move(result.outcomes[0]);
  answer.interrupted = result.interrupted;
  if (answer.outcome.reason == FinishReason::kError) {
    messages_ = before;
    return Invalid("{}", answer.outcome.error);
  }
  if (answer.interrupted && answer.outcome.text.empty()) {
    messages_ = before;
    return answer;
  }
  messages_.push_back({"assistant", answer.outcome.text});
  ++turns_;
  generated_tokens_ += static_cast<int64_t>(answer.outcome.tokens.size());
  context_tokens_ = answer.prompt_tokens + static_cast<int64_t>(answer.outcome.tokens.size());
  last_ = answer;
  return answer;
}

std::string Conversation::DescribeStats() const {
  Instruments& instruments = executor_.instruments();
  std::string text;
  if (turns_ > 0) {
    const Timing& timing = last_.outcome.timing;
    text += fmt::format("last answer: prompt {} tokens, {} of them kept from before, {} computed at {:.0f} tok/s\n",
                        last_.prompt_tokens, last_.outcome.reused_tokens, timing.prefill_tokens, timing.prefill_rate());
    text += fmt::format("             {} tokens", last_.outcome.tokens.size());
    if (!timing.step_ms.empty())
      text += fmt::format(" at {:.1f} tok/s ({:.2f} ms a token, p99 {:.2f})", timing.decode_rate(),
                          Mean(timing.step_ms), Percentile(timing.step_ms, 99));
    text += "\n";
  }
  text += fmt::format("so far:      {} answer{}, {} tokens generated; context {} of {} tokens in use\n", turns_,
                      turns_ == 1 ? "" : "s", generated_tokens_, context_tokens_, executor_.options().max_tokens);
  text += fmt::format("memory:      {} at most, KV pool {}\n", FormatSize(PeakResidentBytes()),
                      FormatSize(instruments.pool_bytes()));
  const KvStats stats = instruments.Stats();
  text += AttendedWords(stats, executor_.options());
  return text + (options_.stats_per_layer ? LayerTable(stats) : "");
}

std::string Conversation::DescribeKv() const {
  const ExecutorOptions& options = executor_.options();
  const MemoryPlan plan = PlanMemory(model_.config, options, 0);
  const Instruments& instruments = executor_.instruments();
  return fmt::format(
      "--kv {}: {}\n"
      "entries in {}, {} a token; pool {} now, {} at most, {} for the whole context, limit {}\n",
      options.method.preset, DescribeMethod(options), Name(options.kv_type), FormatSize(plan.pool_bytes_per_token),
      FormatSize(instruments.pool_bytes()), FormatSize(instruments.pool_peak_bytes()), FormatSize(plan.pool_bytes),
      FormatSize(options.pool_limit_bytes));
}

}  // namespace infinigen
