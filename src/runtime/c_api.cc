// Implements the C ABI (include/infinigen/infinigen_c.h) on top of the C++ API. Every function body runs inside Guard,
// which turns exceptions into a status and a message.
#include <infinigen/infinigen.h>
#include <infinigen/infinigen_c.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <exception>
#include <iterator>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace v1 = infinigen::v1;

struct infinigen_model {
  v1::Model model;
  v1::ModelInfo info;
};
struct infinigen_options {
  v1::Options options;
};
struct infinigen_engine {
  v1::Engine engine;
};
struct infinigen_request {
  v1::Request request;
};
struct infinigen_stream {
  v1::Stream stream;
  std::string piece;                   // the text that _next returned last
  std::optional<v1::Outcome> outcome;  // set by _wait
};

namespace {

thread_local std::string last_error;

infinigen_status Fail(infinigen_status status, std::string_view message) {
  last_error = message;
  return status;
}

// Throws if the argument is NULL.
template <class T>
T& Given(T* pointer, const char* name) {
  if (pointer == nullptr) throw v1::Error(v1::ErrorKind::kInvalid, std::string(name) + " is NULL");
  return *pointer;
}

template <class F>
infinigen_status Guard(F body) noexcept {
  try {
    last_error.clear();
    body();
    return INFINIGEN_OK;
  } catch (const v1::Error& error) {
    return Fail(static_cast<infinigen_status>(static_cast<int>(error.kind()) + 1), error.what());
  } catch (const std::bad_alloc&) {
    return Fail(INFINIGEN_EXHAUSTED, "out of memory");
  } catch (const std::exception& error) {
    return Fail(INFINIGEN_INTERNAL, error.what());
  } catch (...) {
    return Fail(INFINIGEN_INTERNAL, "an unknown exception");
  }
}
static_assert(INFINIGEN_EXHAUSTED == static_cast<int>(v1::ErrorKind::kExhausted) + 1);

// Fills the members that the caller's version of the struct has.
template <class T>
void Fill(T* target, T value) {
  const size_t size = target->size;
  if (size < sizeof(size_t) || size > sizeof(T))
    throw v1::Error(v1::ErrorKind::kInvalid,
                    "the member `size` of a struct must be its sizeof; it is unset, or from a later version");
  value.size = size;
  std::memcpy(target, &value, size);
}

template <class T>
void CopyOut(const T* from, size_t count, T* to, size_t room, size_t* length) {
  Given(length, "length") = count;
  if (to != nullptr && count > 0) std::memcpy(to, from, std::min(count, room) * sizeof(T));
}

infinigen_kv_stats KvStatsOf(const v1::KvStatistics& kv) {
  return {.size = sizeof(infinigen_kv_stats),
          .steps = kv.steps,
          .selected_ratio = kv.selected_ratio,
          .extra_ratio = kv.extra_ratio,
          .attended_ratio = kv.attended_ratio,
          .hit_ratio = kv.hit_ratio.value_or(-1.0),
          .read_bytes = kv.read_bytes,
          .fetched_bytes = kv.fetched_bytes,
          .evicted = kv.evicted};
}

template <class T>
T Number(std::string_view name, std::string_view text) {
  T value{};
  const auto [rest, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failure != std::errc() || rest != text.data() + text.size())
    throw v1::Error(v1::ErrorKind::kInvalid, std::string(name) + ": '" + std::string(text) + "' is not a valid number");
  return value;
}

bool Flag(std::string_view name, std::string_view text) {
  if (text == "1" || text == "true" || text.empty()) return true;
  if (text == "0" || text == "false") return false;
  throw v1::Error(v1::ErrorKind::kInvalid, std::string(name) + ": '" + std::string(text) + "' is neither 1 nor 0");
}

const std::vector<v1::Options::Description>& OptionDescriptions() {
  static const std::vector<v1::Options::Description> descriptions = v1::Options::Describe();
  return descriptions;
}

using Setter = void (*)(v1::Request& request, std::string_view name, const std::string& text);
struct Field {
  std::string_view name;
  Setter set;
};
using Name = std::string_view;
using Text = const std::string&;
constexpr Field kFields[] = {
    {"max-tokens", [](v1::Request& r, Name n, Text t) { r.max_tokens = Number<int64_t>(n, t); }},
    {"temp", [](v1::Request& r, Name n, Text t) { r.sampling.temperature = Number<float>(n, t); }},
    {"top-k", [](v1::Request& r, Name n, Text t) { r.sampling.top_k = Number<int32_t>(n, t); }},
    {"top-p", [](v1::Request& r, Name n, Text t) { r.sampling.top_p = Number<float>(n, t); }},
    {"min-p", [](v1::Request& r, Name n, Text t) { r.sampling.min_p = Number<float>(n, t); }},
    {"repeat-penalty", [](v1::Request& r, Name n, Text t) { r.sampling.repeat_penalty = Number<float>(n, t); }},
    {"repeat-last-n", [](v1::Request& r, Name n, Text t) { r.sampling.repeat_window = Number<int32_t>(n, t); }},
    {"presence-penalty", [](v1::Request& r, Name n, Text t) { r.sampling.presence_penalty = Number<float>(n, t); }},
    {"frequency-penalty", [](v1::Request& r, Name n, Text t) { r.sampling.frequency_penalty = Number<float>(n, t); }},
    {"seed", [](v1::Request& r, Name n, Text t) { r.sampling.seed = Number<uint64_t>(n, t); }},
    {"stop", [](v1::Request& r, Name, Text t) { r.stop.push_back(t); }},
    {"ignore-eos", [](v1::Request& r, Name n, Text t) { r.ignore_eos = Flag(n, t); }},
    {"kv-full", [](v1::Request& r, Name n, Text t) { r.kv_full = Flag(n, t); }},
    {"kv-alpha", [](v1::Request& r, Name n, Text t) { r.kv_alpha = Number<float>(n, t); }},  // also "inf"
    {"kv-cap", [](v1::Request& r, Name n, Text t) { r.kv_cap = Number<double>(n, t); }},
    {"kv-mass", [](v1::Request& r, Name n, Text t) { r.kv_mass = Number<double>(n, t); }},
    {"kv-tail", [](v1::Request& r, Name n, Text t) { r.kv_tail = Flag(n, t); }},
};

v1::Callbacks CallbacksOf(const infinigen_callbacks* given) {
  if (given == nullptr) return {};
  if (given->size < offsetof(infinigen_callbacks, cancelled) + sizeof(given->cancelled))
    throw v1::Error(v1::ErrorKind::kInvalid, "callbacks.size is not set to sizeof(infinigen_callbacks)");
  infinigen_callbacks all{};
  std::memcpy(&all, given, std::min(given->size, sizeof(all)));
  v1::Callbacks callbacks;
  if (all.on_warning != nullptr)
    callbacks.on_warning = [all](std::string_view text) { all.on_warning(all.context, std::string(text).c_str()); };
  if (all.on_notice != nullptr)
    callbacks.on_notice = [all](std::string_view text) { all.on_notice(all.context, std::string(text).c_str()); };
  if (all.on_progress != nullptr)
    callbacks.on_progress = [all](int64_t done, int64_t total) { all.on_progress(all.context, done, total); };
  if (all.cancelled != nullptr) callbacks.cancelled = [all] { return all.cancelled(all.context); };
  return callbacks;
}

}  // namespace

extern "C" {

int infinigen_abi_version(void) { return INFINIGEN_ABI_VERSION; }
const char* infinigen_version(void) { return v1::Version(); }
const char* infinigen_last_error(void) { return last_error.c_str(); }

infinigen_status infinigen_model_open(const char* path, infinigen_model** model) {
  return infinigen_model_open_with_callbacks(path, nullptr, model);
}
infinigen_status infinigen_model_open_with_callbacks(const char* path, const infinigen_callbacks* callbacks,
                                                     infinigen_model** model) {
  return Guard([&] {
    Given(model, "model") = nullptr;
    v1::Model opened = v1::Model::Open(path == nullptr ? "" : path, CallbacksOf(callbacks));
    v1::ModelInfo info = opened.info();
    *model = new infinigen_model{std::move(opened), std::move(info)};
  });
}
void infinigen_model_free(infinigen_model* model) { delete model; }

infinigen_status infinigen_model_get_info(const infinigen_model* model, infinigen_model_info* info) {
  return Guard([&] {
    const v1::ModelInfo& of = Given(model, "model").info;
    Fill(&Given(info, "info"), {.size = sizeof(infinigen_model_info),
                                .parameters = of.parameters,
                                .layers = of.layers,
                                .vocabulary = of.vocabulary,
                                .context = of.context,
                                .has_tokenizer = model->model.has_tokenizer(),
                                .can_chat = model->model.can_chat(),
                                .name = of.name.c_str(),
                                .architecture = of.architecture.c_str(),
                                .type = of.type.c_str()});
  });
}

infinigen_status infinigen_encode(const infinigen_model* model, const char* text, size_t bytes, bool add_special,
                                  int32_t* tokens, size_t room, size_t* length) {
  return Guard([&] {
    const std::string_view view(bytes == 0 ? "" : &Given(text, "text"), bytes);
    const std::vector<int32_t> ids = Given(model, "model").model.Encode(view, add_special);
    CopyOut(ids.data(), ids.size(), tokens, room, length);
  });
}
infinigen_status infinigen_decode(const infinigen_model* model, const int32_t* tokens, size_t count, char* text,
                                  size_t room, size_t* length) {
  return Guard([&] {
    const std::string decoded =
        Given(model, "model").model.Decode({count == 0 ? nullptr : &Given(tokens, "tokens"), count});
    CopyOut(decoded.data(), decoded.size(), text, room, length);
  });
}
infinigen_status infinigen_encode_chat(const infinigen_model* model, const infinigen_message* messages, size_t count,
                                       int32_t* tokens, size_t room, size_t* length) {
  return Guard([&] {
    std::vector<v1::ChatMessage> conversation;
    for (size_t i = 0; i < count; ++i) {
      const infinigen_message& message = (&Given(messages, "messages"))[i];
      conversation.push_back({&Given(message.role, "role"), &Given(message.content, "content")});
    }
    const std::vector<int32_t> ids = Given(model, "model").model.EncodeChat(conversation);
    CopyOut(ids.data(), ids.size(), tokens, room, length);
  });
}

infinigen_status infinigen_options_new(infinigen_options** options) {
  return Guard([&] { Given(options, "options") = new infinigen_options; });
}
infinigen_status infinigen_options_set(infinigen_options* options, const char* name, const char* value) {
  return Guard([&] { Given(options, "options").options.Set(&Given(name, "name"), &Given(value, "value")); });
}
void infinigen_options_free(infinigen_options* options) { delete options; }

size_t infinigen_option_count(void) {
  size_t count = 0;
  return Guard([&] { count = OptionDescriptions().size(); }) == INFINIGEN_OK ? count : 0;
}
infinigen_status infinigen_option_describe(size_t index, infinigen_option* option) {
  return Guard([&] {
    const auto& all = OptionDescriptions();
    if (index >= all.size())
      throw v1::Error(v1::ErrorKind::kInvalid, "there are only " + std::to_string(all.size()) + " options");
    Fill(&Given(option, "option"), {.size = sizeof(infinigen_option),
                                    .name = all[index].name.c_str(),
                                    .value = all[index].value.c_str(),
                                    .help = all[index].help.c_str()});
  });
}

infinigen_status infinigen_make_plan(const infinigen_model* model, const infinigen_options* options,
                                     infinigen_plan* plan, char* text, size_t room, size_t* length) {
  return Guard([&] {
    const v1::Plan made =
        v1::MakePlan(Given(model, "model").model, options == nullptr ? v1::Options() : options->options);
    if (plan != nullptr)
      Fill(plan, {.size = sizeof(infinigen_plan),
                  .fits = made.fits,
                  .context = made.context,
                  .batch = made.batch,
                  .largest_context = made.largest_context,
                  .weights_bytes = made.weights_bytes,
                  .pool_bytes = made.pool_bytes,
                  .sketch_bytes = made.sketch_bytes,
                  .hot_bytes = made.hot_bytes,
                  .workspace_bytes = made.workspace_bytes,
                  .prefill_bytes = made.prefill_bytes,
                  .total_bytes = made.total_bytes,
                  .host_bytes = made.host_bytes,
                  .device_bytes = made.device_bytes,
                  .available_bytes = made.available_bytes,
                  .prefix_bytes = made.prefix_bytes});
    const std::string words = made.fits ? made.text : made.text + made.refusal + "\n";
    size_t ignored = 0;
    CopyOut(words.data(), words.size(), text, room, length == nullptr ? &ignored : length);
  });
}

infinigen_status infinigen_engine_start(const infinigen_model* model, const infinigen_options* options,
                                        const infinigen_callbacks* callbacks, infinigen_engine** engine) {
  return Guard([&] {
    Given(engine, "engine") = nullptr;
    *engine = new infinigen_engine{v1::Engine(
        Given(model, "model").model, options == nullptr ? v1::Options() : options->options, CallbacksOf(callbacks))};
  });
}
void infinigen_engine_free(infinigen_engine* engine) { delete engine; }

infinigen_status infinigen_engine_get_stats(const infinigen_engine* engine, infinigen_engine_stats* stats,
                                            infinigen_kv_stats* kv) {
  return Guard([&] {
    const v1::EngineStatistics of = Given(engine, "engine").engine.statistics();
    if (stats != nullptr)
      Fill(stats, {.size = sizeof(infinigen_engine_stats),
                   .running = of.running,
                   .waiting = of.waiting,
                   .prompt_tokens = of.prompt_tokens,
                   .reused_tokens = of.reused_tokens,
                   .decode_tokens = of.decode_tokens,
                   .preemptions = of.preemptions,
                   .pool_bytes = of.pool_bytes,
                   .pool_peak_bytes = of.pool_peak_bytes,
                   .prefix_bytes = of.prefix_bytes});
    if (kv != nullptr) Fill(kv, KvStatsOf(of.kv));
  });
}

infinigen_status infinigen_request_new(infinigen_request** request) {
  return Guard([&] { Given(request, "request") = new infinigen_request; });
}
infinigen_status infinigen_request_set_prompt(infinigen_request* request, const char* text, size_t bytes) {
  return Guard([&] {
    Given(request, "request").request.prompt.assign(bytes == 0 ? "" : &Given(text, "text"), bytes);
    request->request.tokens.clear();
  });
}
infinigen_status infinigen_request_set_tokens(infinigen_request* request, const int32_t* tokens, size_t count) {
  return Guard([&] {
    std::vector<int32_t>& prompt = Given(request, "request").request.tokens;
    prompt.clear();
    if (count > 0) prompt.assign(&Given(tokens, "tokens"), tokens + count);
  });
}
infinigen_status infinigen_request_set(infinigen_request* request, const char* name, const char* value) {
  return Guard([&] {
    const std::string_view wanted = &Given(name, "name");
    const auto field =
        std::find_if(std::begin(kFields), std::end(kFields), [&](const Field& f) { return f.name == wanted; });
    if (field == std::end(kFields))
      throw v1::Error(v1::ErrorKind::kInvalid, "unknown request field '" + std::string(wanted) + "'");
    field->set(Given(request, "request").request, wanted, &Given(value, "value"));
  });
}
void infinigen_request_free(infinigen_request* request) { delete request; }

infinigen_status infinigen_submit(infinigen_engine* engine, const infinigen_request* request,
                                  infinigen_stream** stream) {
  return Guard([&] {
    Given(stream, "stream") = nullptr;
    *stream = new infinigen_stream{Given(engine, "engine").engine.Submit(Given(request, "request").request), {}, {}};
  });
}

infinigen_status infinigen_stream_next(infinigen_stream* stream, const char** text, size_t* bytes) {
  return Guard([&] {
    Given(text, "text") = nullptr;
    if (bytes != nullptr) *bytes = 0;
    std::optional<std::string> piece = Given(stream, "stream").stream.Next();
    if (!piece) return;
    stream->piece = std::move(*piece);
    *text = stream->piece.c_str();
    if (bytes != nullptr) *bytes = stream->piece.size();
  });
}
infinigen_status infinigen_stream_cancel(infinigen_stream* stream) {
  return Guard([&] { Given(stream, "stream").stream.Cancel(); });
}
infinigen_status infinigen_stream_wait(infinigen_stream* stream, infinigen_outcome* outcome, infinigen_kv_stats* kv) {
  return Guard([&] {
    if (!Given(stream, "stream").outcome) stream->outcome = stream->stream.Wait();
    const v1::Outcome& of = *stream->outcome;
    if (outcome != nullptr)
      Fill(outcome, {.size = sizeof(infinigen_outcome),
                     .prompt_tokens = of.prompt_tokens,
                     .cached_tokens = of.cached_tokens,
                     .queue_s = of.queue_s,
                     .prefill_s = of.prefill_s,
                     .decode_s = of.decode_s,
                     .finish_reason = of.finish_reason.c_str(),
                     .text = of.text.c_str(),
                     .text_bytes = of.text.size(),
                     .tokens = of.tokens.data(),
                     .token_count = of.tokens.size()});
    if (kv != nullptr) Fill(kv, KvStatsOf(of.kv));
  });
}
void infinigen_stream_free(infinigen_stream* stream) { delete stream; }

}  // extern "C"
