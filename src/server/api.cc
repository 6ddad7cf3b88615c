#include "server/api.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <ctime>
#include <new>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>
#include <utility>

#include "json/parse.h"
#include "runtime/requests.h"
#include "server/openai_format.h"
#include "server/request_memory.h"
#include "server/serving.h"
#include "server/web_files.h"

namespace infinigen {
namespace {

using Json = nlohmann::ordered_json;

// Larger replies are counted before they are sent, and refused where there is no memory for them.
constexpr size_t kSmallReplyBytes = 64 << 10;
// A token id in a list: at most seven digits and a comma, in a text that grows.
constexpr uint64_t kBytesPerId = 16;
// Copies of a decoded text until it is a reply: as it was decoded, made valid, as two values, as JSON with both.
constexpr uint64_t kTextCopies = 7;
// Foreign bytes that a message or a line of the log shows.
constexpr size_t kShownBytes = 200;
constexpr int64_t kMostWatchers = 32, kMostWatchersOfClient = 8;
// Time for the log's thread to write the message with which the process ends.
constexpr std::chrono::milliseconds kLogTime{200};
// No foreign resources and no inline scripts, so that injected content cannot run in the page.
constexpr const char* kContentPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

// The client's X-Request-Id if it is safe in a log line, otherwise a random id.
std::string RequestName(const std::string& given) {
  const bool fine = !given.empty() && given.size() <= 64 && std::all_of(given.begin(), given.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '_' ||
           c == '.';
  });
  return fine ? given : "req-" + RandomHex(16);
}

// Routes of OpenAI that clients try.
std::string_view WhyAbsent(std::string_view path) {
  if (path == "/v1/responses")
    return "is not supported by this server; use /v1/chat/completions, which has the same models and tools";
  if (path == "/v1/embeddings") return "is not supported by this server: it generates text and has no embeddings";
  return "does not exist";
}

ApiError NotReady() {
  return {.status = 503,
          .message = "the model is being loaded",
          .type = "server_error",
          .code = "loading",
          .parameter = {},
          .retry_after_s = 1};
}

}  // namespace

struct Api::Route {
  std::string_view method, path;
  void (Api::*run)(Call&);
  bool needs_model;
  std::string_view described = path;  // in openapi.json
};

Api::Api(AccessOptions access, ApiOptions options)
    : access_(std::move(access)), options_(std::move(options)), log_(options_.log_fd) {}
Api::~Api() { SetLastWords({}); }

HttpHandler Api::handler() {
  return {.admit = [this](const HttpRequest& head) { return Admit(head); },
          .client = [this](const HttpRequest& head) { return ClientOf(head); },
          .may_send =
              [this](const HttpRequest& head) { return !access_.has_keys() || access_.KeyFits(head.authorization); },
          .handle = [this](std::shared_ptr<HttpExchange> exchange) { Handle(std::move(exchange)); },
          .fail = [this](const HttpRequest& head, int status, std::string_view reason,
                         HttpCause cause) { return Fail(head, status, reason, cause); },
          .dropped =
              [this](const HttpRequest& head, const std::string& id) {
                Log(head, id, 499, 0, "the client read the reply too slowly and was dropped");
              },
          .drain = [this] { OnDrain(); },
          .cut = [this] { OnCut(); }};
}

void Api::Serve(ServedModel model) {
  const double share = http_ != nullptr ? http_->client_share() : 1;
  const auto on_exception = [this](std::string_view what, bool ends_requests) {
    const char* effect =
        ends_requests ? "an exception ended the running requests" : "an exception in the engine's thread";
    try {
      log_.Write(fmt::format("infinigen: {}: {}", effect, Escaped(what)));
    } catch (const std::exception&) {
      log_.CountDropped();
    }
  };
  owned_ = std::make_unique<Serving>(std::move(model), metrics_, share, on_exception);
  owned_->watchdog.emplace(
      owned_->thread.heartbeat(), options_.watchdog, [this] { SayLastWords(); },
      [this](std::string_view message) {
        if (options_.end_process) return options_.end_process(message);
        char line[200];  // memory may be short
        const auto written = fmt::format_to_n(line, sizeof(line), "infinigen: {}", message);
        log_.Write({line, std::min(written.size, sizeof(line))});
        std::this_thread::sleep_for(kLogTime);
        std::_Exit(1);
      });
  SetLastWords([this] {
    SayLastWords();
    std::this_thread::sleep_for(options_.watchdog.last_words);
  });
  serving_ = owned_.get();
}

void Api::Remember(const std::shared_ptr<HttpExchange>& exchange) {
  const std::lock_guard lock(live_mutex_);
  if (live_.size() == live_.capacity()) std::erase_if(live_, [](const auto& weak) { return weak.expired(); });
  live_.push_back(exchange);
}

void Api::SayLastWords() {
  std::vector<std::weak_ptr<HttpExchange>> live;
  {
    const std::lock_guard lock(live_mutex_);
    live.swap(live_);
  }
  const ApiError error{.status = 503,
                       .message = "the engine has stopped (its device does not answer); the server ends",
                       .type = "server_error",
                       .code = "engine_stalled"};
  for (const std::weak_ptr<HttpExchange>& weak : live) {
    const std::shared_ptr<HttpExchange> exchange = weak.lock();
    if (exchange == nullptr) continue;
    try {
      exchange->Abort(ErrorReply(error));
    } catch (const std::exception&) {  // no memory for this one; the others are still told
      exchange->Abandon();
    }
  }
}

void Api::Stop() {
  serving_ = nullptr;
  if (owned_ != nullptr) owned_->watchdog->SetStopping();
  owned_.reset();
}

void Api::OnDrain() {
  if (Serving* serving = serving_) serving->thread.Post([serving](Engine&) { serving->watch.EndAll(); });
}

void Api::OnCut() {
  cut_ = true;
  Serving* serving = serving_;
  if (serving == nullptr) return;
  serving->worker.RefuseAll();
  serving->grammar_worker.RefuseAll();
  serving->thread.Post([](Engine& engine) { engine.CancelAll(); });
}

// ---- from a request to its route ----

std::span<const Api::Route> Api::Routes() {
  static constexpr std::array<Route, 13> kRoutes = {{
      {"GET", "/health", &Api::Health, false},
      {"GET", "/metrics", &Api::MetricsText, false},
      {"GET", "/v1/models", &Api::Models, true},
      {"GET", "/props", &Api::Props, true},
      {"GET", "/kv", &Api::Watch, true},
      {"GET", "/tokenizer_info", &Api::TokenizerInfo, true},
      {"POST", "/tokenize", &Api::Tokenize, true},
      {"POST", "/detokenize", &Api::Detokenize, true},
      {"POST", "/v1/chat/completions", &Api::Chat, true},
      {"POST", "/v1/completions", &Api::Text, true},
      {"GET", "/", &Api::File, false},
      {"GET", "/v1/models/*", &Api::Models, true, "/v1/models/{model}"},
      {"GET", "/*", &Api::File, false, "/{file}"},
  }};
  return kRoutes;
}

std::vector<std::pair<std::string, std::string>> Api::DescribedRoutes() {
  std::vector<std::pair<std::string, std::string>> all;
  for (const Route& route : Routes()) all.emplace_back(route.method, route.described);
  return all;
}

const Api::Route* Api::FindRoute(std::string_view path) {
  const std::span<const Route> routes = Routes();
  for (const Route& route : routes)
    if (route.path == path) return &route;
  if (path.substr(0, 11) == "/v1/models/") return &routes[routes.size() - 2];
  for (const WebFile& file : WebFiles())
    if (path.size() > 1 && path.substr(1) == file.name) return &routes.back();
  return nullptr;
}

std::string Api::AllowedMethods(std::string_view path) {
  const Route* route = FindRoute(path);
  if (route == nullptr) return "GET, HEAD, POST, OPTIONS";
  return route->method == "GET" ? "GET, HEAD, OPTIONS" : "POST, OPTIONS";
}

std::optional<ApiError> Api::CheckRoute(const HttpRequest& head) {
  const Route* route = FindRoute(head.path);
  if (route == nullptr)
    return ApiError{.status = 404,
                    .message = fmt::format("{} {}", Escaped(head.path, kShownBytes), WhyAbsent(head.path)),
                    .type = "not_found_error",
                    .code = "not_found"};
  const bool fits = head.method == route->method || (head.method == "HEAD" && route->method == "GET");
  if (fits) return std::nullopt;
  return ApiError{.status = 405,
                  .message = fmt::format("{} accepts only {}", route->path, route->method),
                  .code = "method_not_allowed"};
}

std::string Api::ClientOf(const HttpRequest& head) const {
  return access_.has_many_keys() ? access_.TenantOf(head.authorization) : std::string();
}

std::unique_ptr<HttpReply> Api::Admit(const HttpRequest& head) {
  const std::string id = RequestName(head.request_id);
  const bool known = head.path == "*" || FindRoute(head.path) != nullptr;
  const bool preflight = !head.origin.empty();
  if (head.method == "OPTIONS" && (preflight || (known && !access_.Check(head)))) {
    HttpReply reply = access_.Preflight(head);
    if (!preflight) reply.headers.emplace_back("Allow", AllowedMethods(head.path));
    Log(head, id, reply.status, 0, "");
    return std::make_unique<HttpReply>(AddHeaders(head, id, std::move(reply)));
  }
  std::optional<ApiError> error = access_.Check(head);
  if (!error) error = CheckRoute(head);
  if (!error) return nullptr;
  HttpReply reply = ErrorReply(*error);
  if (error->status == 405) reply.headers.emplace_back("Allow", AllowedMethods(head.path));
  if (error->status == 401) {  // for the page, makes the browser ask its user for the key as a password
    const Route* route = FindRoute(head.path);
    const bool page = route != nullptr && route->run == &Api::File;
    reply.headers.emplace_back("WWW-Authenticate", page ? "Basic realm=\"infinigen\"" : "Bearer");
  }
  Log(head, id, error->status, 0, error->message);
  return std::make_unique<HttpReply>(AddHeaders(head, id, std::move(reply)));
}

void Api::Handle(std::shared_ptr<HttpExchange> exchange) {
  const HttpRequest& head = exchange->request();
  Call call{.exchange = exchange, .id = RequestName(head.request_id), .serving = serving_};
  const Route* route = FindRoute(head.path);  // not null: Admit checked it
  if (route->needs_model && call.serving == nullptr) return Refuse(call, NotReady());
  const bool grammar = MayHaveGrammar(head.body);
  const bool quick =
      head.body.size() <= kInPlaceBytes && !grammar && !(route->run == &Api::Chat && call.serving->slow_chats);
  if (quick || !route->needs_model) return Run(call, *route);
  Worker& worker = grammar ? call.serving->grammar_worker : call.serving->worker;
  call.settled = std::make_shared<std::atomic<bool>>(false);
  // If the client disconnects before the worker reads the body, the task is withdrawn. The route later replaces this
  // OnGone with its own.
  Call unread = call;
  unread.exchange = nullptr;
  exchange->OnGone([this, unread, &worker, weak = std::weak_ptr(exchange)](HttpGone) {
    const std::shared_ptr<HttpExchange> held = weak.lock();
    if (held == nullptr) return;
    const bool waited = worker.Withdraw(held.get());
    if (unread.Settle())
      Log(held->request(), unread.id, 499, unread.seconds(),
          fmt::format("the client disconnected {} its request was read", waited ? "before" : "while"));
  });
  const bool taken = worker.Post(
      exchange.get(), [this, call, route]() mutable { Run(call, *route); },
      [this, call] { Refuse(call, ShuttingDown()); },
      {.id = exchange->client().get(), .limited = exchange->client()->limited});
  if (!taken && cut_) return Refuse(call, ShuttingDown());
  if (!taken)
    Refuse(call, {.status = 429,
                  .message = "too many large requests are waiting; try again later",
                  .type = "rate_limit_error",
                  .code = "too_many_bodies",
                  .parameter = {},
                  .retry_after_s = 1});
}

void Api::Run(Call& call, const Route& route) {
  try {
    return (this->*route.run)(call);
  } catch (const std::exception& caught) {
    const ApiError error = ExceptionError(&caught);
    call.Settle();
    call.exchange->Abort(AddHeaders(call.head(), call.id, ErrorReply(error)));
    Log(call.head(), call.id, error.status, call.seconds(), error.message);
  }
}

void Api::Answer(const Call& call, HttpReply reply, const std::string& note) {
  if (!call.Settle()) return;
  if (reply.body.size() > kSmallReplyBytes) {
    RequestMemory memory(call.exchange->client());
    if (memory.Reserve(reply.body.capacity()))
      reply.memory = memory.TakeShare();
    else
      reply = ErrorReply(memory.Refusal());
  }
  Log(call.head(), call.id, reply.status, call.seconds(), note);
  call.exchange->Reply(AddHeaders(call.head(), call.id, std::move(reply)));
}

void Api::Refuse(const Call& call, const ApiError& error) { Answer(call, ErrorReply(error), error.message); }

HttpReply Api::Fail(const HttpRequest& head, int status, std::string_view reason, HttpCause cause) {
  struct Kind {
    int status;
    const char *type, *code;
  };
  static constexpr Kind kOther = {0, "invalid_request_error", "bad_request"};
  static constexpr std::array<Kind, 6> kKinds = {{{408, "invalid_request_error", "timeout"},
                                                  {413, "invalid_request_error", "too_large"},
                                                  {415, "invalid_request_error", "unsupported_encoding"},
                                                  {429, "rate_limit_error", "too_many_bodies"},
                                                  {431, "invalid_request_error", "too_large"},
                                                  {500, "server_error", "internal_error"}}};
  const auto found = std::ranges::find(kKinds, status, &Kind::status);
  const Kind kind = found == kKinds.end() ? kOther : *found;
  ApiError error{.status = status, .message = std::string(reason), .type = kind.type, .code = kind.code};
  if (status == 503) error = ShuttingDown();
  if (cause == HttpCause::kOutOfMemory) error = OutOfMemory();
  if (cause == HttpCause::kTooManyConnections)
    error = {.status = 503, .message = std::string(reason), .type = "server_error", .code = "too_many_connections"};
  if (status == 429 || cause == HttpCause::kTooManyConnections) error.retry_after_s = 1;
  const std::string id = RequestName(head.request_id);
  Log(head, id, status, 0, error.message);
  return AddHeaders(head, id, ErrorReply(error));
}

HttpReply Api::AddHeaders(const HttpRequest& head, const std::string& id, HttpReply reply) const {
  reply.headers.emplace_back("X-Request-Id", id);
  reply.headers.emplace_back("X-Content-Type-Options", "nosniff");
  if (reply.status != 204) access_.AddCorsHeaders(head, &reply);
  return reply;
}

void Api::Log(const HttpRequest& head, const std::string& id, int status, double seconds,
              const std::string& note) noexcept {
  try {
    metrics_.Replied(status);
    if (!options_.log_requests) return;
    const auto shown = [](const std::string& text) { return text.empty() ? "-" : Escaped(text, kShownBytes); };
    log_.Write(fmt::format("{:%Y-%m-%dT%H:%M:%SZ} {} {} {} {} {} {:.3f} s{}{}", fmt::gmtime(std::time(nullptr)), id,
                           shown(head.peer), shown(head.method), shown(head.path), status, seconds,
                           note.empty() ? "" : ": ", Escaped(note, kShownBytes)));
  } catch (const std::exception&) {
    log_.CountDropped();
  }
}

// ---- the routes ----

void Api::Health(Call& call) {
  if (call.serving == nullptr) return Refuse(call, NotReady());
  if (call.serving->watchdog->stalled(Watchdog::Clock::now()))
    return Refuse(call, {.status = 503,
                         .message = "the engine has not finished its current step for too long",
                         .type = "server_error",
                         .code = "engine_stalled"});
  Answer(call, {.body = R"({"status":"ok"})"});
}

void Api::MetricsText(Call& call) {
  Answer(call, {.type = "text/plain; version=0.0.4; charset=utf-8",
                .body = metrics_.Render(http_ != nullptr ? http_->counters() : HttpCounters(), log_.dropped())});
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
  const std::string& path = call.head().path;
  if (path == "/v1/models")
    return Answer(call, {.body = Compact({{"object", "list"}, {"data", Json::array({model})}})});
  if (path.substr(11) == serving.model.name) return Answer(call, {.body = Compact(model)});
  Refuse(call, {.status = 404,
                .message = fmt::format("there is no model '{}'; this server runs {}",
                                       Escaped(path.substr(11), kShownBytes), serving.model.name),
                .type = "not_found_error",
                .code = "model_not_found"});
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
  Answer(call, {.body = Compact(props)});
}

void Api::TokenizerInfo(Call& call) {
  const Tokenizer* tokenizer = call.serving->model.tokenizer;
  if (tokenizer == nullptr) return Refuse(call, {.message = "this model has no tokenizer"});
  const auto text = [&](const std::optional<TokenId>& id) {
    return id ? Json(ReplaceInvalidUtf8(tokenizer->TokenText(*id))) : Json(nullptr);
  };
  const std::string& chat = tokenizer->chat_template();
  Answer(call, {.body = Compact({{"bos_token", text(tokenizer->bos())},
                                 {"eos_token", text(tokenizer->eos())},
                                 {"vocab_size", call.serving->vocab()},
                                 {"chat_template", chat.empty() ? Json(nullptr) : Json(chat)}})});
}

void Api::Tokenize(Call& call) {
  const Tokenizer* tokenizer = call.serving->model.tokenizer;
  if (tokenizer == nullptr) return Refuse(call, {.message = "this model has no tokenizer"});
  RequestMemory memory(call.exchange->client());
  if (const auto error = memory.Take(JsonTreeBytes(call.head().body))) return Refuse(call, *error);
  const ApiResult<TokenizeRequest> request = ParseTokenize(call.head().body);
  if (!request.ok()) return Refuse(call, request.error());
  const ReserveMemory reserve = memory.hook();
  const Result<std::vector<TokenId>> ids = tokenizer->Encode(
      (*request).content,
      {.add_special = (*request).add_special, .parse_special = (*request).parse_special, .reserve = &reserve});
  if (memory.refused()) return Refuse(call, memory.Refusal());
  if (!ids.ok()) return Refuse(call, {.message = ids.error().message});
  if (const auto error = memory.Take(ids->size() * kBytesPerId)) return Refuse(call, *error);
  Answer(call, {.body = fmt::format(R"({{"tokens":[{}]}})", fmt::join(*ids, ","))});
}

void Api::Detokenize(Call& call) {
  const Tokenizer* tokenizer = call.serving->model.tokenizer;
  if (tokenizer == nullptr) return Refuse(call, {.message = "this model has no tokenizer"});
  RequestMemory memory(call.exchange->client());
  const uint64_t tree = JsonTreeBytes(call.head().body);
  if (const auto error = memory.Take(tree)) return Refuse(call, *error);
  const ApiResult<std::vector<int32_t>> ids = ParseDetokenize(call.head().body, call.serving->vocab());
  if (!ids.ok()) return Refuse(call, ids.error());
  memory.GiveBack(tree);
  uint64_t bytes = 0;
  for (const int32_t id : *ids) bytes += tokenizer->TokenText(id).size();
  if (const auto error = memory.Take((*ids).size() * sizeof(int32_t) + bytes * kTextCopies))
    return Refuse(call, *error);
  const std::string text = ReplaceInvalidUtf8(tokenizer->Decode(*ids, /*skip_special=*/false));
  Answer(call, {.body = Compact({{"content", text}, {"prompt", text}})});
}

void Api::File(Call& call) {
  const HttpRequest& head = call.head();
  const std::string_view name = head.path == "/" ? "index.html" : std::string_view(head.path).substr(1);
  for (const WebFile& file : WebFiles()) {
    if (file.name != name) continue;
    HttpReply reply{.type = std::string(ContentType(name)), .body = std::string(file.bytes)};
    reply.headers = {{"Content-Security-Policy", kContentPolicy},
                     {"Referrer-Policy", "no-referrer"},
                     {"Cross-Origin-Opener-Policy", "same-origin"},
                     {"Cache-Control", "no-cache"}};
    return Answer(call, std::move(reply));
  }
  Refuse(call, {.status = 404, .message = "no such file", .code = "not_found"});
}

std::shared_ptr<const void> Api::WatchPlace(const std::shared_ptr<Client>& client) {
  const auto take = [](std::atomic<int64_t>& counter, int64_t most) {
    if (counter++ < most) return true;
    --counter;
    return false;
  };
  if (!take(watchers_, kMostWatchers)) return nullptr;
  const std::shared_ptr<const void> all(this, [this](const void*) { --watchers_; });
  if (!take(client->watchers, client->limited ? kMostWatchersOfClient : kMostWatchers)) return nullptr;
  return std::shared_ptr<const void>(client.get(), [client, all](const void*) { --client->watchers; });
}

void Api::Watch(Call& call) {
  const std::shared_ptr<HttpExchange> exchange = call.exchange;
  Serving* serving = call.serving;
  HttpReply head{.type = "text/event-stream", .headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}}};
  if (call.head().method == "HEAD") return Answer(call, std::move(head));  // the stream itself would never end
  // Counted until the last copy is gone, which is when the watch has dropped the exchange.
  std::shared_ptr<const void> place = WatchPlace(exchange->client());
  if (place == nullptr)
    return Refuse(call, {.status = 429,
                         .message = "too many clients watch the KV cache; try again later",
                         .type = "rate_limit_error",
                         .code = "too_many_watchers",
                         .parameter = {},
                         .retry_after_s = 10});
  if (!call.Settle()) return;
  Log(call.head(), call.id, head.status, call.seconds(), "watching the KV cache");
  head.body = ": the picture of the cache follows\n\n";
  exchange->Begin(AddHeaders(call.head(), call.id, std::move(head)));
  Remember(exchange);
  const std::string tenant = access_.TenantOf(call.head().authorization);
  serving->thread.Post([serving, exchange, tenant, place](Engine&) { serving->watch.Add(exchange, tenant, place); });
  exchange->OnGone([serving, watcher = exchange.get()](HttpGone) {
    serving->thread.Post([serving, watcher](Engine&) { serving->watch.Remove(watcher); });
  });
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
