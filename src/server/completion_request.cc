#include "server/completion_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "base/utf8.h"
#include "json/fields.h"
#include "json/parse.h"
#include "server/answer_format.h"

namespace infinigen {
namespace {

using Json = nlohmann::json;

FieldReader FieldsOf(const Json& object, std::string prefix = {}) {
  return FieldReader(object, "the body", std::move(prefix), FieldWording::kApi);
}

ApiError ErrorOf(const FieldProblem& problem) {
  return {.message = problem.message,
          .code = problem.kind == ErrorKind::kUnsupported ? "unsupported_parameter" : "",
          .parameter = problem.field};
}

ApiResult<Json> ParseObject(std::string_view body) {
  Json json;
  const JsonLimits limits = {.max_depth = kMostDepth, .max_token_bytes = SIZE_MAX};  // HTTP bounds the body
  if (const std::optional<JsonFault> fault = BuildJson(body, limits, &json)) {
    const char* message = fault->kind == JsonFault::Kind::kTooDeep ? "the body is nested too deeply"
                          : fault->kind == JsonFault::Kind::kNumber
                              ? "the body has a number outside the range of double"
                              : "the body is not valid JSON";
    return ApiError{.message = message, .code = "invalid_json"};
  }
  if (!json.is_object()) {
    FreeJson(json);
    return ApiError{.message = "the body must be a JSON object", .code = "invalid_json"};
  }
  return json;
}

bool ReadIds(FieldReader& fields, const char* name, const Json& array, int64_t vocab, std::vector<int32_t>* ids) {
  ids->reserve(array.size());
  for (const Json& item : array) {
    const std::optional<int64_t> id = WholeNumber(item);
    if (!id) return fields.Refuse(name, fmt::format("token ids must be integers, not {}", KindOf(item))), false;
    if (*id < 0 || *id >= vocab)
      return fields.Refuse(name, fmt::format("the token id {} is outside the vocabulary of {}", *id, vocab)), false;
    ids->push_back(static_cast<int32_t>(*id));
  }
  return true;
}

// A string, or parts of type "text".
bool ReadContent(FieldReader& fields, const Json* json, std::string* content) {
  if (json == nullptr) return true;
  if (json->is_string()) return *content = json->get<std::string>(), true;
  if (!json->is_array()) return fields.Refuse("content", "must be a string or an array of parts"), false;
  for (const Json& part : *json) {
    if (part.is_string()) {
      *content += part.get<std::string>();
      continue;
    }
    if (!part.is_object()) return fields.Refuse("content", "each part must be an object"), false;
    const auto type = part.find("type"), text = part.find("text");
    if (type == part.end() || !type->is_string() || *type != "text")
      return fields.Refuse("content", "only parts of type \"text\" are supported"), false;
    if (text == part.end() || !text->is_string()) return fields.Refuse("content", "a part has no text"), false;
    *content += text->get<std::string>();
  }
  return true;
}

// The calls of an assistant's message, and what a tool's message answers. Arguments arrive as JSON in a string;
// templates expect the object.
void ReadCalls(FieldReader& of, ChatMessage* message) {
  if (message->role == "tool") {
    message->tool_call_id = of.String("tool_call_id");
    message->name = of.String("name");
  }
  const Json* calls = of.Get("tool_calls");
  if (calls == nullptr || (calls->is_array() && calls->empty())) return;
  if (message->role != "assistant") return of.Refuse("tool_calls", "belong to the role assistant");
  if (!calls->is_array()) return of.Refuse("tool_calls", "must be an array");
  Json read = Json::array();
  for (const Json& call : *calls) {
    const auto function = call.is_object() ? call.find("function") : call.end();
    const bool fine = call.is_object() && function != call.end() && function->is_object() &&
                      function->contains("name") && (*function)["name"].is_string();
    if (!fine) return of.Refuse("tool_calls", "each must have a function with a name");
    Json arguments = function->contains("arguments") ? (*function)["arguments"] : Json("{}");
    if (!arguments.is_string() && !arguments.is_object())
      return of.Refuse("tool_calls", "arguments must be JSON in a string");
    if (arguments.is_string()) {
      Json parsed;
      const std::string& text = arguments.get_ref<const std::string&>();
      if (!BuildJson(text, {.max_depth = kMostDepth - 8, .max_token_bytes = SIZE_MAX}, &parsed) && parsed.is_object())
        arguments = std::move(parsed);
    }
    Json kept = {{"type", "function"},
                 {"function", {{"name", (*function)["name"]}, {"arguments", std::move(arguments)}}}};
    if (call.contains("id") && call["id"].is_string()) kept["id"] = call["id"];
    read.push_back(std::move(kept));
  }
  message->tool_calls = read.dump(-1, ' ', false, Json::error_handler_t::replace);
}

void ReadMessages(FieldReader& fields, CompletionRequest* request) {
  const Json* messages = fields.Get("messages");
  if (messages == nullptr) return fields.Refuse("messages", "is missing");
  if (!messages->is_array())
    return fields.Refuse("messages", fmt::format("must be an array, not {}", KindOf(*messages)));
  if (messages->empty()) return fields.Refuse("messages", "must have at least one message");
  for (size_t i = 0; i < messages->size(); ++i) {
    const Json& message = (*messages)[i];
    if (!message.is_object()) return fields.Refuse(fmt::format("messages[{}]", i), "must be an object");
    FieldReader of = FieldsOf(message, fmt::format("messages[{}].", i));
    ChatMessage read;
    read.role = of.String("role");
    if (read.role.empty()) of.Refuse("role", "is missing");
    const auto known = {"system", "developer", "user", "assistant", "tool"};
    if (std::find(known.begin(), known.end(), read.role) == known.end())
      of.Refuse("role",
                fmt::format("must be system, developer, user, assistant or tool, not {}", Quoted(read.role, 32)));
    if (read.role == "developer") read.role = "system";  // the newer name of the same thing
    ReadContent(of, of.Get("content"), &read.content);
    if (of.Get("content") == nullptr && read.role != "assistant") of.Refuse("content", "is missing");
    ReadCalls(of, &read);
    if (of.problem()) return fields.Adopt(of);
    request->messages.push_back(std::move(read));
  }
}

void ReadPrompt(FieldReader& fields, int64_t vocab, CompletionRequest* request) {
  const Json* prompt = fields.Get("prompt");
  if (prompt == nullptr) return fields.Refuse("prompt", "is missing");
  if (prompt->is_string()) {
    request->prompts.emplace_back(prompt->get<std::string>());
    return;
  }
  if (!prompt->is_array()) return fields.Refuse("prompt", "must be a string, an array of strings, or token ids");
  if (prompt->empty()) return fields.Refuse("prompt", "must not be empty");
  if (prompt->front().is_number()) {
    std::vector<int32_t> ids;
    if (ReadIds(fields, "prompt", *prompt, vocab, &ids)) request->prompts.emplace_back(std::move(ids));
    return;
  }
  if (static_cast<int64_t>(prompt->size()) > kMostChoices)
    return fields.Refuse("prompt", fmt::format("at most {} prompts at once", kMostChoices));
  for (const Json& item : *prompt) {
    std::vector<int32_t> ids;
    if (item.is_string())
      request->prompts.emplace_back(item.get<std::string>());
    else if (item.is_array() && ReadIds(fields, "prompt", item, vocab, &ids))
      request->prompts.emplace_back(std::move(ids));
    else
      return fields.Refuse("prompt", "must be a string, an array of strings, or token ids");
  }
}

void ReadBiases(FieldReader& fields, int64_t vocab, SamplingOptions* sampling) {
  const Json* bias = fields.Get("logit_bias");
  if (bias == nullptr) return;
  if (!bias->is_object()) return fields.Refuse("logit_bias", "must map token ids to numbers from -100 to 100");
  if (bias->size() > kMostBiases) return fields.Refuse("logit_bias", fmt::format("at most {} tokens", kMostBiases));
  std::map<int32_t, float> biases;  // a map because "7" and "07" are the same token: the last one counts
  for (const auto& [key, value] : bias->items()) {
    int64_t token = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), token);
    if (error != std::errc() || end != key.data() + key.size() || token < 0 || token >= vocab)
      return fields.Refuse("logit_bias", fmt::format("{} is not a token id below {}", Quoted(key, 32), vocab));
    if (!value.is_number() || !(std::abs(value.get<double>()) <= 100))
      return fields.Refuse("logit_bias", fmt::format("of token {} must be a number from -100 to 100", token));
    biases[static_cast<int32_t>(token)] = value.get<float>();
  }
  if (!biases.empty())
    sampling->logit_bias = std::make_shared<const std::vector<std::pair<int32_t, float>>>(biases.begin(), biases.end());
}

void ReadSampling(FieldReader& fields, int64_t vocab, CompletionRequest* request) {
  SamplingOptions& sampling = request->sampling;
  const auto read = [&](const char* name, double least, double most, float* value) {
    if (const std::optional<double> number = fields.Number(name, least, most)) *value = static_cast<float>(*number);
  };
  read("temperature", 0, 2, &sampling.temperature);
  read("top_p", 0, 1, &sampling.top_p);
  if (sampling.top_p <= 0) sampling.top_p = std::numeric_limits<float>::min();  // the most likely token alone
  read("presence_penalty", -2, 2, &sampling.presence_penalty);
  read("frequency_penalty", -2, 2, &sampling.frequency_penalty);
  if (const auto seed = fields.Integer("seed", INT64_MIN, INT64_MAX)) {
    sampling.seed = static_cast<uint64_t>(*seed);
    request->seed_given = true;
  }
  // Fields that OpenAI does not have, named as in other servers.
  if (const auto top_k = fields.Integer("top_k", 0, INT32_MAX)) sampling.top_k = static_cast<int32_t>(*top_k);
  read("min_p", 0, 1, &sampling.min_p);
  read("repeat_penalty", 0.01, 100, &sampling.repeat_penalty);
  request->ignore_eos = fields.Bool("ignore_eos", request->ignore_eos);
  ReadBiases(fields, vocab, &sampling);
}

void ReadStops(FieldReader& fields, CompletionRequest* request) {
  const Json* stop = fields.Get("stop");
  if (stop == nullptr) return;
  const auto add = [&](const Json& item) {
    const std::string& text = item.get_ref<const std::string&>();
    if (text.size() > kMostStopBytes)
      return fields.Refuse("stop",
                           fmt::format("a string has {} bytes, at most {} are allowed", text.size(), kMostStopBytes));
    request->stops.push_back(text);
  };
  if (stop->is_string()) return add(*stop);
  if (!stop->is_array()) return fields.Refuse("stop", "must be a string or an array of strings");
  if (stop->size() > kMostStops) return fields.Refuse("stop", fmt::format("at most {} strings", kMostStops));
  for (const Json& item : *stop) {
    if (!item.is_string()) return fields.Refuse("stop", fmt::format("must be strings, not {}", KindOf(item)));
    add(item);
  }
}

void ReadLogprobs(FieldReader& fields, CompletionRequest* request) {
  if (request->kind == ApiKind::kText) {
    const std::optional<int64_t> top = fields.Integer("logprobs", 0, kMostLogprobs);
    if (!top) return;
    request->logprobs = true;
    request->sampling.top_logprobs = static_cast<int32_t>(*top);
    return;
  }
  request->logprobs = fields.Bool("logprobs", request->logprobs);
  const std::optional<int64_t> top = fields.Integer("top_logprobs", 0, kMostLogprobs);
  if (top && !request->logprobs) return fields.Refuse("top_logprobs", "needs \"logprobs\": true");
  if (request->logprobs) request->sampling.top_logprobs = static_cast<int32_t>(top.value_or(0));
}

void ReadStream(FieldReader& fields, CompletionRequest* request) {
  request->stream = fields.Bool("stream", request->stream);
  const Json* options = fields.Get("stream_options");
  if (options == nullptr) return;
  if (!request->stream) return fields.Refuse("stream_options", "needs \"stream\": true");
  if (!options->is_object()) return fields.Refuse("stream_options", "must be an object");
  FieldReader of = FieldsOf(*options, "stream_options.");
  request->include_usage = of.Bool("include_usage", request->include_usage);
  fields.Adopt(of);
}

void ReadKv(FieldReader& fields, CompletionRequest* request) {
  const Json* kv = fields.Get("kv");
  if (kv == nullptr) return;
  if (!kv->is_object()) return fields.Refuse("kv", "must be an object like {\"preset\": \"full\"}");
  FieldReader of = FieldsOf(*kv, "kv.");
  of.RefuseOtherThan({"preset", "alpha", "cap", "mass", "tail", "score", "score_from"});
  const std::string preset = of.String("preset");
  if (!preset.empty() && preset != "full" && preset != "infinigen")
    of.Refuse("preset", "must be \"full\" or \"infinigen\"; other presets are chosen when the server starts");
  if (!preset.empty()) request->kv.full = preset == "full";
  if (const auto alpha = of.Number("alpha", 0, 1e6)) request->kv.alpha = static_cast<float>(*alpha);
  request->kv.cap = of.Number("cap", 0, 1);
  if (request->kv.cap == 0.0) of.Refuse("cap", "must be above 0 and at most 1, not 0");
  request->kv.mass = of.Number("mass", 0, 1);
  if (request->kv.mass == 0.0) of.Refuse("mass", "must be above 0 and at most 1, not 0");
  if (request->kv.mass && request->kv.alpha) of.Refuse("mass", "cannot be combined with alpha");
  if (of.Get("tail") != nullptr) request->kv.tail = of.Bool("tail", false);
  const std::string score = of.String("score");
  if (!score.empty() && score != "steps" && score != "prefill") of.Refuse("score", "must be \"steps\" or \"prefill\"");
  if (!score.empty()) request->kv.steps = score == "steps";
  const std::optional<int64_t> from = of.Integer("score_from", 0, INT32_MAX);
  if (from && score != "steps") of.Refuse("score_from", "needs \"score\": \"steps\"");
  request->kv.score_from = from.value_or(0);
  if (preset == "full" && request->kv.selects())
    of.Refuse("preset", "\"full\" attends to everything, so it accepts no alpha, cap, mass or tail");
  fields.Adopt(of);
}

// Refuses unsupported fields that would change the answer; ignoring them would give a wrong answer silently.
void RefuseOthers(FieldReader& fields, const CompletionRequest& request) {
  const auto asks = [&](const char* name) {
    const Json* json = fields.Get(name);
    return json != nullptr && !(json->is_array() && json->empty()) &&
           !(json->is_string() && json->get<std::string>().empty());
  };
  for (const char* name : {"functions", "suffix", "audio"})
    if (asks(name)) fields.Refuse(name, "is not supported", ErrorKind::kUnsupported);
  if (request.kind == ApiKind::kText)
    for (const char* name : {"tools", "tool_choice"})
      if (asks(name)) fields.Refuse(name, "is supported in chats only", ErrorKind::kUnsupported);
  // Without functions, "none" and "auto" mean the same.
  const Json* call = fields.Get("function_call");
  if (call != nullptr && *call != "none" && *call != "auto")
    fields.Refuse("function_call", "is not supported; use tools", ErrorKind::kUnsupported);
  const std::optional<int64_t> best_of = fields.Integer("best_of", 1, kMostChoices);
  if (best_of && *best_of != request.n)
    fields.Refuse("best_of", "is supported only where it equals n", ErrorKind::kUnsupported);
}

}  // namespace

ApiResult<CompletionRequest> ParseCompletion(ApiKind kind, std::string_view body, const SamplingOptions& defaults,
                                             int64_t vocab) {
  ApiResult<Json> json = ParseObject(body);
  if (!json.ok()) return json.error();
  const FreeJsonAtEnd free(*json);
  FieldReader fields = FieldsOf(*json);
  CompletionRequest request{.kind = kind, .sampling = defaults};
  for (const char* name : {"model", "user"}) fields.String(name);  // only the type is checked; the value has no effect
  if (kind == ApiKind::kChat)
    ReadMessages(fields, &request);
  else
    ReadPrompt(fields, vocab, &request);
  request.max_tokens = fields.Integer("max_tokens", 0, INT32_MAX).value_or(request.max_tokens);
  if (kind == ApiKind::kChat)
    request.max_tokens = fields.Integer("max_completion_tokens", 0, INT32_MAX).value_or(request.max_tokens);
  if (kind == ApiKind::kText) request.echo = fields.Bool("echo", request.echo);
  ReadSampling(fields, vocab, &request);
  ReadStops(fields, &request);
  request.n = fields.Integer("n", 1, kMostChoices).value_or(request.n);
  ReadLogprobs(fields, &request);
  ReadStream(fields, &request);
  ReadKv(fields, &request);
  request.cache_salt = fields.String("cache_salt");
  if (request.cache_salt.size() > kMostSaltBytes)
    fields.Refuse("cache_salt", fmt::format("at most {} bytes", kMostSaltBytes));
  RefuseOthers(fields, request);
  ReadFormat(fields, body, &request);
  if (kind == ApiKind::kChat) ReadTools(fields, body, &request);
  if (request.scores() && request.stream)
    fields.Refuse("stream", "with echo and logprobs is not supported", ErrorKind::kUnsupported);
  if (request.kv.steps && !request.scores())
    fields.Refuse("kv.score", "needs \"echo\": true and logprobs, on /v1/completions");
  const int64_t prompts = kind == ApiKind::kChat ? 1 : static_cast<int64_t>(request.prompts.size());
  if (prompts * request.n > kMostChoices)
    fields.Refuse(
        "n", fmt::format("{} prompts with {} choices each exceed the limit of {}", prompts, request.n, kMostChoices));
  if (fields.problem()) return ErrorOf(*fields.problem());
  return request;
}

ApiResult<TokenizeRequest> ParseTokenize(std::string_view body) {
  ApiResult<Json> json = ParseObject(body);
  if (!json.ok()) return json.error();
  const FreeJsonAtEnd free(*json);
  FieldReader fields = FieldsOf(*json);
  TokenizeRequest request;
  const bool prompt = fields.Get("content") == nullptr && fields.Get("prompt") != nullptr;
  request.content = fields.RequiredString(prompt ? "prompt" : "content");
  request.add_special = prompt ? fields.Bool("add_special_tokens", true) : fields.Bool("add_special", false);
  request.parse_special = fields.Bool("parse_special", request.parse_special);
  if (fields.problem()) return ErrorOf(*fields.problem());
  return request;
}

ApiResult<std::vector<int32_t>> ParseDetokenize(std::string_view body, int64_t vocab) {
  ApiResult<Json> json = ParseObject(body);
  if (!json.ok()) return json.error();
  const FreeJsonAtEnd free(*json);
  FieldReader fields = FieldsOf(*json);
  std::vector<int32_t> ids;
  const Json* tokens = fields.Get("tokens");
  if (tokens == nullptr)
    fields.Refuse("tokens", "is missing");
  else if (!tokens->is_array())
    fields.Refuse("tokens", fmt::format("must be an array, not {}", KindOf(*tokens)));
  else
    ReadIds(fields, "tokens", *tokens, vocab, &ids);
  if (fields.problem()) return ErrorOf(*fields.problem());
  return ids;
}

}  // namespace infinigen
