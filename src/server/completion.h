// Completion: one HTTP request on its way through the engine: its choices, what became of each, and the answer, whole
// or as a stream. Made on an I/O thread, used on the engine's thread alone from then on. Lives as long as the engine or
// the connection knows it.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/engine_thread.h"
#include "runtime/text.h"
#include "server/completion_request.h"
#include "server/http.h"
#include "server/kv_watch.h"
#include "server/metrics.h"
#include "server/openai_format.h"

namespace infinigen {

// What a completion needs of the server; all outlive it.
struct CompletionContext {
  Metrics& metrics;
  KvWatch& watch;
  const Tokenizer* tokenizer = nullptr;
  std::string preset;
  std::function<HttpReply(HttpReply)> dress;  // adds the headers that every reply has
  std::function<void(int status, const std::string& note)> log;
  int heartbeat_s = 0;
  std::shared_ptr<const void> kept_logprobs;  // its part of what all answers may keep of them
};

class Completion : public std::enable_shared_from_this<Completion> {
 public:
  // `prompts` encoded; `echoes` their texts, where they come back. Places in the queue are taken.
  Completion(CompletionContext context, std::shared_ptr<HttpExchange> exchange, AnswerHead head,
             CompletionRequest request, std::vector<std::vector<int32_t>> prompts, std::vector<std::string> echoes);

  void Submit(Engine& engine);
  void Cancel(Engine& engine, HttpGone why);
  bool streams() const { return request_.stream; }
  // Now and then: a stream that was silent for long says that it is alive, so that nobody on the way cuts it. False: it
  // needs that no more.
  bool Beat(std::chrono::steady_clock::time_point now);

 private:
  using Clock = std::chrono::steady_clock;
  struct Choice {
    AnswerChoice answer;
    size_t prompt = 0;
    RequestId id;
    TextStream text;
    TokenLogprobs last;
    std::vector<LoggedToken> logged;  // not yet in the answer
    size_t released_bytes = 0;
    int64_t generated = 0;
    bool submitted = false, started = false, done = false;
    Clock::time_point last_token;
  };

  Request MakeRequest(size_t index);
  void OnStart(Choice& choice, int64_t cached);
  bool OnToken(Choice& choice, int32_t token);
  void OnDone(Choice& choice, const RequestResult& result);
  // Text that may be shown, with the logprobs of the tokens whose text it is.
  void Release(Choice& choice, std::string text, bool end);
  void BeginStream();
  void Send(nlohmann::ordered_json chunk);
  void FinishAll();
  void FailAll(const ApiError& error);

  const CompletionContext context_;
  const std::shared_ptr<HttpExchange> exchange_;
  const AnswerHead head_;
  CompletionRequest request_;
  const std::vector<std::vector<int32_t>> prompts_;
  std::vector<Choice> choices_;
  Engine* engine_ = nullptr;
  const Clock::time_point arrived_ = Clock::now();
  Clock::time_point last_sent_ = arrived_;
  Usage usage_;
  size_t done_ = 0;
  bool begun_ = false;       // the stream's head is out
  bool over_ = false;        // answered, or nobody listens
  KvStats kv_;               // of the choices that are done
  uint64_t pool_bytes_ = 0;  // when the latest token came: a finished sequence has given its own back
};

}  // namespace infinigen
