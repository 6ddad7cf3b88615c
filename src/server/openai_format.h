// Formats answers and errors as OpenAI's JSON. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <exception>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/requests.h"
#include "server/completion_request.h"
#include "server/http.h"
#include "server/tool_calls.h"

namespace infinigen {

// Fields that all chunks of an answer share.
struct AnswerHead {
  ApiKind kind = ApiKind::kChat;
  std::string id;  // "chatcmpl-…", "cmpl-…"
  int64_t created = 0;
  std::string model;
};

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;
};

// A token of the answer with its logprobs, and the offset of its text there. The first of an echoed prompt has none:
// `known` is false.
struct LoggedToken {
  TokenLogprobs values;
  size_t offset_bytes = 0;
  size_t offset_characters = 0;
  bool known = true;
};

// A call of a tool in an answer.
struct AnswerCall {
  std::string id;
  ToolCall call;
};

struct AnswerChoice {
  int64_t index = 0;
  std::string text;
  std::vector<AnswerCall> calls;  // in a stream, those of this chunk
  int64_t calls_before = 0;       // in a stream, those of earlier chunks
  std::vector<LoggedToken> logged;
  bool logprobs = false;                 // requested
  std::optional<FinishReason> finished;  // in a stream, set only in the last chunk
};

std::string ErrorBody(const ApiError& error);
HttpReply ErrorReply(const ApiError& error);
// The error of requests that shutdown ends.
ApiError ShuttingDown();
ApiError OutOfMemory();
// The error of a request that an exception ended: 503 for want of memory, otherwise 500.
ApiError ExceptionError(const std::exception* error);

nlohmann::ordered_json UsageJson(const Usage& usage);
// "kv_stats" of one request; `pool_bytes` is the size of the whole pool.
nlohmann::ordered_json StepStatsJson(const KvStats& stats, uint64_t pool_bytes);

// An answer that is not streamed, as text. Logprobs are written token by token: as one tree they would take many times
// the memory of the text.
std::string AnswerText(const AnswerHead& head, std::span<const AnswerChoice> choices, const Usage& usage,
                       const nlohmann::ordered_json& kv_stats, const Tokenizer* tokenizer);

// One chunk of a stream. The first chunk of a chat is RoleChunk.
nlohmann::ordered_json RoleChunk(const AnswerHead& head, int64_t index);
nlohmann::ordered_json ChunkJson(const AnswerHead& head, const AnswerChoice& choice, const Tokenizer* tokenizer);
nlohmann::ordered_json UsageChunk(const AnswerHead& head, const Usage& usage);

// "data: {…}\n\n"
std::string Event(const nlohmann::ordered_json& json);
std::string Compact(const nlohmann::ordered_json& json);

// Random digits from the operating system: "5f3c…".
std::string RandomHex(int digits);

// The bytes that a token stands for inside a text.
std::string TokenBytes(const Tokenizer* tokenizer, int32_t token);

}  // namespace infinigen
