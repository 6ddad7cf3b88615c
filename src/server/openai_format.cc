#include "server/openai_format.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

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

Json ChatLogprobs(const AnswerChoice& choice, const Tokenizer* tokenizer) {
  Json content = Json::array();
  for (const LoggedToken& token : choice.logged) {
    Json entry = ChatToken(token.values.chosen, tokenizer);
    entry["top_logprobs"] = Json::array();
    for (const TokenLogprob& other : token.values.top) entry["top_logprobs"].push_back(ChatToken(other, tokenizer));
    content.push_back(std::move(entry));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

Json TextLogprobs(const AnswerChoice& choice, const Tokenizer* tokenizer) {
  Json tokens = Json::array(), logprobs = Json::array(), tops = Json::array(), offsets = Json::array();
  for (const LoggedToken& token : choice.logged) {
    const auto spelled = [&](int32_t id) { return ReplaceInvalidUtf8(TokenBytes(tokenizer, id)); };
    tokens.push_back(spelled(token.values.chosen.token));
    logprobs.push_back(token.values.chosen.logprob);
    Json top = Json::object();
    for (const TokenLogprob& other : token.values.top) top[spelled(other.token)] = other.logprob;
    tops.push_back(std::move(top));
    offsets.push_back(token.offset_characters);
  }
  return {{"tokens", std::move(tokens)},
          {"token_logprobs", std::move(logprobs)},
          {"top_logprobs", std::move(tops)},
          {"text_offset", std::move(offsets)}};
}

Json LogprobsJson(const AnswerHead& head, const AnswerChoice& choice, const Tokenizer* tokenizer) {
  if (!choice.logprobs) return nullptr;
  return head.kind == ApiKind::kChat ? ChatLogprobs(choice, tokenizer) : TextLogprobs(choice, tokenizer);
}

Json FinishJson(const AnswerChoice& choice) {
  return choice.finished ? Json(std::string(Name(*choice.finished))) : Json(nullptr);
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

Json AnswerJson(const AnswerHead& head, std::span<const AnswerChoice> choices, const Usage& usage,
                const Tokenizer* tokenizer) {
  Json json = Head(head, /*chunk=*/false);
  Json list = Json::array();
  for (const AnswerChoice& choice : choices) {
    Json entry = {{"index", choice.index}};
    if (head.kind == ApiKind::kChat)
      entry["message"] = {{"role", "assistant"}, {"content", choice.text}, {"refusal", nullptr}};
    else
      entry["text"] = choice.text;
    entry["logprobs"] = LogprobsJson(head, choice, tokenizer);
    entry["finish_reason"] = FinishJson(choice);
    list.push_back(std::move(entry));
  }
  json["choices"] = std::move(list);
  json["usage"] = UsageJson(usage);
  return json;
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
  else if (choice.text.empty() && choice.finished)
    entry["delta"] = Json::object();
  else
    entry["delta"] = {{"content", choice.text}};
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

std::string TokenBytes(const Tokenizer* tokenizer, int32_t token) {
  if (tokenizer == nullptr) return std::to_string(token);
  // Some tokenizers drop the space before the first word of a text. Decoding the token twice shows its text inside one.
  const std::string once = tokenizer->Decode(std::vector<TokenId>{token}, /*skip_special=*/false);
  const std::string twice = tokenizer->Decode(std::vector<TokenId>{token, token}, /*skip_special=*/false);
  return twice.size() >= once.size() ? twice.substr(once.size()) : once;
}

}  // namespace infinigen
