// /v1/chat/completions and /v1/completions: parse the body, encode the prompts, and submit a Completion to the engine.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <random>
#include <span>
#include <utility>

#include "json/parse.h"
#include "runtime/requests.h"
#include "server/openai_format.h"
#include "server/request_memory.h"
#include "server/serving.h"

namespace infinigen {
namespace {

// OpenAI's default for /v1/completions. A chat answer has no default limit.
constexpr int64_t kDefaultTextTokens = 16;
// A token with its logprob: 12 bytes as numbers, about 70 as JSON.
constexpr uint64_t kLogprobBytes = 96;
// Copies of a prompt that a choice echoes: as its text, and in the reply as it is made.
constexpr uint64_t kEchoCopies = 2;

}  // namespace

void Api::Chat(Call& call) { Complete(call, ApiKind::kChat); }
void Api::Text(Call& call) { Complete(call, ApiKind::kText); }

namespace {

// Token ids of every prompt. Refuses empty prompts and prompts longer than the context.
ApiResult<std::vector<std::vector<int32_t>>> EncodePrompts(const CompletionRequest& request, const ServedModel& model,
                                                           int64_t context, RequestMemory& memory) {
  std::vector<std::vector<int32_t>> all;
  const ReserveMemory reserve = memory.hook();
  if (request.kind == ApiKind::kChat) {
    if (model.chat == nullptr) return ApiError{.message = model.chat_refusal, .code = "no_chat_template"};
    Result<std::vector<TokenId>> ids = model.chat->Encode(request.messages, &reserve);
    if (memory.refused()) return memory.Refusal();
    if (!ids.ok()) return ApiError{.message = ids.error().message, .parameter = "messages"};
    all.push_back(std::move(*ids));
  }
  for (const PromptText& prompt : request.prompts) {
    if (const auto* given = std::get_if<std::vector<int32_t>>(&prompt)) {
      all.push_back(*given);
      continue;
    }
    if (model.tokenizer == nullptr)
      return ApiError{.message = "this model has no tokenizer; send token ids", .parameter = "prompt"};
    Result<std::vector<TokenId>> ids = model.tokenizer->Encode(std::get<std::string>(prompt), {.reserve = &reserve});
    if (memory.refused()) return memory.Refusal();
    if (!ids.ok()) return ApiError{.message = ids.error().message, .parameter = "prompt"};
    all.push_back(std::move(*ids));
  }
  for (const std::vector<int32_t>& ids : all) {
    const char* parameter = request.kind == ApiKind::kChat ? "messages" : "prompt";
    if (ids.empty()) return ApiError{.message = "the prompt has no tokens", .parameter = parameter};
    if (static_cast<int64_t>(ids.size()) > context)
      return ApiError{.message = fmt::format("the prompt has {} tokens, but the context holds {}", ids.size(), context),
                      .code = "context_length_exceeded",
                      .parameter = parameter};
  }
  return all;
}

// Upper bound of the tokens with logprobs that an answer holds until its end. A stream sends them with their text.
int64_t KeptLogprobs(const CompletionRequest& request, std::span<const std::vector<int32_t>> prompts, int64_t context) {
  if (!request.logprobs || request.stream) return 0;
  int64_t tokens = 0;
  for (const std::vector<int32_t>& prompt : prompts)
    tokens += request.n * std::min(request.max_tokens, context - std::ssize(prompt) + 1);
  return tokens * (request.sampling.top_logprobs + 1);
}

// Memory of a request in the engine: the ids of every prompt, once here and once a choice; its texts; its logprobs,
// once as numbers and once as JSON.
uint64_t KeptBytes(const CompletionRequest& request, std::span<const std::vector<int32_t>> prompts, int64_t context) {
  uint64_t ids = 0, texts = 0;
  for (const std::vector<int32_t>& prompt : prompts) ids += prompt.size();
  for (const PromptText& prompt : request.prompts)
    if (const auto* text = std::get_if<std::string>(&prompt)) texts += text->size();
  if (request.echo) texts += kEchoCopies * static_cast<uint64_t>(request.n) * texts;
  for (const ChatMessage& message : request.messages) texts += message.content.size();
  return ids * sizeof(int32_t) * (static_cast<uint64_t>(request.n) + 1) + texts +
         static_cast<uint64_t>(KeptLogprobs(request, prompts, context)) * kLogprobBytes;
}

// Reserves `count` of the logprobs that all unfinished answers may hold; released with the last copy of the result.
ApiResult<std::shared_ptr<const void>> ReserveLogprobs(int64_t count, std::atomic<int64_t>* all) {
  if (count > kMostLoggedTokens)
    return ApiError{.message = fmt::format("'logprobs': the request needs up to {} tokens and alternatives, but an "
                                           "answer holds {}; lower max_tokens, n or the alternatives, or set stream",
                                           count, kMostLoggedTokens),
                    .code = "too_many_logprobs",
                    .parameter = "logprobs"};
  int64_t taken = *all;
  do {
    if (taken + count > kMostLoggedTokensInAll)
      return ApiError{.status = 429,
                      .message = fmt::format("'logprobs': the request needs up to {} tokens and alternatives, but "
                                             "unfinished answers hold {} of {}; try again later, or set stream",
                                             count, taken, kMostLoggedTokensInAll),
                      .type = "rate_limit_error",
                      .code = "too_many_logprobs",
                      .parameter = "logprobs",
                      .retry_after_s = 1};
  } while (!all->compare_exchange_weak(taken, taken + count));
  return std::shared_ptr<const void>(all, [all, count](const void*) { *all -= count; });
}

// Refuses "kv" fields that the server's method does not support. The engine checks their values.
std::optional<ApiError> CheckKv(const KvWish& wish, const ExecutorOptions& options) {
  const KvMethod& method = options.method;
  const std::string_view preset = method.preset;
  const bool asks_for_selection = wish.full == false || wish.selects();
  // A method that selects and does not evict can also attend to everything.
  const bool has_all = preset == "full" || (method.selects() && !method.evicts());
  const bool refused = (asks_for_selection && preset != "infinigen") || (wish.full == true && !has_all);
  if (!refused) return std::nullopt;
  return ApiError{
      .message = fmt::format("'kv': cannot be changed, because this server runs --kv {} for every request", preset),
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

// Places in the queue until they are released or a completion takes them over.
struct Api::QueuePlaces {
  struct Guard {
    Guard(Metrics* metrics_, int64_t count_) : metrics(metrics_), count(count_) {}
    Guard(Guard&& other) noexcept : metrics(std::exchange(other.metrics, nullptr)), count(other.count) {}
    ~Guard() {
      if (metrics != nullptr) metrics->Leave(count);
    }
    Metrics* metrics;
    int64_t count;
  };
  ClientCount own;
  Guard all;
};

ApiResult<Api::QueuePlaces> Api::EnterQueue(const std::shared_ptr<Client>& client, int64_t choices, int64_t places) {
  if (choices > places)
    return ApiError{
        .message = fmt::format("the request needs {} choices, but the server has only {} places", choices, places),
        .parameter = "n"};
  const auto full = [&](const char* whose) {
    return ApiError{.status = 429,
                    .message = fmt::format("{} is full ({} places in all); try again later", whose, places),
                    .type = "rate_limit_error",
                    .code = "queue_full",
                    .parameter = {},
                    .retry_after_s = 1};
  };
  ClientCount own;
  if (http_ != nullptr) {
    own = http_->clients().TryCount(client, &Client::places, choices, places);
    if (!own) return full("this client's share of the queue");
  }
  if (!metrics_.TryEnter(choices, places)) return full("the queue");
  return QueuePlaces{std::move(own), QueuePlaces::Guard(&metrics_, choices)};
}

CompletionContext Api::ContextOf(const Call& call, const CompletionRequest& request) {
  Serving* serving = call.serving;
  const ServedModel& model = serving->model;
  const std::shared_ptr<HttpExchange> exchange = call.exchange;
  const std::string tenant = access_.TenantOf(call.head().authorization);
  // A salt of the request never equals a tenant's name: it begins with a line end.
  std::string salt = options_.share_prefixes ? std::string() : tenant;
  if (!request.cache_salt.empty()) salt += "\n" + request.cache_salt;
  return {.metrics = metrics_,
          .watch = serving->watch,
          .tokenizer = model.tokenizer,
          .preset = request.kv.full == true ? "full" : std::string(model.executor->options().method.preset),
          .add_headers = [this, exchange,
                          id = call.id](HttpReply r) { return AddHeaders(exchange->request(), id, std::move(r)); },
          .log = [this, call](int status,
                              const std::string& note) { Log(call.head(), call.id, status, call.seconds(), note); },
          .tenant = tenant,
          .cache_salt = std::move(salt),
          .client = exchange->client()->limited ? exchange->client()->name : std::string(),
          .format = [serving](std::function<void()> task) { serving->formatter.Post(nullptr, std::move(task), [] {}); },
          .heartbeat_s = model.heartbeat_s};
}

void Api::Complete(Call& call, ApiKind kind) {
  Serving* serving = call.serving;
  const ServedModel& model = serving->model;
  const std::shared_ptr<HttpExchange> exchange = call.exchange;
  const auto refuse = [&](const ApiError& error) { Refuse(call, error); };
  if (cut_) return refuse(ShuttingDown());

  SamplingOptions defaults = model.sampling;
  if (model.random_seeds) defaults.seed = std::random_device()();
  RequestMemory memory(exchange->client());
  const std::string& body = call.head().body;
  const uint64_t tree = JsonTreeBytes(body);
  if (const auto error = memory.Take(tree + body.size())) return refuse(*error);
  ApiResult<CompletionRequest> request = ParseCompletion(kind, body, defaults, serving->vocab());
  if (!request.ok()) return refuse(request.error());
  memory.GiveBack(tree);          // the request's own texts and ids are no longer than the body
  if (call.is_settled()) return;  // the client is gone: skip the encoding, which takes longer than the parsing
  if (const auto error = CheckKv(request->kv, model.executor->options())) return refuse(*error);
  ApiResult<std::vector<std::vector<int32_t>>> prompts = EncodePrompts(*request, model, serving->context(), memory);
  if (!prompts.ok()) return refuse(prompts.error());
  if (request->max_tokens < 0) request->max_tokens = kind == ApiKind::kChat ? INT32_MAX : kDefaultTextTokens;

  auto kept_logprobs = ReserveLogprobs(KeptLogprobs(*request, *prompts, serving->context()), &logged_tokens_);
  if (!kept_logprobs.ok()) return refuse(kept_logprobs.error());
  const int64_t choices = static_cast<int64_t>(prompts->size()) * request->n;
  RequestMemory kept(exchange->client());
  if (const auto error = kept.Take(KeptBytes(*request, *prompts, serving->context()))) return refuse(*error);
  const int64_t places = model.executor->options().max_batch + model.max_waiting;
  ApiResult<QueuePlaces> entered = EnterQueue(exchange->client(), choices, places);
  if (!entered.ok()) return refuse(entered.error());
  if (!call.Settle()) return;
  // From here on the Completion replies and logs.

  const AnswerHead answer{.kind = kind,
                          .id = (kind == ApiKind::kChat ? "chatcmpl-" : "cmpl-") + RandomHex(24),
                          .created = std::time(nullptr),
                          .model = model.name};
  std::vector<std::string> echoes = request->echo ? Echoes(*request, model.tokenizer) : std::vector<std::string>();
  CompletionContext context = ContextOf(call, *request);
  context.kept_logprobs = std::move(*kept_logprobs);
  context.memory = std::make_shared<const MemoryShare>(kept.TakeShare());
  context.places = std::make_shared<const ClientCount>(std::move(entered->own));
  const auto completion = std::make_shared<Completion>(std::move(context), exchange, answer, std::move(*request),
                                                       std::move(*prompts), std::move(echoes));
  Remember(exchange);
  serving->thread.Post([this, serving, completion](Engine& engine) {
    completion->Submit(engine);
    if (cut_) return engine.CancelAll();  // OnCut may have cancelled before this request was submitted
    if (completion->streams()) serving->streams.push_back(completion);
  });
  entered->all.metrics = nullptr;  // from here on the completion releases its places
  exchange->OnGone([serving, completion](HttpGone why) {
    serving->thread.Post([completion, why](Engine& engine) { completion->Cancel(engine, why); });
  });
}

}  // namespace infinigen
