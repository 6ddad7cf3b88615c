// Api: all routes of the server. It exists before the model is loaded: until Serve is called, routes that need the
// model reply 503. Handlers run on I/O threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/log_ring.h"
#include "runtime/engine_thread.h"
#include "runtime/requests.h"
#include "server/access.h"
#include "server/completion_request.h"
#include "server/http.h"
#include "server/metrics.h"
#include "server/watchdog.h"

namespace infinigen {

// A loaded model. Everything pointed to outlives the Api.
struct ServedModel {
  std::string name;
  Executor* executor = nullptr;
  const Tokenizer* tokenizer = nullptr;  // null: prompts must be token ids
  const ChatPrompt* chat = nullptr;      // null: the model cannot chat, for the reason in chat_refusal
  std::string chat_refusal;
  SamplingOptions sampling;                  // defaults for fields that a request omits
  bool random_seeds = true;                  // requests without a seed get a random one
  bool score_steps = false;                  // "kv.score" of requests that omit it is "steps"
  std::string details_json;                  // members of /props: "model", "device", "kv"
  int64_t max_waiting = 128;                 // sequences that may wait while others run
  int heartbeat_s = 10;                      // a stream without output for so long gets a comment; 0: never
  uint64_t prefix_limit_bytes = UINT64_MAX;  // limit of the prefix cache, not counting prefixes in use
};

struct ApiOptions {
  bool log_requests = true;
  int log_fd = 2;               // stderr
  bool share_prefixes = false;  // among all keys
  WatchdogTimes watchdog;
  // Ends the process after the watchdog's message; replaced by tests.
  std::function<void(std::string_view message)> end_process;
};

struct CompletionContext;

class Api {
 public:
  explicit Api(AccessOptions access, ApiOptions options = {});
  ~Api();
  Api(const Api&) = delete;
  Api& operator=(const Api&) = delete;

  HttpHandler handler();
  // For /metrics. `http` outlives the handlers.
  void set_http(HttpServer* http) { http_ = http; }

  // The server's log, which never blocks.
  LogRing& log() { return log_; }

  // Makes the model available to requests. Called once.
  void Serve(ServedModel model);
  // Cancels all requests. Precondition: HttpServer::Stop returned, so no handler runs.
  void Stop();

  // Method and path of every route, in the notation of openapi.json.
  static std::vector<std::pair<std::string, std::string>> DescribedRoutes();

 private:
  struct Serving;
  struct Call;  // one HTTP exchange and its request id
  struct Route;

  std::unique_ptr<HttpReply> Admit(const HttpRequest& head);
  std::string ClientOf(const HttpRequest& head) const;
  void Handle(std::shared_ptr<HttpExchange> exchange);
  HttpReply Fail(const HttpRequest& head, int status, std::string_view reason, HttpCause cause);
  void OnDrain();
  void OnCut();
  // Runs a route. An exception in it, usually no memory, ends this request alone.
  void Run(Call& call, const Route& route);
  // Remembers an exchange that the engine answers, for SayLastWords.
  void Remember(const std::shared_ptr<HttpExchange>& exchange);
  // Ends every exchange that the engine would answer: it hangs, or its device is lost.
  void SayLastWords();
  static std::span<const Route> Routes();
  static const Route* FindRoute(std::string_view path);
  static std::string AllowedMethods(std::string_view path);
  static std::optional<ApiError> CheckRoute(const HttpRequest& head);

  void Health(Call& call);
  void MetricsText(Call& call);
  void Models(Call& call);
  void Props(Call& call);
  void TokenizerInfo(Call& call);
  void Tokenize(Call& call);
  void Detokenize(Call& call);
  void Chat(Call& call);
  void Text(Call& call);
  void Watch(Call& call);
  // Counts a watcher until the last copy of the result is gone; null if there are too many.
  std::shared_ptr<const void> WatchPlace(const std::shared_ptr<Client>& client);
  void File(Call& call);
  void Complete(Call& call, ApiKind kind);
  CompletionContext ContextOf(const Call& call, const CompletionRequest& request);

  // Reply, log one line and count the reply; without effect if the call is already settled. Completions and streams do
  // not use these: they reply and log themselves.
  void Answer(const Call& call, HttpReply reply, const std::string& note = {});
  void Refuse(const Call& call, const ApiError& error);
  HttpReply AddHeaders(const HttpRequest& head, const std::string& id, HttpReply reply) const;
  // Logs and counts a reply. Where memory is short, the line is dropped and counted.
  void Log(const HttpRequest& head, const std::string& id, int status, double seconds,
           const std::string& note) noexcept;

  const Access access_;
  const ApiOptions options_;
  LogRing log_;
  Metrics metrics_;
  HttpServer* http_ = nullptr;
  std::mutex live_mutex_;
  std::vector<std::weak_ptr<HttpExchange>> live_;
  std::atomic<int64_t> watchers_{0};
  std::atomic<int64_t> logged_tokens_{0};  // reserved by unfinished answers with logprobs (kMostLoggedTokensInAll)
  std::unique_ptr<Serving> owned_;
  std::atomic<Serving*> serving_{nullptr};
  std::atomic<bool> cut_{false};  // the drain time is over: new requests are refused, running ones cancelled
};

}  // namespace infinigen
