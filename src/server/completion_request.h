// The requests of OpenAI's API, parsed from the JSON of a body. Every field is checked for its type and range; a wrong
// one is refused by name, an unknown one is ignored, as OpenAI does. No model or engine is needed. Any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "runtime/requests.h"
#include "runtime/text.h"

namespace infinigen {

// An error as clients see it.
struct ApiError {
  int status = 400;
  std::string message;
  std::string type = "invalid_request_error";
  std::string code;       // empty: null
  std::string parameter;  // the field, empty: null
  int retry_after_s = 0;  // 0: not said
};

template <class T>
class [[nodiscard]] ApiResult {
 public:
  ApiResult(T value) : state_(std::in_place_index<0>, std::move(value)) {}         // NOLINT: implicit by design
  ApiResult(ApiError error) : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT
  bool ok() const { return state_.index() == 0; }
  const ApiError& error() const { return std::get<1>(state_); }
  T& operator*() { return std::get<0>(state_); }
  const T& operator*() const { return std::get<0>(state_); }
  T* operator->() { return &std::get<0>(state_); }

 private:
  std::variant<T, ApiError> state_;
};

enum class ApiKind : uint8_t { kChat, kText };

// Choices that one HTTP request may ask for: prompts times n.
inline constexpr int64_t kMostChoices = 128;
// OpenAI allows four stop strings and says nothing about their length; clients of other servers send more. Every choice
// of a request has its own copy.
inline constexpr size_t kMostStops = 16;
inline constexpr size_t kMostStopBytes = 1024;
inline constexpr size_t kMostBiases = 4096;
inline constexpr int64_t kMostLogprobs = 20;
// Tokens and their alternatives, over all choices, in one answer that is not a stream. So many take 143 MiB while the
// answer is written (measured: 16 choices of 780 tokens with 20 alternatives each, and 18 MiB of answer).
inline constexpr int64_t kMostLoggedTokens = 262'144;
// The same over all such answers that are queued or under way: four of the largest.
inline constexpr int64_t kMostLoggedTokensInAll = 4 * kMostLoggedTokens;
// Nesting of a body; the API needs a handful of levels.
inline constexpr size_t kMostDepth = 32;

// `kv` of a request; absent fields have the server's settings.
struct KvWish {
  std::optional<bool> full;  // preset "full" or "infinigen"
  std::optional<float> alpha;
  std::optional<double> cap;
  bool any() const { return full || alpha || cap; }
};

using PromptText = std::variant<std::string, std::vector<int32_t>>;

struct CompletionRequest {
  ApiKind kind = ApiKind::kChat;
  std::vector<ChatMessage> messages;  // of kChat
  std::vector<PromptText> prompts;    // of kText, at least one
  int64_t max_tokens = -1;            // -1: not given
  SamplingOptions sampling;           // starts as the server's defaults
  bool seed_given = false;
  std::vector<std::string> stops;
  int64_t n = 1;
  bool logprobs = false;
  bool echo = false;
  bool ignore_eos = false;
  bool stream = false;
  bool include_usage = false;
  KvWish kv;
};

// `defaults`: sampling of fields that the request leaves out. `vocab` bounds token ids.
ApiResult<CompletionRequest> ParseCompletion(ApiKind kind, std::string_view body, const SamplingOptions& defaults,
                                             int64_t vocab);

// {"content": "text", "add_special": true, "parse_special": true} and {"tokens": [1, 2]}.
struct TokenizeRequest {
  std::string content;
  bool add_special = false;
  bool parse_special = true;
};
ApiResult<TokenizeRequest> ParseTokenize(std::string_view body);
ApiResult<std::vector<int32_t>> ParseDetokenize(std::string_view body, int64_t vocab);

}  // namespace infinigen
