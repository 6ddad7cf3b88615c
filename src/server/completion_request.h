// Parses the JSON bodies of OpenAI's API. The type and range of every field is checked; an error names the field.
// Unknown fields are ignored, as OpenAI does. Needs neither model nor engine. Any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "grammar/compiler.h"
#include "runtime/requests.h"

namespace infinigen {

// An error reply.
struct ApiError {
  int status = 400;
  std::string message;
  std::string type = "invalid_request_error";
  std::string code;       // empty: null
  std::string parameter;  // the wrong field; empty: null
  int retry_after_s = 0;  // 0: no Retry-After header
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

// Limit of choices in one HTTP request: prompts times n.
inline constexpr int64_t kMostChoices = 128;
// OpenAI allows four stop strings of any length; clients of other servers send more. Every choice has its own copy.
inline constexpr size_t kMostStops = 16;
inline constexpr size_t kMostStopBytes = 1024;
inline constexpr size_t kMostBiases = 4096;
inline constexpr int64_t kMostLogprobs = 20;
// Limit of tokens with logprobs, alternatives included, over all choices of an answer that is not streamed. That many
// take 143 MiB while the answer is written (measured: 16 choices of 780 tokens with 20 alternatives, 18 MiB of JSON).
inline constexpr int64_t kMostLoggedTokens = 262'144;
// The same limit over all unfinished answers: four of the largest.
inline constexpr int64_t kMostLoggedTokensInAll = 4 * kMostLoggedTokens;
inline constexpr size_t kMostSaltBytes = 256;
inline constexpr size_t kMostTools = 128;
// Nesting limit of a body; the API needs about five levels.
inline constexpr size_t kMostDepth = 32;

// The "kv" object of a request; absent fields keep the server's settings.
struct KvWish {
  std::optional<bool> full;  // preset "full" or "infinigen"
  std::optional<float> alpha;
  std::optional<double> cap, mass;
  std::optional<bool> tail;
  std::optional<bool> steps;  // score "steps" or "prefill": how echoed tokens get their logprobs
  int64_t score_from = 0;     // the first echoed token that runs as a step
  bool selects() const { return alpha || cap || mass || tail; }
  bool any() const { return full || selects(); }
};

// A function that the model may call.
struct RequestTool {
  std::string name;
  std::string parameters;  // JSON schema of its arguments
};
enum class ToolChoice : uint8_t {
  kAuto,      // the model decides
  kNone,      // tools are not shown to the model
  kRequired,  // the answer is a call, of `only_tool` where that is set
};

using PromptText = std::variant<std::string, std::vector<int32_t>>;

struct CompletionRequest {
  ApiKind kind = ApiKind::kChat;
  std::vector<ChatMessage> messages;  // with kChat
  std::vector<PromptText> prompts;    // with kText; never empty
  int64_t max_tokens = -1;            // -1: not given
  SamplingOptions sampling;           // the server's defaults, then the request's fields
  bool seed_given = false;
  std::vector<std::string> stops;
  int64_t n = 1;
  bool logprobs = false;
  bool echo = false;
  bool ignore_eos = false;
  bool stream = false;
  bool include_usage = false;
  std::string cache_salt;  // prefixes are shared with requests that have the same salt
  KvWish kv;
  std::optional<GrammarSource> grammar;  // of the answer
  std::vector<RequestTool> tools;
  std::string tools_json;  // the array as it was sent; empty: none
  ToolChoice tool_choice = ToolChoice::kAuto;
  std::string only_tool;
  bool parallel_tool_calls = true;

  bool calls_tools() const { return !tools.empty() && tool_choice != ToolChoice::kNone; }
  // The prompt's own tokens get logprobs.
  bool scores() const { return echo && logprobs; }
};

// `defaults`: values of sampling fields that the request omits. Token ids must be below `vocab`.
ApiResult<CompletionRequest> ParseCompletion(ApiKind kind, std::string_view body, const SamplingOptions& defaults,
                                             int64_t vocab);

// {"content": "text", "add_special": true, "parse_special": true}, or with vLLM's names {"prompt": "text",
// "add_special_tokens": true}; and {"tokens": [1, 2]}.
struct TokenizeRequest {
  std::string content;
  bool add_special = false;
  bool parse_special = true;
};
ApiResult<TokenizeRequest> ParseTokenize(std::string_view body);
ApiResult<std::vector<int32_t>> ParseDetokenize(std::string_view body, int64_t vocab);

}  // namespace infinigen
