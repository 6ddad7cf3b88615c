#include "server/openai_format.h"

#include <fmt/format.h>

#include <new>
#include <nlohmann/json.hpp>
#include <random>

#include "runtime/requests.h"

namespace infinigen {
namespace {

using Json = nlohmann::ordered_json;

Json OrNull(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

Json Head(const AnswerHead& head, bool chunk) {
  const char* object = head.kind == ApiKind::kText ? "text_completion"
                       : chunk                     ? "chat.completion.chunk"
                                                   : "chat.completion";
  return {{"id", head.id}, {"object", object}, {"created", head.created}, {"model", head.model}};
}

Json ChatToken(const TokenLogprob& value, const Tokenizer* tokenizer) {
  const std::string bytes = TokenBytes(tokenizer, value.token);
  Json list = Json::array();
  for (const char c : bytes) list.push_back(static_cast<unsigned char>(c));
  return {{"token", ReplaceInvalidUtf8(bytes)}, {"logprob", value.logprob}, {"bytes", std::move(list)}};
}

Json ChatEntry(const LoggedToken& token, const Tokenizer* tokenizer) {
  Json entry = ChatToken(token.values.chosen, tokenizer);
  entry["top_logprobs"] = Json::array();
  for (const TokenLogprob& other : token.values.top) entry["top_logprobs"].push_back(ChatToken(other, tokenizer));
  return entry;
}

void AppendChatLogprobs(const AnswerChoice& choice, const Tokenizer* tokenizer, std::string* text) {
  *text += "{\"content\":[";
  for (const LoggedToken& token : choice.logged) {
    if (&token != choice.logged.data()) *text += ',';
    *text += Compact(ChatEntry(token, tokenizer));
  }
  *text += "],\"refusal\":null}";
}

void AppendTextLogprobs(const AnswerChoice& choice, const Tokenizer* tokenizer, std::string* text) {
  const auto spelled = [&](int32_t id) { return ReplaceInvalidUtf8(TokenBytes(tokenizer, id)); };
  const auto list = [&](const char* name, auto&& value) {
    *text += fmt::format("\"{}\":[", name);
    for (const LoggedToken& token : choice.logged) {
      if (&token != choice.logged.data()) *text += ',';
      *text += Compact(value(token));
    }
    *text += ']';
  };
  *text += '{';
  list("tokens", [&](const LoggedToken& token) { return Json(spelled(token.values.chosen.token)); });
  *text += ',';
  list("token_logprobs",
       [&](const LoggedToken& token) { return token.known ? Json(token.values.chosen.logprob) : Json(nullptr); });
  *text += ',';
  list("top_logprobs", [&](const LoggedToken& token) {
    if (!token.known) return Json(nullptr);
    Json top = Json::object();
    for (const TokenLogprob& other : token.values.top) top[spelled(other.token)] = other.logprob;
    return top;
  });
  *text += ',';
  list("text_offset", [&](const LoggedToken& token) { return Json(token.offset_characters); });
  *text += '}';
}

void AppendLogprobs(const AnswerHead& head, const AnswerChoice& choice, const Tokenizer* tokenizer, std::string* text) {
  if (!choice.logprobs)
    *text += "null";
  else if (head.kind == ApiKind::kChat)
    AppendChatLogprobs(choice, tokenizer, text);
  else
    AppendTextLogprobs(choice, tokenizer, text);
}

// The few tokens of one chunk.
Json LogprobsJson(const AnswerHead& head, const AnswerChoice& choice, const Tokenizer* tokenizer) {
  if (head.kind == ApiKind::kChat) {
    Json content = Json::array();
    for (const LoggedToken& token : choice.logged) content.push_back(ChatEntry(token, tokenizer));
    return {{"content", std::move(content)}, {"refusal", nullptr}};
  }
  std::string text;
  AppendLogprobs(head, choice, tokenizer, &text);
  return Json::parse(text, nullptr, /*allow_exceptions=*/false);
}

Json FinishJson(const AnswerChoice& choice) {
  if (!choice.finished) return nullptr;
  const bool ended = *choice.finished == FinishReason::kEos || *choice.finished == FinishReason::kStopped;
  if (ended && choice.calls_before + std::ssize(choice.calls) > 0) return "tool_calls";
  return std::string(Name(*choice.finished));
}

// `indexed`: as a stream writes them.
Json CallsJson(const AnswerChoice& choice, bool indexed) {
  Json list = Json::array();
  for (const AnswerCall& each : choice.calls) {
    Json entry = Json::object();
    if (indexed) entry["index"] = choice.calls_before + std::ssize(list);
    entry["id"] = each.id;
    entry["type"] = "function";
    entry["function"] = {{"name", each.call.name}, {"arguments", each.call.arguments}};
    list.push_back(std::move(entry));
  }
  return list;
}

Json MessageJson(const AnswerChoice& choice) {
  const bool only_calls = choice.text.empty() && !choice.calls.empty();
  Json message = {
      {"role", "assistant"}, {"content", only_calls ? Json(nullptr) : Json(choice.text)}, {"refusal", nullptr}};
  if (!choice.calls.empty()) message["tool_calls"] = CallsJson(choice, /*indexed=*/false);
  return message;
}

Json DeltaJson(const AnswerChoice& choice) {
  Json delta = Json::object();
  if (!choice.text.empty() || (!choice.finished && choice.calls.empty())) delta["content"] = choice.text;
  if (!choice.calls.empty()) delta["tool_calls"] = CallsJson(choice, /*indexed=*/true);
  return delta;
}

}  // namespace

std::string Compact(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

std::string Event(const Json& json) { return "data: " + Compact(json) + "\n\n"; }

std::string ErrorBody(const ApiError& error) {
  return Compact({{"error",
                   {{"message", error.message},
                    {"type", error.type},
                    {"param", OrNull(error.parameter)},
                    {"code", OrNull(error.code)}}}});
}

ApiError ShuttingDown() {
  return {.status = 503, .message = "the server is shutting down", .type = "server_error", .code = "shutting_down"};
}

ApiError OutOfMemory() {
  return {.status = 503,
          .message = "the server is out of memory; try again later",
          .type = "server_error",
          .code = "out_of_memory",
          .parameter = {},
          .retry_after_s = 1};
}

ApiError ExceptionError(const std::exception* error) {
  if (dynamic_cast<const std::bad_alloc*>(error) != nullptr) return OutOfMemory();
  return {.status = 500, .message = "internal error", .type = "server_error", .code = "internal_error"};
}

HttpReply ErrorReply(const ApiError& error) {
  HttpReply reply{.status = error.status, .body = ErrorBody(error)};
  if (error.retry_after_s > 0) reply.headers.emplace_back("Retry-After", std::to_string(error.retry_after_s));
  return reply;
}

Json UsageJson(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}}};
}

Json StepStatsJson(const KvStats& stats, uint64_t pool_bytes) {
  const LayerKvStats selecting = stats.Selecting();
  const auto of_steps = [&](double ratio) { return stats.steps > 0 ? Json(ratio) : Json(nullptr); };
  return {{"selected_ratio", of_steps(selecting.selected_ratio())},
          {"extra_ratio", of_steps(selecting.extra_ratio())},
          {"attended_ratio", of_steps(stats.All().attended_ratio())},
          {"fetched_bytes", stats.fetched_bytes},
          {"fetched_bytes_per_step", stats.steps > 0 ? stats.fetched_bytes / static_cast<uint64_t>(stats.steps) : 0},
          {"hit_ratio", stats.fetches ? of_steps(stats.hit_ratio()) : Json(nullptr)},
          {"evicted", stats.evicted},
          {"steps", stats.steps},
          {"pool_bytes", pool_bytes}};
}

std::string AnswerText(const AnswerHead& head, std::span<const AnswerChoice> choices, const Usage& usage,
                       const Json& kv_stats, const Tokenizer* tokenizer) {
  std::string text = Compact(Head(head, /*chunk=*/false));
  text.back() = ',';
  text += "\"choices\":[";
  for (const AnswerChoice& choice : choices) {
    if (&choice != choices.data()) text += ',';
    Json entry = {{"index", choice.index}};
    if (head.kind == ApiKind::kChat)
      entry["message"] = MessageJson(choice);
    else
      entry["text"] = choice.text;
    text += Compact(entry);
    text.back() = ',';
    text += "\"logprobs\":";
    AppendLogprobs(head, choice, tokenizer, &text);
    text += ",\"finish_reason\":" + Compact(FinishJson(choice)) + "}";
  }
  text += "],\"usage\":" + Compact(UsageJson(usage)) + ",\"kv_stats\":" + Compact(kv_stats) + "}";
  return text;
}

Json RoleChunk(const AnswerHead& head, int64_t index) {
  Json json = Head(head, /*chunk=*/true);
  json["choices"] = Json::array({Json{{"index", index},
                                      {"delta", {{"role", "assistant"}, {"content", ""}}},
                                      {"logprobs", nullptr},
                                      {"finish_reason", nullptr}}});
  return json;
}

Json ChunkJson(const AnswerHead& head, const AnswerChoice& choice, const Tokenizer* tokenizer) {
  Json json = Head(head, /*chunk=*/true);
  Json entry = {{"index", choice.index}};
  if (head.kind == ApiKind::kText)
    entry["text"] = choice.text;
  else
    entry["delta"] = DeltaJson(choice);
  const bool log = choice.logprobs && !choice.logged.empty();
  entry["logprobs"] = log ? LogprobsJson(head, choice, tokenizer) : Json(nullptr);
  entry["finish_reason"] = FinishJson(choice);
  json["choices"] = Json::array({std::move(entry)});
  return json;
}

Json UsageChunk(const AnswerHead& head, const Usage& usage) {
  Json json = Head(head, /*chunk=*/true);
  json["choices"] = Json::array();
  json["usage"] = UsageJson(usage);
  return json;
}

std::string RandomHex(int digits) {
  std::random_device random;
  std::string text;
  while (static_cast<int>(text.size()) < digits) text += fmt::format("{:08x}", static_cast<uint32_t>(random()));
  text.resize(static_cast<size_t>(digits));
  return text;
}

std::string TokenBytes(const Tokenizer* tokenizer, int32_t token) {
  if (tokenizer == nullptr) return std::to_string(token);
  // Some tokenizers drop the space before the first word of a text. Decoding the token twice shows its text inside one.
  const std::string once = tokenizer->Decode(std::vector<TokenId>{token}, /*skip_special=*/false);
  const std::string twice = tokenizer->Decode(std::vector<TokenId>{token, token}, /*skip_special=*/false);
  return twice.size() >= once.size() ? twice.substr(once.size()) : once;
}

}  // namespace infinigen
