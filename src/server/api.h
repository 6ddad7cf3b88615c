// Api: every route of the server, from a request to its answer. Exists before the model does: until Serve, the port is
// open and says that the model is being loaded. Handlers run on I/O threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/engine_thread.h"
#include "runtime/text.h"
#include "server/access.h"
#include "server/completion_request.h"
#include "server/http.h"
#include "server/metrics.h"

namespace infinigen {

// A model that is ready; everything pointed to outlives the Api.
struct ServedModel {
  std::string name;
  Executor* executor = nullptr;
  const Tokenizer* tokenizer = nullptr;  // null: prompts are token ids
  const ChatPrompt* chat = nullptr;      // null: chat_refusal says why
  std::string chat_refusal;
  SamplingOptions sampling;                  // of requests that do not say
  bool random_seeds = true;                  // such requests differ from each other
  std::string details_json;                  // members of /props: "model", "device", "kv"
  int64_t max_waiting = 128;                 // sequences beyond those that run
  int heartbeat_s = 10;                      // of silence, after which a stream says that it is alive; 0: never
  uint64_t prefix_limit_bytes = UINT64_MAX;  // of what prompts begin with, while nobody uses it
};

class Api {
 public:
  Api(AccessOptions access, bool log_requests);
  ~Api();
  Api(const Api&) = delete;
  Api& operator=(const Api&) = delete;

  HttpHandler handler();
  // For /metrics; outlives the Api's use.
  void set_http(const HttpServer* http) { http_ = http; }

  // Once: from here on requests are answered.
  void Serve(ServedModel model);
  // Cancels what runs. Precondition: no handler is called any more (HttpServer::Stop).
  void Stop();

  // Methods and paths, as openapi.json writes them.
  static std::vector<std::pair<std::string, std::string>> DescribedRoutes();

 private:
  struct Serving;
  struct Call;  // an exchange with its id
  struct Route;

  std::unique_ptr<HttpReply> Admit(const HttpRequest& head);
  void Handle(std::shared_ptr<HttpExchange> exchange);
  HttpReply Fail(const HttpRequest& head, int status, std::string_view reason);
  void OnDrain();
  void OnCut();
  static std::span<const Route> Routes();
  static const Route* FindRoute(std::string_view path);
  static std::optional<ApiError> CheckRoute(const HttpRequest& head);

  void Health(Call& call);
  void MetricsText(Call& call);
  void Models(Call& call);
  void Props(Call& call);
  void Tokenize(Call& call);
  void Detokenize(Call& call);
  void Chat(Call& call);
  void Text(Call& call);
  void Watch(Call& call);
  void File(Call& call);
  void Complete(Call& call, ApiKind kind);

  // Every reply goes through one of these, or is a completion or a stream, which log themselves: one line and one count
  // each. They do nothing where the call is settled already.
  void Answer(const Call& call, HttpReply reply, const std::string& note = {});
  void Refuse(const Call& call, const ApiError& error);
  HttpReply Dress(const HttpRequest& head, const std::string& id, HttpReply reply) const;
  void Log(const HttpRequest& head, const std::string& id, int status, double seconds, const std::string& note);

  const Access access_;
  const bool log_requests_;
  Metrics metrics_;
  const HttpServer* http_ = nullptr;
  std::atomic<int64_t> logged_tokens_{0};  // that answers under way may keep, all together; outlives them
  std::unique_ptr<Serving> owned_;
  std::atomic<Serving*> serving_{nullptr};
  std::atomic<bool> cut_{false};  // time is up
};

}  // namespace infinigen
