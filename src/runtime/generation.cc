#include "runtime/generation.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <utility>

#include "base/machine.h"
#include "base/size.h"
#include "engine/engine.h"
#include "text/text_stream.h"

namespace infinigen {
namespace {

class Run {
 public:
  Run(Engine& engine, const std::vector<Job>& jobs, const GenerationOptions& options)
      : executor_(engine.executor()), jobs_(jobs), options_(options), engine_(engine) {
    result_.outcomes.resize(jobs.size());
  }

  GenerationResult Go() && {
    bool busy = true;
    while (busy || next_ < jobs_.size()) {
      if (!ending_ && options_.callbacks.Cancelled()) {
        result_.interrupted = true;
        ending_ = true;
      }
      if (ending_) {
        engine_.CancelAll();
        next_ = jobs_.size();
      }
      SubmitSome();
      const uint64_t pool_bytes = executor_.instruments().pool_bytes();
      if (pool_bytes > 0) result_.pool.bytes = pool_bytes;
      busy = engine_.RunOnce();
    }
    result_.pool.bytes = std::max(result_.pool.bytes, executor_.instruments().pool_bytes());
    result_.pool.peak_bytes = executor_.instruments().pool_peak_bytes();
    if (result_.pool.bytes == 0) result_.pool.bytes = result_.pool.peak_bytes;  // all jobs ended within one turn
    const EngineStats& stats = engine_.stats();
    result_.timing = {.load_s = 0,
                      .prefill_tokens = stats.prefill_tokens,
                      .prefill_s = stats.prefill_s,
                      .decode_tokens = stats.decode_tokens,
                      .decode_s = stats.decode_s,
                      .step_ms = stats.step_ms};
    return std::move(result_);
  }

 private:
  struct Live {
    TextStream stream;
    Clock::time_point last_token;
  };

  // Submits no more jobs than can run at once: each request holds sampling memory of the size of the vocabulary.
  void SubmitSome() {
    const size_t most = static_cast<size_t>(executor_.options().max_batch);
    while (next_ < jobs_.size() && submitted_ - done_ < most) Submit(next_++);
  }

  void Submit(size_t index) {
    const Job& job = jobs_[index];
    ++submitted_;
    auto live = std::make_shared<Live>(Live{TextStream(options_.tokenizer, options_.stops), {}});
    Request request{.prompt = job.prompt,
                    .max_new_tokens = job.max_new_tokens,
                    .sampling = job.sampling,
                    .ignore_eos = options_.ignore_eos,
                    .hold_rows = options_.hold_rows,
                    .on_token = [this, index, live](RequestId, int32_t token) { return OnToken(index, *live, token); },
                    .on_prefill =
                        [this](RequestId, const PrefillProgress& progress) {
                          options_.callbacks.Progress({.kind = WorkKind::kPrefill,
                                                       .done = progress.units_done,
                                                       .total = progress.units,
                                                       .tokens = progress.tokens});
                        },
                    .on_done = [this, index, live](RequestId, const RequestResult& r) { OnDone(index, *live, r); }};
    if (Result<RequestId> id = engine_.Submit(std::move(request)); !id.ok()) {
      result_.outcomes[index].reason = FinishReason::kError;
      result_.outcomes[index].error = id.error().message;
      ++done_;
      ending_ = true;
    }
  }

  bool OnToken(size_t index, Live& live, int32_t token) {
    Outcome& outcome = result_.outcomes[index];
    const Clock::time_point now = Clock::now();
    if (!outcome.tokens.empty())
      outcome.timing.step_ms.push_back(std::chrono::duration<float, std::milli>(now - live.last_token).count());
    live.last_token = now;
    outcome.tokens.push_back(token);
    // Measured here because the last turn releases the rows before it returns.
    result_.pool.bytes = std::max(result_.pool.bytes, executor_.instruments().pool_bytes());
    Show(index, live.stream.Push(token));
    return !ending_ && !live.stream.stopped();
  }

  void OnDone(size_t index, Live& live, const RequestResult& done) {
    Outcome& outcome = result_.outcomes[index];
    Show(index, live.stream.Finish());
    outcome.reason = done.reason;
    outcome.error = done.error;
    outcome.timing.prefill_s = done.prefill_s;
    outcome.reused_tokens = done.reused_tokens;
    const int64_t computed = static_cast<int64_t>(jobs_[index].prompt.size()) - done.reused_tokens;
    outcome.timing.prefill_tokens = done.prefill_s > 0 ? computed : 0;
    outcome.timing.decode_s = done.decode_s;
    outcome.timing.decode_tokens = static_cast<int64_t>(outcome.timing.step_ms.size());
    ++done_;
    if (options_.on_done && !options_.on_done(index, outcome)) ending_ = true;
    if (done.reason == FinishReason::kError) ending_ = true;
  }

  void Show(size_t index, const std::string& text) {
    if (text.empty()) return;
    if (options_.tokenizer != nullptr) result_.outcomes[index].text += text;
    if (!options_.on_text) return;
    if (!options_.on_text(index, text)) ending_ = true;
  }

  Executor& executor_;
  const std::vector<Job>& jobs_;
  const GenerationOptions& options_;
  Engine& engine_;
  GenerationResult result_;
  size_t next_ = 0;  // first job that was not submitted
  size_t submitted_ = 0;
  size_t done_ = 0;
  bool ending_ = false;
};

// 1/8 of the context is reserved for the answer; the oldest turns are dropped when the prompt needs more than the rest.
constexpr int64_t kAnswerShare = 8;
// Turns are dropped until 1/4 of the context is free. All rows after the system message are then computed again, so
// this must not happen in every turn.
constexpr int64_t kFreedShare = 4;

}  // namespace

GenerationResult RunGeneration(Executor& executor, const std::vector<Job>& jobs, const GenerationOptions& options) {
  Engine engine(executor);
  return RunGeneration(engine, jobs, options);
}

GenerationResult RunGeneration(Engine& engine, const std::vector<Job>& jobs, const GenerationOptions& options) {
  return Run(engine, jobs, options).Go();
}

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
      return Invalid("the message makes a prompt of {} tokens, but the context holds {}; shorten it{}", count, context,
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
  jobs[0].sampling.seed += static_cast<uint64_t>(turns_);  // a repeated question may get a different answer
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
    text += fmt::format("last answer: prompt {} tokens, {} of them cached, {} computed at {:.0f} tok/s\n",
                        last_.prompt_tokens, last_.outcome.reused_tokens, timing.prefill_tokens, timing.prefill_rate());
    text += fmt::format("             {} tokens", last_.outcome.tokens.size());
    if (!timing.step_ms.empty())
      text += fmt::format(" at {:.1f} tok/s ({:.2f} ms a token, p99 {:.2f})", timing.decode_rate(),
                          Mean(timing.step_ms), Percentile(timing.step_ms, 99));
    text += "\n";
  }
  text += fmt::format("so far:      {} answer{}, {} tokens generated; context {} of {} tokens in use\n", turns_,
                      turns_ == 1 ? "" : "s", generated_tokens_, context_tokens_, executor_.options().max_tokens);
  text += fmt::format("memory:      peak {}, KV pool {}\n", FormatSize(PeakResidentBytes()),
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
      "entries in {}, {} per token; pool {} now, peak {}, {} for the whole context, limit {}\n",
      options.method.preset, DescribeMethod(options), Name(options.kv_type), FormatSize(plan.pool_bytes_per_token),
      FormatSize(instruments.pool_bytes()), FormatSize(instruments.pool_peak_bytes()), FormatSize(plan.pool_bytes),
      FormatSize(options.pool_limit_bytes));
}

}  // namespace infinigen
