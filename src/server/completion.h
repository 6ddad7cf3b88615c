// Completion: one HTTP completion request in the engine. It submits a sequence for each choice and sends the answer,
// whole or as a stream. Constructed on an I/O thread, then used only on the engine's thread. The engine's callbacks and
// the connection share its ownership.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/engine_thread.h"
#include "runtime/requests.h"
#include "server/completion_request.h"
#include "server/http.h"
#include "server/kv_watch.h"
#include "server/metrics.h"
#include "server/openai_format.h"
#include "server/tool_calls.h"

namespace infinigen {

// The parts of the server that a completion uses; all outlive it.
struct CompletionContext {
  Metrics& metrics;
  KvWatch& watch;
  const Tokenizer* tokenizer = nullptr;
  std::string preset;
  std::function<HttpReply(HttpReply)> add_headers;  // adds the headers that every reply has
  std::function<void(int status, const std::string& note)> log;
  std::string tenant;      // for the KV watch
  std::string cache_salt;  // of the tenant and the request
  std::string client;      // for the queue; empty: not limited
  // Runs a task on another thread, soon: what formats an answer.
  std::function<void(std::function<void()> task)> format;
  int heartbeat_s = 0;
  NowFunction now = std::chrono::steady_clock::now;
  std::shared_ptr<const CompiledGrammar> grammar;  // of the answers; null: none
  ToolForm tool_form = ToolForm::kNone;            // of the model's calls, where the request has tools
  std::shared_ptr<const void> kept_logprobs;       // reservation of memory for logprobs (ReserveLogprobs)
  std::shared_ptr<const MemoryShare> memory;       // of prompts and logprobs
  std::shared_ptr<const ClientCount> places;       // in the queue
};

class Completion : public std::enable_shared_from_this<Completion> {
 public:
  // `prompts`: encoded. `echoes`: their texts, with "echo" only. Precondition: Metrics::TryEnter reserved a place in
  // the queue for every choice.
  Completion(CompletionContext context, std::shared_ptr<HttpExchange> exchange, AnswerHead head,
             CompletionRequest request, std::vector<std::vector<int32_t>> prompts, std::vector<std::string> echoes);

  void Submit(Engine& engine);
  void Cancel(Engine& engine, HttpGone why);
  bool streams() const { return request_.stream; }
  // Called periodically. Sends a comment if the stream had no output for heartbeat_s, so that proxies keep it open.
  // False: no further calls are needed.
  bool Beat(std::chrono::steady_clock::time_point now);

 private:
  using Clock = std::chrono::steady_clock;
  struct Choice {
    AnswerChoice answer;
    size_t prompt = 0;
    RequestId id;
    TextStream text;
    TokenLogprobs last;
    std::vector<LoggedToken> logged;      // not yet in the answer
    std::optional<ToolCallStream> calls;  // finds calls in the text
    TextStream echo;                      // the prompt's tokens as they are scored, for the offsets of their texts
    size_t released_bytes = 0;
    int64_t generated = 0;
    bool submitted = false, started = false, done = false;
    Clock::time_point last_token;
  };

  Request MakeRequest(size_t index);
  void OnStart(Choice& choice, int64_t cached);
  // Adds the logprobs of the prompt's next token to the answer, before those of generated tokens.
  void Echo(Choice& choice, const TokenLogprobs& values, bool known);
  bool OnToken(Choice& choice, int32_t token);
  void OnDone(Choice& choice, const RequestResult& result);
  // Keeps the logprobs of the latest token until its text is released.
  void KeepLogprobs(Choice& choice);
  // Adds what the text has of content and calls to the answer.
  void AddText(Choice& choice, std::string text, bool end);
  // Adds text to the answer, with the logprobs of its tokens.
  void Release(Choice& choice, std::string text, bool end);
  void BeginStream();
  void Send(nlohmann::ordered_json chunk);
  std::string EventOf(nlohmann::ordered_json chunk) const;
  void FinishAll();
  // Formats the whole answer and sends it. Any thread, once.
  void SendAnswer();
  void FailAll(const ApiError& error);
  void CancelRest();
  void Log(int status, const std::string& note);
  void LogAnswer();
  // Calls f. An exception in it, usually no memory, ends this request alone. False: f threw.
  template <class F>
  bool Guarded(F&& f);

  const CompletionContext context_;
  const std::shared_ptr<HttpExchange> exchange_;
  const AnswerHead head_;
  CompletionRequest request_;
  const std::vector<std::vector<int32_t>> prompts_;
  std::vector<Choice> choices_;
  Engine* engine_ = nullptr;
  const Clock::time_point arrived_ = context_.now();
  Clock::time_point last_sent_ = arrived_;
  Usage usage_;
  size_t done_ = 0;
  bool begun_ = false;  // the stream's head is sent
  bool over_ = false;   // answered, or the client is gone
  bool logged_ = false;
  KvStats kv_;               // sum over the finished choices
  uint64_t pool_bytes_ = 0;  // at the latest token, before the sequence was released
};

}  // namespace infinigen
