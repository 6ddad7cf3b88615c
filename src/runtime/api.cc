// Implements the public C++ API (include/infinigen/infinigen.h) on top of runtime. Results become exceptions here, and
// requests, whose callbacks run on the engine's thread, become streams that any thread can read.
#include <infinigen/infinigen.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <future>
#include <mutex>
#include <utility>

#include "runtime/api_convert.h"
#include "runtime/engine_thread.h"
#include "runtime/kv_map.h"
#include "runtime/launch.h"
#include "runtime/model.h"
#include "runtime/plan.h"
#include "runtime/report.h"
#include "runtime/requests.h"
#include "runtime/run_options.h"

namespace infinigen::v1 {
namespace {

// Prompt tokens that go through one layer per turn: short prompts start together, and running streams wait for no more.
constexpr int64_t kTurnPrefillTokens = 256;
// The shortest context that an engine starts with if memory does not hold the model's context.
constexpr int64_t kLeastContext = 256;

RunPlan PlanFor(const infinigen::Model& model, const RunOptions& options) {
  Take(CheckKvRequest(options.kv));
  const RunRequest request{.device = Take(ChooseDevice(options.device)),
                           .kv = options.kv,
                           .max_tokens = Take(ChooseContext(model.config, options.context)),
                           .least_tokens = options.context > 0 ? 0 : kLeastContext,
                           .batch = options.batch};
  return Take(PlanServer(model, request));
}

}  // namespace

const char* Version() { return INFINIGEN_VERSION; }

Error::~Error() = default;

// ---- Model ----

struct Model::Impl {
  std::unique_ptr<infinigen::Model> model;
  std::optional<ChatPrompt> chat;
  std::string chat_refusal;

  const Tokenizer& tokenizer() const {
    if (model->tokenizer == nullptr)
      Throw(Invalid("{} has no tokenizer; pass prompts as token ids", model->config.name));
    return *model->tokenizer;
  }
  std::string Decode(std::span<const int32_t> tokens, bool skip_special) const {
    const int64_t vocabulary = model->config.vocab;
    for (const int32_t token : tokens)
      if (token < 0 || token >= vocabulary)
        Throw(Invalid("token {} is outside the vocabulary of {} tokens", token, vocabulary));
    return tokenizer().Decode(tokens, skip_special);
  }
};

Model::Model(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
Model::~Model() = default;
Model::Model(const Model&) = default;
Model& Model::operator=(const Model&) = default;
Model::Model(Model&&) noexcept = default;
Model& Model::operator=(Model&&) noexcept = default;

Model Model::Open(const std::string& path) { return Open(path, Callbacks()); }

Model Model::Open(const std::string& path, const Callbacks& callbacks) {
  auto impl = std::make_shared<Impl>();
  impl->model = Take(OpenModel(Take(FindModel(path, Inner(callbacks)))));
  if (impl->model->tokenizer == nullptr) {
    impl->chat_refusal = fmt::format("{} has no tokenizer", impl->model->config.name);
  } else if (Result<ChatPrompt> chat = ChatPrompt::Make(*impl->model->tokenizer); chat.ok()) {
    impl->chat = std::move(*chat);
  } else {
    impl->chat_refusal = chat.error().message;
  }
  return Model(std::move(impl));
}

ModelInfo Model::info() const {
  const ModelConfig& config = impl_->model->config;
  return {.name = config.name,
          .architecture = std::string(config.family_name()),
          .type = std::string(infinigen::Name(impl_->model->weight_type)),
          .parameters = ParameterCount(config),
          .layers = config.layers,
          .vocabulary = config.vocab,
          .context = config.max_positions,
          .bos = impl_->model->tokenizer != nullptr ? impl_->model->tokenizer->bos() : std::nullopt,
          .eos = {config.eos_ids.begin(), config.eos_ids.end()}};
}

bool Model::has_tokenizer() const { return impl_->model->tokenizer != nullptr; }

std::vector<int32_t> Model::Encode(std::string_view text, bool add_special) const {
  return Take(impl_->tokenizer().Encode(text, {.add_special = add_special}));
}

std::string Model::Decode(std::span<const int32_t> tokens) const {
  return impl_->Decode(tokens, /*skip_special=*/false);
}
std::string Model::DecodePlain(std::span<const int32_t> tokens) const {
  return impl_->Decode(tokens, /*skip_special=*/true);
}

std::vector<int32_t> Model::Opening() const { return Take(OpeningIds(impl_->tokenizer())); }

bool Model::can_chat() const { return impl_->chat.has_value(); }

std::vector<int32_t> Model::EncodeChat(const std::vector<ChatMessage>& messages) const {
  if (!impl_->chat) Throw(Unsupported("this model cannot chat: {}", impl_->chat_refusal));
  std::vector<infinigen::ChatMessage> inner;
  for (const ChatMessage& message : messages) inner.push_back({message.role, message.content});
  return Take(impl_->chat->Encode(inner));
}

// ---- Options and Plan ----

struct Options::Impl {
  RunOptions values;
};

Options::Options() : impl_(std::make_unique<Impl>()) {}
Options::~Options() = default;
Options::Options(const Options& other) : impl_(std::make_unique<Impl>(*other.impl_)) {}
Options& Options::operator=(const Options& other) {
  if (this != &other) impl_ = std::make_unique<Impl>(*other.impl_);
  return *this;
}
Options::Options(Options&&) noexcept = default;
Options& Options::operator=(Options&&) noexcept = default;

Options& Options::Set(std::string_view name, std::string_view value) {
  Take(impl_->values.Set(name, std::string(value)));
  return *this;
}

std::vector<Options::Description> Options::Describe() {
  std::vector<Description> described;
  for (OptionHelp& help : RunOptionHelp())
    described.push_back({std::move(help.name), std::move(help.value), std::move(help.help)});
  return described;
}

struct PlanAccess {
  static Plan Make(const Model& model, const Options& options) {
    const infinigen::Model& inner = *model.impl_->model;
    return PlanOf(inner.config, PlanFor(inner, options.impl_->values));
  }
};

Plan MakePlan(const Model& model, const Options& options) { return PlanAccess::Make(model, options); }

// ---- Engine and Stream ----

// The parts of a running engine, in the order of construction. Streams hold weak pointers to it.
struct EngineCore {
  std::shared_ptr<const void> model;  // keeps the executor's weights alive
  std::unique_ptr<Executor> executor;
  infinigen::Engine engine;
  KvMapRecorder maps;
  EngineThread thread;  // last member: it uses the others

  EngineCore(std::shared_ptr<const void> model_, std::unique_ptr<Executor> executor_,
             const infinigen::EngineOptions& options)
      : model(std::move(model_)),
        executor(std::move(executor_)),
        engine(*executor, options),
        maps(engine),
        thread(engine, [] {}) {}
};

struct Stream::Impl {
  Impl(std::weak_ptr<EngineCore> core_, const Tokenizer* tokenizer, std::vector<std::string> stops)
      : core(std::move(core_)), decoder(tokenizer, std::move(stops)) {}

  // On the engine's thread.
  bool OnToken(int32_t token) {
    Show(decoder.Push(token));
    return !decoder.stopped() && !cancelled;
  }
  void OnDone(const RequestResult& result) {
    Show(decoder.Finish());
    KvMap map;
    if (maps != nullptr) {
      AttendedMap attended = maps->Take(id, outcome.prompt_tokens, result.kv.steps);
      map = {attended.layers, attended.rows, attended.steps, std::move(attended.share)};
    }
    const std::lock_guard lock(mutex);
    const bool cut = cancelled && result.reason == FinishReason::kStopped && !decoder.stopped();
    outcome.tokens = result.tokens;
    outcome.finish_reason = cut ? "cancelled" : std::string(infinigen::Name(result.reason));
    outcome.cached_tokens = result.reused_tokens;
    outcome.queue_s = result.queue_s;
    outcome.prefill_s = result.prefill_s;
    outcome.decode_s = result.decode_s;
    outcome.kv = StatisticsOf(result.kv);
    outcome.kv_map = std::move(map);
    // A final EOS is not among the tokens.
    if (!outcome.logits.empty()) outcome.logits.resize(result.tokens.size() * vocabulary);
    if (outcome.logprobs.size() > result.tokens.size()) outcome.logprobs.resize(result.tokens.size());
    if (result.reason == FinishReason::kError) error = result.error;
    done = true;
    changed.notify_all();
  }
  // Only Wait reads these, when the request has ended.
  void OnLogits(std::span<const float> logits) {
    vocabulary = logits.size();
    outcome.logits.insert(outcome.logits.end(), logits.begin(), logits.end());
  }
  void OnLogprobs(const infinigen::TokenLogprobs& given) { outcome.logprobs.push_back(LogprobsOf(given)); }
  void OnScored(const infinigen::TokenLogprobs& given) { outcome.scores.push_back(LogprobsOf(given)); }
  void Show(std::string text) {
    if (text.empty()) return;
    const std::lock_guard lock(mutex);
    outcome.text += text;
    pieces.push_back(std::move(text));
    changed.notify_all();
  }

  // On any thread.
  void Cancel() {
    cancelled = true;
    const std::shared_ptr<EngineCore> alive = core.lock();
    if (alive != nullptr) alive->thread.Post([id = id](infinigen::Engine& engine) { engine.Cancel(id); });
  }
  void ThrowIfFailed() const {
    if (!error.empty()) throw Error(ErrorKind::kInvalid, error);
  }

  const std::weak_ptr<EngineCore> core;
  RequestId id;  // set before Submit returns, then constant
  TextStream decoder;
  KvMapRecorder* maps = nullptr;  // of the core, if this request is recorded
  size_t vocabulary = 0;
  std::atomic<bool> cancelled{false};

  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::string> pieces;  // not yet read
  Outcome outcome;
  std::string error;
  bool done = false;
};

Stream::Stream(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
Stream::~Stream() {
  if (impl_ != nullptr) impl_->Cancel();
}
Stream::Stream(Stream&&) noexcept = default;
Stream& Stream::operator=(Stream&& other) noexcept {
  if (this == &other) return *this;
  if (impl_ != nullptr) impl_->Cancel();
  impl_ = std::move(other.impl_);
  return *this;
}

std::optional<std::string> Stream::Next() {
  std::unique_lock lock(impl_->mutex);
  impl_->changed.wait(lock, [this] { return impl_->done || !impl_->pieces.empty(); });
  if (!impl_->pieces.empty()) {
    std::string text = std::move(impl_->pieces.front());
    impl_->pieces.pop_front();
    return text;
  }
  impl_->ThrowIfFailed();
  return std::nullopt;
}

bool Stream::AwaitText(std::chrono::milliseconds timeout) {
  std::unique_lock lock(impl_->mutex);
  return impl_->changed.wait_for(lock, timeout, [this] { return impl_->done || !impl_->pieces.empty(); });
}

bool Stream::AwaitEnd(std::chrono::milliseconds timeout) {
  std::unique_lock lock(impl_->mutex);
  return impl_->changed.wait_for(lock, timeout, [this] { return impl_->done; });
}

void Stream::Cancel() { impl_->Cancel(); }

Outcome Stream::Wait() {
  std::unique_lock lock(impl_->mutex);
  impl_->changed.wait(lock, [this] { return impl_->done; });
  impl_->ThrowIfFailed();
  return impl_->outcome;
}

struct Engine::Impl {
  std::shared_ptr<const Model::Impl> model;
  Plan plan;
  std::shared_ptr<EngineCore> core;

  // Runs `task` on the engine's thread and waits for its result.
  template <class F>
  auto Ask(F task) const {
    std::promise<decltype(task(core->engine))> promise;
    core->thread.Post([&](infinigen::Engine& engine) { promise.set_value(task(engine)); });
    return promise.get_future().get();
  }

  infinigen::Request MakeRequest(const Request& request, const std::shared_ptr<Stream::Impl>& stream) const {
    infinigen::Request inner{.prompt = request.tokens,
                             .max_new_tokens = request.max_tokens,
                             .sampling = SamplingOf(request),
                             .kv = {.full = request.kv_full,
                                    .alpha = request.kv_alpha,
                                    .cap = request.kv_cap,
                                    .mass = request.kv_mass,
                                    .tail = request.kv_tail},
                             .ignore_eos = request.ignore_eos};
    if (inner.prompt.empty()) inner.prompt = Take(model->tokenizer().Encode(request.prompt));
    stream->outcome.prompt_tokens = static_cast<int64_t>(inner.prompt.size());
    if (request.score_from) AddScoring(request, stream, &inner);
    if (request.keep_kv_map) stream->maps = &core->maps;
    if (request.keep_logits)
      inner.on_logits = [stream](RequestId, std::span<const float> logits) { stream->OnLogits(logits); };
    if (request.top_logprobs >= 0)
      inner.on_logprobs = [stream](RequestId, const infinigen::TokenLogprobs& given) { stream->OnLogprobs(given); };
    inner.on_token = [stream](RequestId, int32_t token) { return stream->OnToken(token); };
    inner.on_done = [stream](RequestId, const RequestResult& result) { stream->OnDone(result); };
    return inner;
  }

  static void AddScoring(const Request& request, const std::shared_ptr<Stream::Impl>& stream,
                         infinigen::Request* inner) {
    const int64_t first = *request.score_from, tokens = std::ssize(inner->prompt);
    if (first < 1 || first >= tokens)
      Throw(Invalid("tokens are to be scored from {} on, but of {} tokens only those from 1 on can be", first, tokens));
    inner->score.scores = true;
    inner->score.first = first;
    if (request.score_steps) inner->score.steps_from = first - 1;
    inner->on_scored = [stream](RequestId, int64_t, const infinigen::TokenLogprobs& given) { stream->OnScored(given); };
  }

  // On the engine's thread. Requests before a refused one end as cancelled, in the same turn.
  Status SubmitInner(infinigen::Engine& engine, std::vector<infinigen::Request>& requests,
                     const std::vector<std::shared_ptr<Stream::Impl>>& streams) const {
    for (size_t i = 0; i < requests.size(); ++i) {
      const Result<RequestId> id = engine.Submit(std::move(requests[i]));
      if (!id.ok()) {
        for (size_t before = 0; before < i; ++before) engine.Cancel(streams[before]->id);
        return requests.size() == 1
                   ? id.error()
                   : infinigen::Error{id.error().kind, fmt::format("request {}: {}", i, id.error().message)};
      }
      streams[i]->id = *id;
      if (streams[i]->maps != nullptr) streams[i]->maps->Start(*id);
    }
    return Ok();
  }
};

Engine::Engine(const Model& model, const Options& options, const Callbacks& callbacks)
    : impl_(std::make_unique<Impl>()) {
  const RunOptions& values = options.impl_->values;
  const infinigen::Model& inner = *model.impl_->model;
  const RunPlan plan = PlanFor(inner, values);
  impl_->model = model.impl_;
  impl_->plan = PlanOf(inner.config, plan);
  std::unique_ptr<Executor> executor = Take(Launch(inner, plan, Inner(callbacks)));
  impl_->core = std::make_shared<EngineCore>(model.impl_, std::move(executor),
                                             infinigen::EngineOptions{.grows = true,
                                                                      .reuses_prefixes = true,
                                                                      .prefix_limit_bytes = plan.prefix_bytes,
                                                                      .max_waiting = values.queue,
                                                                      .turn_prefill_tokens = kTurnPrefillTokens});
}
Engine::~Engine() = default;
Engine::Engine(Engine&&) noexcept = default;
Engine& Engine::operator=(Engine&&) noexcept = default;

const Plan& Engine::plan() const { return impl_->plan; }

Stream Engine::Submit(const Request& request) {
  std::vector<Stream> streams = SubmitAll({request});
  return std::move(streams.front());
}

std::vector<Stream> Engine::SubmitAll(const std::vector<Request>& requests) {
  std::vector<std::shared_ptr<Stream::Impl>> streams;
  std::vector<infinigen::Request> inner;
  for (const Request& request : requests) {
    CheckRequest(request, *impl_->model->model, impl_->core->executor->options().method);
    streams.push_back(std::make_shared<Stream::Impl>(impl_->core, impl_->model->model->tokenizer.get(), request.stop));
    inner.push_back(impl_->MakeRequest(request, streams.back()));
  }
  const Status submitted =
      impl_->Ask([&](infinigen::Engine& engine) { return impl_->SubmitInner(engine, inner, streams); });
  Take(submitted);
  std::vector<Stream> result;
  for (std::shared_ptr<Stream::Impl>& stream : streams) result.push_back(Stream(std::move(stream)));
  return result;
}

EngineStatistics Engine::statistics() const {
  return impl_->Ask([](infinigen::Engine& engine) {
    const EngineStats& stats = engine.stats();
    Instruments& instruments = engine.executor().instruments();
    return EngineStatistics{.running = stats.running,
                            .waiting = stats.waiting,
                            .prompt_tokens = stats.prompt_tokens,
                            .reused_tokens = stats.reused_tokens,
                            .decode_tokens = stats.decode_tokens,
                            .preemptions = stats.preemptions,
                            .pool_bytes = instruments.pool_bytes(),
                            .pool_peak_bytes = instruments.pool_peak_bytes(),
                            .prefix_bytes = stats.prefix_bytes,
                            .kv = StatisticsOf(instruments.Stats())};
  });
}

}  // namespace infinigen::v1
