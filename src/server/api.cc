#include "server/api.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <ctime>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include "server/completion.h"
#include "server/engine_thread.h"
#include "server/kv_watch.h"
#include "server/openai_format.h"
#include "server/web_files.h"
#include "text/unicode.h"

namespace infinigen {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

// OpenAI's default of /v1/completions; a chat goes on until the model ends it or the context is full.
constexpr int64_t kDefaultTextTokens = 16;
// Through a layer, in one turn: short prompts get going together, and nobody's next token waits for more.
constexpr int64_t kTurnPrefillTokens = 256;
// How often the engine's numbers are taken for /metrics.
constexpr std::chrono::milliseconds kBetweenSnapshots{250};
// Nothing from elsewhere, nothing inline: the page cannot be made to run what it did not bring.
constexpr const char* kContentPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

std::string RandomHex(int digits) {
  std::random_device random;
  std::string text;
  while (static_cast<int>(text.size()) < digits) text += fmt::format("{:08x}", static_cast<uint32_t>(random()));
  text.resize(static_cast<size_t>(digits));
  return text;
}

// A client's own id, where it is one that a log line can hold.
std::string RequestName(const std::string& given) {
  const bool fine = !given.empty() && given.size() <= 64 && std::all_of(given.begin(), given.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '_' ||
           c == '.';
  });
  return fine ? given : "req-" + RandomHex(16);
}

ApiError NotReady() {
  return {.status = 503,
          .message = "the model is being loaded",
          .type = "server_error",
          .code = "loading",
          .parameter = {},
          .retry_after_s = 1};
}

std::string Printable(std::string_view text) {
  std::string result(text.substr(0, 200));
  for (char& c : result)
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7F) c = '?';
  return result;
}

}  // namespace

struct Api::Call {
  std::shared_ptr<HttpExchange> exchange;
  std::string id;
  Clock::time_point start = Clock::now();
  Serving* serving = nullptr;  // null: not ready
};

struct Api::Route {
  std::string_view method, path;
  void (Api::*run)(Call&);
  bool needs_model;
};

// The engine and its thread, once there is a model.
struct Api::Serving {
  ServedModel model;
  int64_t created = std::time(nullptr);
  Metrics& metrics;
  Engine engine;
  KvWatch watch;
  Clock::time_point last_snapshot{};
  EngineThread thread;  // last: it uses all the others

  Serving(ServedModel model_, Metrics& metrics_)
      : model(std::move(model_)),
        metrics(metrics_),
        engine(*model.executor, {.grows = true,
                                 .reuses_prefixes = true,
                                 .prefix_limit_bytes = model.prefix_limit_bytes,
                                 .turn_prefill_tokens = kTurnPrefillTokens}),
        watch(engine, metrics_, model.prefix_limit_bytes),
        thread(engine, [this] { AfterTurn(); }) {}

  void AfterTurn() {
    watch.Turn();
    const Clock::time_point now = Clock::now();
    if (now - last_snapshot < kBetweenSnapshots && metrics.running() > 0) return;
    last_snapshot = now;
    const EngineStats& stats = engine.stats();
    metrics.Update({.kv = model.executor->Stats(),
                    .pool_bytes = stats.pool_bytes,
                    .prefix_bytes = stats.prefix_bytes,
                    .prefix_limit_bytes = model.prefix_limit_bytes,
                    .pool_limit_bytes = PoolLimit(*model.executor),
                    .preemptions = stats.preemptions,
                    .replayed_tokens = stats.replayed_tokens,
                    .prefilled_tokens = stats.prefill_tokens});
  }
  int64_t context() const { return model.executor->options().max_tokens; }
  int64_t vocab() const { return model.executor->config().vocab; }
};

Api::Api(AccessOptions access, bool log_requests) : access_(std::move(access)), log_requests_(log_requests) {}
Api::~Api() = default;

HttpHandler Api::handler() {
  return {.admit = [this](const HttpRequest& head) { return Admit(head); },
          .handle = [this](std::shared_ptr<HttpExchange> exchange) { Handle(std::move(exchange)); },
          .fail = [this](int status, std::string_view reason) { return Fail(status, reason); },
          .drain = [this] { OnDrain(); }};
}

void Api::Serve(ServedModel model) {
  owned_ = std::make_unique<Serving>(std::move(model), metrics_);
  serving_ = owned_.get();
}

void Api::Stop() {
  serving_ = nullptr;
  owned_.reset();
}

void Api::OnDrain() {
  if (Serving* serving = serving_) serving->thread.Post([serving](Engine&) { serving->watch.EndAll(); });
}

// ---- from a request to its route ----

const Api::Route* Api::FindRoute(std::string_view path) {
  static constexpr std::array<Route, 11> kRoutes = {{
      {"GET", "/health", &Api::Health, false},
      {"GET", "/metrics", &Api::MetricsText, false},
      {"GET", "/v1/models", &Api::Models, true},
      {"GET", "/props", &Api::Props, true},
      {"GET", "/kv", &Api::Watch, true},
      {"POST", "/tokenize", &Api::Tokenize, true},
      {"POST", "/detokenize", &Api::Detokenize, true},
      {"POST", "/v1/chat/completions", &Api::Chat, true},
      {"POST", "/v1/completions", &Api::Text, true},
      {"GET", "/v1/models/", &Api::Models, true},  // and a name
      {"GET", "/", &Api::File, false},             // and a file's
  }};
  for (const Route& route : kRoutes)
    if (route.path == path) return &route;
  if (path.substr(0, 11) == "/v1/models/") return &kRoutes[9];
  for (const WebFile& file : WebFiles())
    if (path.size() > 1 && path.substr(1) == file.name) return &kRoutes[10];
  return nullptr;
}

std::optional<ApiError> Api::CheckRoute(const HttpRequest& head) {
  const Route* route = FindRoute(head.path);
  if (route == nullptr)
    return ApiError{.status = 404,
                    .message = fmt::format("there is nothing at {}", Printable(head.path)),
                    .type = "not_found_error",
                    .code = "not_found"};
  const bool fits = head.method == route->method || (head.method == "HEAD" && route->method == "GET");
  if (fits) return std::nullopt;
  return ApiError{.status = 405,
                  .message = fmt::format("{} answers {} alone", route->path, route->method),
                  .code = "method_not_allowed"};
}

std::unique_ptr<HttpReply> Api::Admit(const HttpRequest& head) {
  const std::string id = RequestName(head.request_id);
  if (head.method == "OPTIONS" && !head.origin.empty())
    return std::make_unique<HttpReply>(Dress(head, id, access_.Preflight(head)));
  std::optional<ApiError> error = access_.Check(head);
  if (!error) error = CheckRoute(head);
  if (!error) return nullptr;
  HttpReply reply = ErrorReply(*error);
  if (error->status == 405) {
    const std::string_view method = FindRoute(head.path)->method;
    reply.headers.emplace_back("Allow", method == "GET" ? "GET, HEAD, OPTIONS" : "POST, OPTIONS");
  }
  if (error->status == 401) {  // a browser asks its user, who gives the key as password
    const Route* route = FindRoute(head.path);
    const bool page = route != nullptr && route->run == &Api::File;
    reply.headers.emplace_back("WWW-Authenticate", page ? "Basic realm=\"infinigen\"" : "Bearer");
  }
  Log(head, id, error->status, 0, error->message);
  return std::make_unique<HttpReply>(Dress(head, id, std::move(reply)));
}

void Api::Handle(std::shared_ptr<HttpExchange> exchange) {
  const HttpRequest& head = exchange->request();
  Call call{.exchange = exchange, .id = RequestName(head.request_id), .serving = serving_};
  const Route* route = FindRoute(head.path);  // Admit saw to it that there is one
  if (route->needs_model && call.serving == nullptr) {
    Log(head, call.id, 503, 0, "loading");
    return call.exchange->Reply(Dress(head, call.id, ErrorReply(NotReady())));
  }
  (this->*route->run)(call);
}

HttpReply Api::Fail(int status, std::string_view reason) {
  const HttpRequest unknown{.method = "-", .path = "-", .peer = "-"};
  const std::string id = RequestName("");
  Log(unknown, id, status, 0, std::string(reason));
  ApiError error{.status = status, .message = std::string(reason), .code = "bad_request"};
  if (status == 429 || status == 503) error.retry_after_s = 1;
  if (status == 413) error.code = "too_large";
  return Dress(unknown, id, ErrorReply(error));
}

HttpReply Api::Dress(const HttpRequest& head, const std::string& id, HttpReply reply) const {
  reply.headers.emplace_back("X-Request-Id", id);
  reply.headers.emplace_back("X-Content-Type-Options", "nosniff");
  if (reply.status != 204) access_.AddCorsHeaders(head, &reply);
  return reply;
}

// One write, so that lines of several threads do not mix.
void Api::Log(const HttpRequest& head, const std::string& id, int status, double seconds, const std::string& note) {
  metrics_.Replied(status);
  if (!log_requests_) return;
  const std::string line = fmt::format(
      "{:%Y-%m-%dT%H:%M:%SZ} {} {} {} {} {} {:.3f} s{}{}\n", fmt::gmtime(std::time(nullptr)), id, head.peer,
      Printable(head.method), Printable(head.path), status, seconds, note.empty() ? "" : ": ", Printable(note));
  if (::write(STDERR_FILENO, line.data(), line.size()) < 0) return;  // nobody reads it
}

// ---- what every route does ----

void Api::Health(Call& call) {
  const bool ready = call.serving != nullptr;
  HttpReply reply = ready ? HttpReply{.body = R"({"status":"ok"})"} : ErrorReply(NotReady());
  call.exchange->Reply(Dress(call.exchange->request(), call.id, std::move(reply)));
}

void Api::MetricsText(Call& call) {
  HttpReply reply{.type = "text/plain; version=0.0.4; charset=utf-8",
                  .body = metrics_.Render(http_ != nullptr ? http_->counters() : HttpCounters())};
  call.exchange->Reply(Dress(call.exchange->request(), call.id, std::move(reply)));
}

void Api::Models(Call& call) {
  const Serving& serving = *call.serving;
  const ModelConfig& config = serving.model.executor->config();
  const Json model = {{"id", serving.model.name},
                      {"object", "model"},
                      {"created", serving.created},
                      {"owned_by", "infinigen"},
                      {"max_model_len", serving.context()},
                      {"meta",
                       {{"n_vocab", config.vocab},
                        {"n_ctx", serving.context()},
                        {"n_ctx_train", config.max_positions},
                        {"n_params", ParameterCount(config)}}}};
  const HttpRequest& head = call.exchange->request();
  HttpReply reply;
  if (head.path == "/v1/models")
    reply.body = Compact({{"object", "list"}, {"data", Json::array({model})}});
  else if (head.path.substr(11) == serving.model.name)
    reply.body = Compact(model);
  else
    reply = ErrorReply(
        {.status = 404,
         .message = fmt::format("there is no model '{}', but {}", Printable(head.path.substr(11)), serving.model.name),
         .type = "not_found_error",
         .code = "model_not_found"});
  call.exchange->Reply(Dress(head, call.id, std::move(reply)));
}

void Api::Props(Call& call) {
  const Serving& serving = *call.serving;
  const SamplingOptions& sampling = serving.model.sampling;
  const ExecutorOptions& options = serving.model.executor->options();
  Json props = Json::parse(serving.model.details_json, nullptr, /*allow_exceptions=*/false);
  CHECK(props.is_object());
  props.update({{"n_ctx", serving.context()},
                {"total_slots", options.max_batch},
                {"queue", serving.model.max_waiting},
                {"chat_template", serving.model.tokenizer != nullptr ? serving.model.tokenizer->chat_template() : ""},
                {"default_generation_settings",
                 {{"n_ctx", serving.context()},
                  {"temperature", sampling.temperature},
                  {"top_k", sampling.top_k},
                  {"top_p", sampling.top_p},
                  {"min_p", sampling.min_p},
                  {"repeat_penalty", sampling.repeat_penalty}}}});
  call.exchange->Reply(Dress(call.exchange->request(), call.id, {.body = Compact(props)}));
}

void Api::Tokenize(Call& call) {
  const HttpRequest& head = call.exchange->request();
  const auto reply = [&](HttpReply with) { call.exchange->Reply(Dress(head, call.id, std::move(with))); };
  const Tokenizer* tokenizer = call.serving->model.tokenizer;
  if (tokenizer == nullptr) return reply(ErrorReply({.message = "this model has no tokenizer"}));
  const ApiResult<TokenizeRequest> request = ParseTokenize(head.body);
  if (!request.ok()) return reply(ErrorReply(request.error()));
  const Result<std::vector<TokenId>> ids = tokenizer->Encode(
      (*request).content, {.add_special = (*request).add_special, .parse_special = (*request).parse_special});
  if (!ids.ok()) return reply(ErrorReply({.message = ids.error().message}));
  reply({.body = Compact({{"tokens", *ids}})});
}

void Api::Detokenize(Call& call) {
  const HttpRequest& head = call.exchange->request();
  const auto reply = [&](HttpReply with) { call.exchange->Reply(Dress(head, call.id, std::move(with))); };
  const Tokenizer* tokenizer = call.serving->model.tokenizer;
  if (tokenizer == nullptr) return reply(ErrorReply({.message = "this model has no tokenizer"}));
  const ApiResult<std::vector<int32_t>> ids = ParseDetokenize(head.body, call.serving->vocab());
  if (!ids.ok()) return reply(ErrorReply(ids.error()));
  reply({.body = Compact({{"content", ReplaceInvalidUtf8(tokenizer->Decode(*ids, /*skip_special=*/false))}})});
}

void Api::File(Call& call) {
  const HttpRequest& head = call.exchange->request();
  const std::string_view name = head.path == "/" ? "index.html" : std::string_view(head.path).substr(1);
  for (const WebFile& file : WebFiles()) {
    if (file.name != name) continue;
    HttpReply reply{.type = std::string(ContentType(name)), .body = std::string(file.bytes)};
    reply.headers = {{"Content-Security-Policy", kContentPolicy},
                     {"Referrer-Policy", "no-referrer"},
                     {"Cross-Origin-Opener-Policy", "same-origin"},
                     {"Cache-Control", "no-cache"}};
    return call.exchange->Reply(Dress(head, call.id, std::move(reply)));
  }
  call.exchange->Reply(
      Dress(head, call.id, ErrorReply({.status = 404, .message = "no such file", .code = "not_found"})));
}

void Api::Watch(Call& call) {
  const std::shared_ptr<HttpExchange> exchange = call.exchange;
  Serving* serving = call.serving;
  exchange->Begin(Dress(exchange->request(), call.id,
                        {.type = "text/event-stream",
                         .body = ": the picture of the cache follows\n\n",
                         .headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}}}));
  serving->thread.Post([serving, exchange](Engine&) { serving->watch.Add(exchange); });
  exchange->OnGone([serving, watcher = exchange.get()] {
    serving->thread.Post([serving, watcher](Engine&) { serving->watch.Remove(watcher); });
  });
}

void Api::Chat(Call& call) { Complete(call, ApiKind::kChat); }
void Api::Text(Call& call) { Complete(call, ApiKind::kText); }

namespace {

// Token ids of every prompt of a request, none longer than the context.
ApiResult<std::vector<std::vector<int32_t>>> EncodePrompts(const CompletionRequest& request, const ServedModel& model,
                                                           int64_t context) {
  std::vector<std::vector<int32_t>> all;
  if (request.kind == ApiKind::kChat) {
    if (model.chat == nullptr) return ApiError{.message = model.chat_refusal, .code = "no_chat_template"};
    Result<std::vector<TokenId>> ids = model.chat->Encode(request.messages);
    if (!ids.ok()) return ApiError{.message = ids.error().message, .parameter = "messages"};
    all.push_back(std::move(*ids));
  }
  for (const PromptText& prompt : request.prompts) {
    if (const auto* given = std::get_if<std::vector<int32_t>>(&prompt)) {
      all.push_back(*given);
      continue;
    }
    if (model.tokenizer == nullptr)
      return ApiError{.message = "this model has no tokenizer: send token ids", .parameter = "prompt"};
    Result<std::vector<TokenId>> ids = model.tokenizer->Encode(std::get<std::string>(prompt));
    if (!ids.ok()) return ApiError{.message = ids.error().message, .parameter = "prompt"};
    all.push_back(std::move(*ids));
  }
  for (const std::vector<int32_t>& ids : all) {
    const char* parameter = request.kind == ApiKind::kChat ? "messages" : "prompt";
    if (ids.empty()) return ApiError{.message = "the prompt has no tokens", .parameter = parameter};
    if (static_cast<int64_t>(ids.size()) > context)
      return ApiError{.message = fmt::format("the prompt has {} tokens, the context holds {}", ids.size(), context),
                      .code = "context_length_exceeded",
                      .parameter = parameter};
  }
  return all;
}

// What selection can do is the engine's to say; whether there is one, the server's.
std::optional<ApiError> CheckKv(const KvWish& wish, const ExecutorOptions& options) {
  const std::string_view preset = options.method.preset;
  const bool asks_for_selection = wish.full == false || wish.alpha || wish.cap;
  const bool refused =
      (asks_for_selection && preset != "infinigen") || (wish.full == true && preset != "infinigen" && preset != "full");
  if (!refused) return std::nullopt;
  return ApiError{.message = fmt::format("'kv': this server runs --kv {} for every request", preset),
                  .code = "unsupported_parameter",
                  .parameter = "kv"};
}

std::vector<std::string> Echoes(const CompletionRequest& request, const Tokenizer* tokenizer) {
  std::vector<std::string> texts;
  for (const PromptText& prompt : request.prompts) {
    const auto* ids = std::get_if<std::vector<int32_t>>(&prompt);
    if (ids == nullptr)
      texts.push_back(std::get<std::string>(prompt));
    else
      texts.push_back(tokenizer == nullptr ? "" : ReplaceInvalidUtf8(tokenizer->Decode(*ids, /*skip_special=*/true)));
  }
  return texts;
}

}  // namespace

void Api::Complete(Call& call, ApiKind kind) {
  Serving* serving = call.serving;
  const ServedModel& model = serving->model;
  const std::shared_ptr<HttpExchange> exchange = call.exchange;
  const HttpRequest& head = exchange->request();
  const auto log = [this, exchange, id = call.id, start = call.start](int status, const std::string& note) {
    Log(exchange->request(), id, status, std::chrono::duration<double>(Clock::now() - start).count(), note);
  };
  const auto refuse = [&](const ApiError& error) {
    log(error.status, error.message);
    exchange->Reply(Dress(head, call.id, ErrorReply(error)));
  };

  SamplingOptions defaults = model.sampling;
  if (model.random_seeds) defaults.seed = std::random_device()();
  ApiResult<CompletionRequest> request = ParseCompletion(kind, head.body, defaults, serving->vocab());
  if (!request.ok()) return refuse(request.error());
  if (const auto error = CheckKv(request->kv, model.executor->options())) return refuse(*error);
  ApiResult<std::vector<std::vector<int32_t>>> prompts = EncodePrompts(*request, model, serving->context());
  if (!prompts.ok()) return refuse(prompts.error());
  if (request->max_tokens < 0) request->max_tokens = kind == ApiKind::kChat ? INT32_MAX : kDefaultTextTokens;

  const int64_t choices = static_cast<int64_t>(prompts->size()) * request->n;
  const int64_t places = model.executor->options().max_batch + model.max_waiting;
  if (choices > places)
    return refuse({.message = fmt::format("{} choices are asked for, the server has {} places", choices, places),
                   .parameter = "n"});
  if (!metrics_.TryEnter(choices, places))
    return refuse({.status = 429,
                   .message = fmt::format("the queue is full ({} places); try again later", places),
                   .type = "rate_limit_error",
                   .code = "queue_full",
                   .parameter = {},
                   .retry_after_s = 1});

  const AnswerHead answer{.kind = kind,
                          .id = (kind == ApiKind::kChat ? "chatcmpl-" : "cmpl-") + RandomHex(24),
                          .created = std::time(nullptr),
                          .model = model.name};
  std::vector<std::string> echoes = request->echo ? Echoes(*request, model.tokenizer) : std::vector<std::string>();
  CompletionContext context{
      .metrics = metrics_,
      .watch = serving->watch,
      .tokenizer = model.tokenizer,
      .preset = request->kv.full == true ? "full" : std::string(model.executor->options().method.preset),
      .dress = [this, exchange, id = call.id](HttpReply r) { return Dress(exchange->request(), id, std::move(r)); },
      .log = log};
  const auto completion = std::make_shared<Completion>(std::move(context), exchange, answer, std::move(*request),
                                                       std::move(*prompts), std::move(echoes));
  serving->thread.Post([completion](Engine& engine) { completion->Submit(engine); });
  exchange->OnGone(
      [serving, completion] { serving->thread.Post([completion](Engine& engine) { completion->Cancel(engine); }); });
}

std::string_view ContentType(std::string_view name) {
  const std::string_view ending = name.substr(std::min(name.rfind('.'), name.size()));
  if (ending == ".html") return "text/html; charset=utf-8";
  if (ending == ".js") return "text/javascript; charset=utf-8";
  if (ending == ".css") return "text/css; charset=utf-8";
  if (ending == ".svg") return "image/svg+xml";
  if (ending == ".png") return "image/png";
  return ending == ".json" ? "application/json" : "text/plain; charset=utf-8";
}

}  // namespace infinigen
