#include "server/completion_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

namespace infinigen {
namespace {

using Json = nlohmann::json;

// Reads fields of one object; keeps the first thing that is wrong.
class Fields {
 public:
  explicit Fields(const Json& object, std::string prefix = {}) : object_(object), prefix_(std::move(prefix)) {}

  // Null counts as absent, as in OpenAI's API.
  const Json* Find(const char* name) {
    const auto found = object_.find(name);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  void Refuse(const std::string& name, const std::string& what, std::string code = {}) {
    if (error_) return;
    const std::string field = prefix_ + name;
    error_ = ApiError{.message = fmt::format("'{}': {}", field, what), .code = std::move(code), .parameter = field};
  }
  void Bool(const char* name, bool* value) {
    const Json* json = Find(name);
    if (json == nullptr) return;
    if (!json->is_boolean()) return Refuse(name, fmt::format("must be true or false, not {}", Kind(*json)));
    *value = json->get<bool>();
  }
  // True: it was given and is right.
  bool Integer(const char* name, int64_t least, int64_t most, int64_t* value) {
    const Json* json = Find(name);
    if (json == nullptr) return false;
    if (!ToInteger(*json, value)) {
      if (json->is_number_integer())  // of more than 63 bits
        Refuse(name, fmt::format("must be from {} to {}, not {}", least, most, json->get<uint64_t>()));
      else if (json->is_number() && std::trunc(json->get<double>()) == json->get<double>())  // of more than 64
        Refuse(name,
               fmt::format("the number is too large: must be from {} to {}, not {}", least, most, json->get<double>()));
      else
        Refuse(name, fmt::format("must be an integer, not {}", Kind(*json)));
      return false;
    }
    if (*value < least || *value > most)
      return Refuse(name, fmt::format("must be from {} to {}, not {}", least, most, *value)), false;
    return true;
  }
  bool Number(const char* name, double least, double most, double* value) {
    const Json* json = Find(name);
    if (json == nullptr) return false;
    if (!json->is_number()) return Refuse(name, fmt::format("must be a number, not {}", Kind(*json))), false;
    *value = json->get<double>();
    if (!(*value >= least && *value <= most))
      return Refuse(name, fmt::format("must be from {} to {}, not {}", least, most, *value)), false;
    return true;
  }
  void Float(const char* name, double least, double most, float* value) {
    double read = 0;
    if (Number(name, least, most, &read)) *value = static_cast<float>(read);
  }
  void Text(const char* name, std::string* value) {
    const Json* json = Find(name);
    if (json == nullptr) return;
    if (!json->is_string()) return Refuse(name, fmt::format("must be a string, not {}", Kind(*json)));
    *value = json->get<std::string>();
  }

  const std::optional<ApiError>& error() const { return error_; }
  void Adopt(const std::optional<ApiError>& error) {
    if (!error_) error_ = error;
  }

  static std::string_view Kind(const Json& json) {
    if (json.is_null()) return "null";
    if (json.is_number_integer()) return "an integer";
    if (json.is_number()) return "a number";
    if (json.is_string()) return "a string";
    if (json.is_boolean()) return "a boolean";
    return json.is_array() ? "an array" : "an object";
  }
  // 3 and 3.0, not 3.5, and nothing beyond 64 bits.
  static bool ToInteger(const Json& json, int64_t* value) {
    if (json.is_number_unsigned()) {
      const uint64_t read = json.get<uint64_t>();
      *value = static_cast<int64_t>(read);
      return read <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
    }
    if (json.is_number_integer()) return *value = json.get<int64_t>(), true;
    if (!json.is_number_float()) return false;
    const double read = json.get<double>();
    if (!(std::abs(read) < 9e15) || read != std::floor(read)) return false;
    *value = static_cast<int64_t>(read);
    return true;
  }

 private:
  const Json& object_;
  std::string prefix_;
  std::optional<ApiError> error_;
};

// A body that nests deeply costs far more memory than it has bytes.
bool TooDeep(std::string_view body) {
  int depth = 0;
  bool quoted = false;
  for (size_t i = 0; i < body.size(); ++i) {
    const char c = body[i];
    if (quoted) {
      if (c == '\\') ++i;
      quoted = c != '"';
    } else if (c == '"') {
      quoted = true;
    } else if (c == '{' || c == '[') {
      if (++depth > kMostDepth) return true;
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return false;
}

ApiResult<Json> ParseObject(std::string_view body) {
  if (TooDeep(body)) return ApiError{.message = "the body is nested too deeply", .code = "invalid_json"};
  Json json = Json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return ApiError{.message = "the body is not valid JSON", .code = "invalid_json"};
  if (!json.is_object()) return ApiError{.message = "the body must be a JSON object", .code = "invalid_json"};
  return json;
}

bool ReadIds(Fields& fields, const char* name, const Json& array, int64_t vocab, std::vector<int32_t>* ids) {
  ids->reserve(array.size());
  for (const Json& item : array) {
    int64_t id = 0;
    if (!Fields::ToInteger(item, &id))
      return fields.Refuse(name, fmt::format("token ids must be integers, not {}", Fields::Kind(item))), false;
    if (id < 0 || id >= vocab)
      return fields.Refuse(name, fmt::format("the token id {} is outside the vocabulary of {}", id, vocab)), false;
    ids->push_back(static_cast<int32_t>(id));
  }
  return true;
}

// A string, or parts of type "text".
bool ReadContent(Fields& fields, const Json* json, std::string* content) {
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
      return fields.Refuse("content", "only parts of type \"text\" are understood"), false;
    if (text == part.end() || !text->is_string()) return fields.Refuse("content", "a part has no text"), false;
    *content += text->get<std::string>();
  }
  return true;
}

void ReadMessages(Fields& fields, CompletionRequest* request) {
  const Json* messages = fields.Find("messages");
  if (messages == nullptr) return fields.Refuse("messages", "is missing");
  if (!messages->is_array())
    return fields.Refuse("messages", fmt::format("must be an array, not {}", Fields::Kind(*messages)));
  if (messages->empty()) return fields.Refuse("messages", "must have at least one message");
  for (size_t i = 0; i < messages->size(); ++i) {
    const Json& message = (*messages)[i];
    if (!message.is_object()) return fields.Refuse(fmt::format("messages[{}]", i), "must be an object");
    Fields of(message, fmt::format("messages[{}].", i));
    ChatMessage read;
    of.Text("role", &read.role);
    if (read.role.empty()) of.Refuse("role", "is missing");
    // Others belong to tools, which nobody here calls, and templates drop them or write whatever they are.
    const auto known = {"system", "developer", "user", "assistant"};
    if (std::find(known.begin(), known.end(), read.role) == known.end())
      of.Refuse("role", fmt::format("must be system, developer, user or assistant, not '{}'", read.role.substr(0, 32)));
    if (read.role == "developer") read.role = "system";  // the newer name of the same thing
    ReadContent(of, of.Find("content"), &read.content);
    if (of.Find("content") == nullptr && read.role != "assistant") of.Refuse("content", "is missing");
    if (of.error()) return fields.Adopt(of.error());
    request->messages.push_back(std::move(read));
  }
}

void ReadPrompt(Fields& fields, int64_t vocab, CompletionRequest* request) {
  const Json* prompt = fields.Find("prompt");
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

void ReadSampling(Fields& fields, int64_t vocab, CompletionRequest* request) {
  SamplingOptions& sampling = request->sampling;
  int64_t number = 0;
  fields.Float("temperature", 0, 2, &sampling.temperature);
  fields.Float("top_p", 0, 1, &sampling.top_p);
  if (sampling.top_p <= 0) sampling.top_p = std::numeric_limits<float>::min();  // the most likely token alone
  fields.Float("presence_penalty", -2, 2, &sampling.presence_penalty);
  fields.Float("frequency_penalty", -2, 2, &sampling.frequency_penalty);
  if (fields.Integer("seed", std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max(), &number)) {
    sampling.seed = static_cast<uint64_t>(number);
    request->seed_given = true;
  }
  // Beyond OpenAI's, as other servers call them.
  if (fields.Integer("top_k", 0, INT32_MAX, &number)) sampling.top_k = static_cast<int32_t>(number);
  fields.Float("min_p", 0, 1, &sampling.min_p);
  fields.Float("repeat_penalty", 0.01, 100, &sampling.repeat_penalty);
  fields.Bool("ignore_eos", &request->ignore_eos);

  const Json* bias = fields.Find("logit_bias");
  if (bias == nullptr) return;
  if (!bias->is_object()) return fields.Refuse("logit_bias", "must map token ids to numbers from -100 to 100");
  if (bias->size() > kMostBiases) return fields.Refuse("logit_bias", fmt::format("at most {} tokens", kMostBiases));
  std::map<int32_t, float> biases;  // "7" and "07" are one token: one of them counts
  for (const auto& [key, value] : bias->items()) {
    int64_t token = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), token);
    if (error != std::errc() || end != key.data() + key.size() || token < 0 || token >= vocab)
      return fields.Refuse("logit_bias", fmt::format("'{}' is no token id below {}", key.substr(0, 32), vocab));
    if (!value.is_number() || !(std::abs(value.get<double>()) <= 100))
      return fields.Refuse("logit_bias", fmt::format("of token {} must be a number from -100 to 100", token));
    biases[static_cast<int32_t>(token)] = value.get<float>();
  }
  if (!biases.empty())
    sampling.logit_bias = std::make_shared<const std::vector<std::pair<int32_t, float>>>(biases.begin(), biases.end());
}

void ReadStops(Fields& fields, CompletionRequest* request) {
  const Json* stop = fields.Find("stop");
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
    if (!item.is_string()) return fields.Refuse("stop", fmt::format("must be strings, not {}", Fields::Kind(item)));
    add(item);
  }
}

void ReadLogprobs(Fields& fields, CompletionRequest* request) {
  int64_t top = 0;
  if (request->kind == ApiKind::kText) {
    if (!fields.Integer("logprobs", 0, kMostLogprobs, &top)) return;
    request->logprobs = true;
    request->sampling.top_logprobs = static_cast<int32_t>(top);
    return;
  }
  fields.Bool("logprobs", &request->logprobs);
  if (fields.Integer("top_logprobs", 0, kMostLogprobs, &top) && !request->logprobs)
    return fields.Refuse("top_logprobs", "needs \"logprobs\": true");
  if (request->logprobs) request->sampling.top_logprobs = static_cast<int32_t>(top);
}

void ReadStream(Fields& fields, CompletionRequest* request) {
  fields.Bool("stream", &request->stream);
  const Json* options = fields.Find("stream_options");
  if (options == nullptr) return;
  if (!request->stream) return fields.Refuse("stream_options", "needs \"stream\": true");
  if (!options->is_object()) return fields.Refuse("stream_options", "must be an object");
  Fields of(*options, "stream_options.");
  of.Bool("include_usage", &request->include_usage);
  fields.Adopt(of.error());
}

void ReadKv(Fields& fields, CompletionRequest* request) {
  const Json* kv = fields.Find("kv");
  if (kv == nullptr) return;
  if (!kv->is_object()) return fields.Refuse("kv", "must be an object like {\"preset\": \"full\"}");
  Fields of(*kv, "kv.");
  for (const auto& [name, value] : kv->items())
    if (name != "preset" && name != "alpha" && name != "cap")
      return fields.Refuse(fmt::format("kv.{}", name.substr(0, 32)), "is none of preset, alpha and cap");
  std::string preset;
  of.Text("preset", &preset);
  if (!preset.empty() && preset != "full" && preset != "infinigen")
    of.Refuse("preset", "must be \"full\" or \"infinigen\"; other presets are chosen when the server starts");
  if (!preset.empty()) request->kv.full = preset == "full";
  double number = 0;
  if (of.Number("alpha", 0, 1e6, &number)) request->kv.alpha = static_cast<float>(number);
  if (of.Number("cap", 0, 1, &number)) request->kv.cap = number;
  if (request->kv.cap == 0.0) of.Refuse("cap", "must be above 0 and at most 1, not 0");
  if (preset == "full" && (request->kv.alpha || request->kv.cap))
    of.Refuse("preset", "\"full\" attends to everything: it takes neither alpha nor cap");
  fields.Adopt(of.error());
}

// Fields of the API that would change the answer and that nobody here obeys: better refused than ignored.
void RefuseOthers(Fields& fields, const CompletionRequest& request) {
  const auto asks = [&](const char* name) {
    const Json* json = fields.Find(name);
    return json != nullptr && !(json->is_array() && json->empty()) &&
           !(json->is_string() && json->get<std::string>().empty());
  };
  for (const char* name : {"tools", "functions", "suffix", "audio"})
    if (asks(name)) fields.Refuse(name, "is not supported", "unsupported_parameter");
  if (const Json* format = fields.Find("response_format")) {
    const bool text = format->is_object() && format->contains("type") && (*format)["type"] == "text";
    if (!text) fields.Refuse("response_format", "only {\"type\": \"text\"} is supported", "unsupported_parameter");
  }
  // Without tools there is none to choose.
  for (const char* name : {"tool_choice", "function_call"}) {
    const Json* choice = fields.Find(name);
    if (choice != nullptr && *choice != "none" && *choice != "auto")
      fields.Refuse(name, "only \"none\" and \"auto\" are supported", "unsupported_parameter");
  }
  int64_t best_of = 1;
  if (fields.Integer("best_of", 1, kMostChoices, &best_of) && best_of != request.n)
    fields.Refuse("best_of", "is supported only where it equals n", "unsupported_parameter");
}

}  // namespace

ApiResult<CompletionRequest> ParseCompletion(ApiKind kind, std::string_view body, const SamplingOptions& defaults,
                                             int64_t vocab) {
  ApiResult<Json> json = ParseObject(body);
  if (!json.ok()) return json.error();
  Fields fields(*json);
  CompletionRequest request{.kind = kind, .sampling = defaults};
  std::string model, user;
  fields.Text("model", &model);
  fields.Text("user", &user);
  if (kind == ApiKind::kChat)
    ReadMessages(fields, &request);
  else
    ReadPrompt(fields, vocab, &request);
  fields.Integer("max_tokens", 0, INT32_MAX, &request.max_tokens);
  if (kind == ApiKind::kChat) fields.Integer("max_completion_tokens", 0, INT32_MAX, &request.max_tokens);
  if (kind == ApiKind::kText) fields.Bool("echo", &request.echo);
  ReadSampling(fields, vocab, &request);
  ReadStops(fields, &request);
  fields.Integer("n", 1, kMostChoices, &request.n);
  ReadLogprobs(fields, &request);
  ReadStream(fields, &request);
  ReadKv(fields, &request);
  RefuseOthers(fields, request);
  if (request.echo && request.logprobs)
    fields.Refuse("echo", "together with logprobs is not supported", "unsupported_parameter");
  const int64_t prompts = kind == ApiKind::kChat ? 1 : static_cast<int64_t>(request.prompts.size());
  if (prompts * request.n > kMostChoices)
    fields.Refuse("n",
                  fmt::format("{} prompts with {} choices each are more than {}", prompts, request.n, kMostChoices));
  if (fields.error()) return *fields.error();
  return request;
}

ApiResult<TokenizeRequest> ParseTokenize(std::string_view body) {
  ApiResult<Json> json = ParseObject(body);
  if (!json.ok()) return json.error();
  Fields fields(*json);
  TokenizeRequest request;
  if (fields.Find("content") == nullptr) fields.Refuse("content", "is missing");
  fields.Text("content", &request.content);
  fields.Bool("add_special", &request.add_special);
  fields.Bool("parse_special", &request.parse_special);
  if (fields.error()) return *fields.error();
  return request;
}

ApiResult<std::vector<int32_t>> ParseDetokenize(std::string_view body, int64_t vocab) {
  ApiResult<Json> json = ParseObject(body);
  if (!json.ok()) return json.error();
  Fields fields(*json);
  std::vector<int32_t> ids;
  const Json* tokens = fields.Find("tokens");
  if (tokens == nullptr)
    fields.Refuse("tokens", "is missing");
  else if (!tokens->is_array())
    fields.Refuse("tokens", fmt::format("must be an array, not {}", Fields::Kind(*tokens)));
  else
    ReadIds(fields, "tokens", *tokens, vocab, &ids);
  if (fields.error()) return *fields.error();
  return ids;
}

}  // namespace infinigen
