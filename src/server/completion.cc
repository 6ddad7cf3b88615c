#include "server/completion.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

namespace infinigen {
namespace {

using Json = nlohmann::ordered_json;

ApiError EngineError(const Error& error) {
  if (error.kind == ErrorKind::kExhausted)
    return {.status = 429,
            .message = error.message,
            .type = "rate_limit_error",
            .code = "queue_full",
            .parameter = {},
            .retry_after_s = 1};
  return {.status = 400, .message = error.message};
}

// If the context is so short that the engine selects nothing, every request attends to everything.
RequestKv Kv(const KvWish& wish, const KvMethod& method) {
  if (!method.selects()) return {};
  return {
      .full = wish.full.value_or(false), .alpha = wish.alpha, .cap = wish.cap, .mass = wish.mass, .tail = wish.tail};
}

}  // namespace

Completion::Completion(CompletionContext context, std::shared_ptr<HttpExchange> exchange, AnswerHead head,
                       CompletionRequest request, std::vector<std::vector<int32_t>> prompts,
                       std::vector<std::string> echoes)
    : context_(std::move(context)),
      exchange_(std::move(exchange)),
      head_(std::move(head)),
      request_(std::move(request)),
      prompts_(std::move(prompts)) {
  choices_.reserve(prompts_.size() * static_cast<size_t>(request_.n));
  for (size_t prompt = 0; prompt < prompts_.size(); ++prompt) {
    usage_.prompt_tokens += static_cast<int64_t>(prompts_[prompt].size());
    for (int64_t i = 0; i < request_.n; ++i) {
      Choice choice{.prompt = prompt,
                    .text = TextStream(context_.tokenizer, request_.stops),
                    .echo = TextStream(context_.tokenizer, {})};
      choice.answer.index = static_cast<int64_t>(choices_.size());
      choice.answer.logprobs = request_.logprobs;
      if (request_.echo) choice.answer.text = echoes[prompt];
      if (context_.tool_form != ToolForm::kNone)
        choice.calls.emplace(context_.tool_form, request_.tool_choice == ToolChoice::kRequired);
      if (request_.scores()) Echo(choice, {.chosen = {.token = prompts_[prompt][0]}}, /*known=*/false);
      choices_.push_back(std::move(choice));
    }
  }
}

template <class F>
bool Completion::Guarded(F&& f) {
  try {
    f();
    return true;
  } catch (const std::exception& caught) {
    try {
      FailAll(ExceptionError(&caught));
    } catch (const std::exception&) {  // no memory for an answer either: the connection closes
      if (!std::exchange(over_, true)) exchange_->Abandon();
      CancelRest();
    }
    return false;
  }
}

void Completion::CancelRest() {
  for (const Choice& choice : choices_)
    if (choice.submitted && !choice.done) engine_->Cancel(choice.id);
}

Request Completion::MakeRequest(size_t index) {
  const auto self = shared_from_this();
  Choice& choice = choices_[index];
  Request request{.prompt = prompts_[choice.prompt],
                  .max_new_tokens = request_.max_tokens,
                  .sampling = request_.sampling,
                  .kv = Kv(request_.kv, engine_->executor().options().method),
                  .ignore_eos = request_.ignore_eos,
                  .cache_salt = context_.cache_salt,
                  .client = context_.client};
  // Each of the n choices has its own seed, so it equals the answer to a request with that seed alone.
  request.sampling.seed += static_cast<uint64_t>(index) % static_cast<uint64_t>(request_.n);
  if (context_.grammar != nullptr) request.constraint = context_.grammar->Start();
  request.on_prefill = [self, &choice](RequestId, const PrefillProgress& progress) {
    self->Guarded([&] { self->OnStart(choice, progress.reused); });
  };
  if (request_.scores()) {
    request.score = {.scores = true,
                     .steps_from = request_.kv.steps.value_or(false) ? request_.kv.score_from : INT64_MAX};
    request.on_scored = [self, &choice](RequestId, int64_t, const TokenLogprobs& values) {
      self->Guarded([&] { self->Echo(choice, values, /*known=*/true); });
    };
  }
  if (request_.logprobs)
    request.on_logprobs = [self, &choice](RequestId, const TokenLogprobs& values) {
      self->Guarded([&] { choice.last = values; });
    };
  request.on_token = [self, &choice](RequestId, int32_t token) {
    bool goes_on = false;
    self->Guarded([&] { goes_on = self->OnToken(choice, token); });
    return goes_on;
  };
  request.on_done = [self, &choice](RequestId, const RequestResult& result) {
    self->Guarded([&] { self->OnDone(choice, result); });
  };
  return request;
}

void Completion::Submit(Engine& engine) {
  engine_ = &engine;
  for (size_t i = 0; i < choices_.size(); ++i) {
    Choice& choice = choices_[i];
    if (over_) {  // an earlier choice was refused: release the places of the rest
      context_.metrics.Finished(FinishReason::kCancelled, /*started=*/false, 0);
      continue;
    }
    std::optional<Result<RequestId>> submitted;
    if (!Guarded([&] { submitted = engine.Submit(MakeRequest(i)); })) {
      context_.metrics.Finished(FinishReason::kError, /*started=*/false, 0);
      continue;
    }
    const Result<RequestId>& id = *submitted;
    if (!id.ok()) {
      context_.metrics.Finished(FinishReason::kError, /*started=*/false, 0);
      Guarded([&] { FailAll(EngineError(id.error())); });
      continue;
    }
    choice.id = *id;
    choice.submitted = true;
    Guarded([&] {
      context_.watch.Started(choice.id, head_.id, std::ssize(prompts_[choice.prompt]), context_.preset,
                             context_.tenant);
    });
  }
}

void Completion::Cancel(Engine& engine, HttpGone why) {
  const char* note = why == HttpGone::kLeft ? "the client disconnected" : "the client read too slowly and was dropped";
  engine_ = &engine;
  if (!std::exchange(over_, true)) Log(499, note);
  CancelRest();
}

void Completion::OnStart(Choice& choice, int64_t cached) {
  if (std::exchange(choice.started, true)) return;
  context_.metrics.Started(static_cast<int64_t>(prompts_[choice.prompt].size()), cached);
  BeginStream();
}

// The echoes are parts of the stream's beginning, because a client is not slow that has yet to read them.
void Completion::BeginStream() {
  if (!request_.stream || over_ || begun_) return;
  std::string beginning;
  for (Choice& choice : choices_) {
    if (head_.kind == ApiKind::kChat) beginning += EventOf(RoleChunk(head_, choice.answer.index));
    if (request_.echo) beginning += EventOf(ChunkJson(head_, choice.answer, context_.tokenizer));
  }
  exchange_->Begin(context_.add_headers({.status = 200,
                                         .type = "text/event-stream",
                                         .body = std::move(beginning),
                                         .headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}}}));
  begun_ = true;  // not earlier: an error before would have no head
  last_sent_ = context_.now();
  for (Choice& choice : choices_) choice.answer.text.clear();
}

// An SSE comment, which clients ignore. A waiting request gets it too: its stream has then begun, and an error would be
// sent as an event.
bool Completion::Beat(Clock::time_point now) {
  if (over_ || context_.heartbeat_s == 0) return false;
  if (now - last_sent_ < std::chrono::seconds(context_.heartbeat_s)) return true;
  return Guarded([&] {
    BeginStream();
    last_sent_ = now;
    exchange_->Write(": still running\n\n");
  });
}

std::string Completion::EventOf(Json chunk) const {
  if (request_.include_usage && !chunk.contains("usage")) chunk["usage"] = nullptr;
  return Event(chunk);
}

void Completion::Send(Json chunk) {
  if (over_) return;
  last_sent_ = context_.now();
  exchange_->Write(EventOf(std::move(chunk)));
}

void Completion::Echo(Choice& choice, const TokenLogprobs& values, bool known) {
  choice.answer.logged.push_back({values, choice.echo.decoded_bytes(), choice.echo.decoded_characters(), known});
  choice.echo.Push(values.chosen.token);
}

bool Completion::OnToken(Choice& choice, int32_t token) {
  const Clock::time_point now = context_.now();
  const auto seconds = [&](Clock::time_point from) { return std::chrono::duration<double>(now - from).count(); };
  if (choice.generated++ == 0)
    context_.metrics.FirstToken(seconds(arrived_));
  else
    context_.metrics.NextToken(seconds(choice.last_token));
  choice.last_token = now;
  ++usage_.completion_tokens;
  context_.watch.Token(choice.id);
  pool_bytes_ = engine_->executor().instruments().pool_bytes();
  if (over_) return false;
  if (request_.logprobs) KeepLogprobs(choice);
  Release(choice, choice.text.Push(token), /*end=*/false);
  return !choice.text.stopped();
}

void Completion::KeepLogprobs(Choice& choice) {
  choice.logged.push_back(
      {choice.last, choice.text.decoded_bytes(), choice.echo.decoded_characters() + choice.text.decoded_characters()});
}

void Completion::Release(Choice& choice, std::string text, bool end) {
  choice.released_bytes += text.size();
  // If the text was cut at a stop string, tokens that begin after the cut are not part of the answer.
  const bool all = end && !choice.text.stopped();
  size_t count = 0;
  while (count < choice.logged.size() && (all || choice.logged[count].offset_bytes < choice.released_bytes)) ++count;
  const auto shown = choice.logged.begin() + static_cast<ptrdiff_t>(count);
  AddText(choice, std::move(text), end);
  if (request_.stream) {
    choice.answer.logged.assign(choice.logged.begin(), shown);
    if (!choice.answer.text.empty() || !choice.answer.calls.empty() || count > 0)
      Send(ChunkJson(head_, choice.answer, context_.tokenizer));
    choice.answer.text.clear();
    choice.answer.calls_before += std::ssize(choice.answer.calls);
    choice.answer.calls.clear();
    choice.answer.logged.clear();
  } else {
    choice.answer.logged.insert(choice.answer.logged.end(), choice.logged.begin(), shown);
  }
  choice.logged.erase(choice.logged.begin(), shown);
}

void Completion::AddText(Choice& choice, std::string text, bool end) {
  AnswerChoice& answer = choice.answer;
  if (!choice.calls) {
    answer.text += text;
    return;
  }
  const auto add = [&](ToolCallStream::Found found) {
    answer.text += found.content;
    for (ToolCall& call : found.calls) {
      if (!request_.parallel_tool_calls && answer.calls_before + std::ssize(answer.calls) > 0) return;
      // Mistral's templates accept ids of nine letters and digits alone.
      const bool short_id = context_.tool_form == ToolForm::kList;
      answer.calls.push_back({short_id ? RandomHex(9) : "call_" + RandomHex(24), std::move(call)});
    }
  };
  add(choice.calls->Push(text));
  if (end) add(choice.calls->Finish());
}

void Completion::OnDone(Choice& choice, const RequestResult& result) {
  choice.done = true;
  ++done_;
  context_.metrics.Finished(result.reason, choice.started,
                            std::chrono::duration<double>(context_.now() - arrived_).count());
  context_.watch.Finished(choice.id);
  kv_.Add(result.kv);
  if (choice.prompt * static_cast<size_t>(request_.n) == static_cast<size_t>(choice.answer.index))
    usage_.cached_tokens += result.reused_tokens;  // counted once per prompt, by its first choice
  if (over_) return;
  if (result.reason == FinishReason::kError)
    return FailAll({.status = 500, .message = result.error, .type = "server_error", .code = "generation_failed"});
  if (result.reason == FinishReason::kCancelled) return FailAll(ShuttingDown());
  BeginStream();
  // Programs that score a prompt take the last entry for the one generated token, which they drop.
  if (request_.scores() && result.reason == FinishReason::kEos) KeepLogprobs(choice);
  Release(choice, choice.text.Finish(), /*end=*/true);
  choice.answer.finished = result.reason;
  const bool last = done_ == choices_.size();
  if (request_.stream) {
    Json chunk = ChunkJson(head_, choice.answer, context_.tokenizer);
    if (last && !request_.include_usage) chunk["kv_stats"] = StepStatsJson(kv_, pool_bytes_);
    Send(std::move(chunk));
  }
  if (last) FinishAll();
}

void Completion::LogAnswer() {
  Log(200, fmt::format("prompt {} tokens, {} cached; generated {}", usage_.prompt_tokens, usage_.cached_tokens,
                       usage_.completion_tokens));
}

void Completion::FinishAll() {
  if (request_.stream) {
    LogAnswer();
    if (request_.include_usage) {
      Json chunk = UsageChunk(head_, usage_);
      chunk["kv_stats"] = StepStatsJson(kv_, pool_bytes_);
      Send(std::move(chunk));
    }
    exchange_->Write("data: [DONE]\n\n");
    exchange_->End();
  } else if (request_.logprobs) {  // seconds, where there are many
    context_.format([self = shared_from_this()] { self->SendAnswer(); });
  } else {
    SendAnswer();
  }
  over_ = true;
}

// The request is done: the engine's thread does not touch its choices any more.
void Completion::SendAnswer() {
  try {
    std::vector<AnswerChoice> answers;
    for (Choice& choice : choices_) answers.push_back(std::move(choice.answer));
    const Json stats = StepStatsJson(kv_, pool_bytes_);
    std::string text = AnswerText(head_, answers, usage_, stats, context_.tokenizer);
    HttpReply reply = context_.add_headers({.status = 200, .body = std::move(text)});
    LogAnswer();  // before the reply: a client that has it finds it counted
    exchange_->Reply(std::move(reply));
  } catch (const std::exception& caught) {
    try {
      const ApiError error = ExceptionError(&caught);
      Log(error.status, error.message);
      exchange_->Abort(context_.add_headers(ErrorReply(error)));
    } catch (const std::exception&) {
      exchange_->Abandon();
    }
  }
}

void Completion::FailAll(const ApiError& error) {
  if (std::exchange(over_, true)) return;
  CancelRest();
  Log(error.status, error.message);
  try {
    if (begun_) {  // the status is already sent, so the error becomes an event
      exchange_->Write("data: " + ErrorBody(error) + "\n\n");
      exchange_->End();
    } else {
      exchange_->Reply(context_.add_headers(ErrorReply(error)));
    }
  } catch (const std::exception&) {  // no memory for an answer: the connection closes
    exchange_->Abandon();
  }
}

// A request has one line, though sending its answer may fail.
void Completion::Log(int status, const std::string& note) {
  if (!std::exchange(logged_, true)) context_.log(status, note);
}

}  // namespace infinigen
