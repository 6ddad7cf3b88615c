// /v1/chat/completions and /v1/completions: parse the body, encode the prompts, and submit a Completion to the engine.
#include <fmt/format.h>

#include <memory>
#include <random>
#include <utility>

#include "json/parse.h"
#include "runtime/requests.h"
#include "server/admission.h"
#include "server/answer_format.h"
#include "server/openai_format.h"
#include "server/request_memory.h"
#include "server/serving.h"

namespace infinigen {
namespace {

// OpenAI's default for /v1/completions. A chat answer has no default limit.
constexpr int64_t kDefaultTextTokens = 16;
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
    const bool tools = request.calls_tools();
    Result<std::vector<TokenId>> ids =
        model.chat->Encode(request.messages, &reserve, tools ? request.tools_json : std::string_view());
    if (memory.refused()) return memory.Refusal();
    if (!ids.ok()) return ApiError{.message = ids.error().message, .parameter = "messages"};
    if (tools && request.tool_choice == ToolChoice::kRequired) {
      const std::string_view opening = CallOpening(FormOfTemplate(model.tokenizer->chat_template()));
      const Result<std::vector<TokenId>> added = model.tokenizer->Encode(opening, {.add_special = false});
      if (!added.ok()) return ApiError{.message = added.error().message, .parameter = "tool_choice"};
      ids->insert(ids->end(), added->begin(), added->end());
    }
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

// The form in which the model calls the request's tools; kNone where it has none. A forced call gets its grammar.
ApiResult<ToolForm> PrepareTools(const ServedModel& model, CompletionRequest* request) {
  if (!request->calls_tools()) return ToolForm::kNone;
  const ToolForm form = model.tokenizer == nullptr ? ToolForm::kNone : FormOfTemplate(model.tokenizer->chat_template());
  if (form == ToolForm::kNone)
    return ApiError{.message =
                        "'tools': the model's chat template has no tools, or calls them in a form that this "
                        "server does not know",
                    .code = "unsupported_parameter",
                    .parameter = "tools"};
  if (request->tool_choice == ToolChoice::kRequired)
    request->grammar = GrammarSource{GrammarSource::Kind::kJsonSchema, CallSchema(*request, ArgumentsKey(form))};
  return form;
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

CompletionContext Api::ContextOf(const Call& call, const CompletionRequest& request) {
  Serving* serving = call.serving;
  const ServedModel& model = serving->model;
  const std::shared_ptr<HttpExchange> exchange = call.exchange;
  const std::string tenant = access_.TenantOf(call.head().authorization);
  std::string salt = CacheSalt(options_.share_prefixes ? std::string() : tenant, request.cache_salt);
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
          .format =
              [serving, client = exchange->client()](std::function<void()> task) {
                serving->formatter.Post(nullptr, std::move(task), [] {}, {.id = client.get()});
              },
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
  const ApiResult<ToolForm> form = PrepareTools(model, &*request);
  if (!form.ok()) return refuse(form.error());
  ApiResult<std::shared_ptr<const CompiledGrammar>> grammar = std::shared_ptr<const CompiledGrammar>();
  if (request->grammar)
    grammar = serving->grammars.Compile(*request->grammar, model.tokenizer, serving->vocab(),
                                        model.executor->config().eos_ids);
  if (!grammar.ok()) return refuse(grammar.error());
  const auto began = Serving::Clock::now();
  ApiResult<std::vector<std::vector<int32_t>>> prompts = EncodePrompts(*request, model, serving->context(), memory);
  if (kind == ApiKind::kChat && body.size() <= kInPlaceBytes && Serving::Clock::now() - began > kSlowChat)
    serving->slow_chats = true;
  if (!prompts.ok()) return refuse(prompts.error());
  if (!request->kv.steps) request->kv.steps = model.score_steps;
  if (request->max_tokens < 0) request->max_tokens = kind == ApiKind::kChat ? INT32_MAX : kDefaultTextTokens;

  auto kept_logprobs = ReserveLogprobs(KeptLogprobs(*request, *prompts, serving->context()), &logged_tokens_);
  if (!kept_logprobs.ok()) return refuse(kept_logprobs.error());
  const int64_t choices = static_cast<int64_t>(prompts->size()) * request->n;
  RequestMemory kept(exchange->client());
  if (const auto error = kept.Take(KeptBytes(*request, *prompts, serving->context()))) return refuse(*error);
  const int64_t places = model.executor->options().max_batch + model.max_waiting;
  ApiResult<QueuePlaces> entered =
      EnterQueue(http_ != nullptr ? &http_->clients() : nullptr, metrics_, exchange->client(), choices, places);
  if (!entered.ok()) return refuse(entered.error());
  if (!call.Settle()) return;
  // From here on the Completion replies and logs.

  const AnswerHead answer{.kind = kind,
                          .id = (kind == ApiKind::kChat ? "chatcmpl-" : "cmpl-") + RandomHex(24),
                          .created = std::time(nullptr),
                          .model = model.name};
  std::vector<std::string> echoes = request->echo ? Echoes(*request, model.tokenizer) : std::vector<std::string>();
  CompletionContext context = ContextOf(call, *request);
  context.grammar = std::move(*grammar);
  context.tool_form = *form;
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
