// Parses the input as the body of a request. The result has fields within their limits, or is a one-line error with
// status 400.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "server/completion_request.h"

namespace {

constexpr int64_t kVocab = 1000;

void CheckError(const infinigen::ApiError& error) {
  CHECK(error.status == 400 && !error.message.empty() && error.message.size() < 500);
  CHECK(error.message.find('\n') == std::string::npos);
}

void CheckIds(const std::vector<int32_t>& ids) {
  for (const int32_t id : ids) CHECK(id >= 0 && id < kVocab);
}

void CheckRequest(const infinigen::CompletionRequest& request, size_t size) {
  const infinigen::SamplingOptions& sampling = request.sampling;
  CHECK(sampling.temperature >= 0 && sampling.temperature <= 2);
  CHECK(sampling.top_p > 0 && sampling.top_p <= 1 && sampling.min_p >= 0 && sampling.top_k >= 0);
  CHECK(sampling.repeat_penalty > 0 && sampling.top_logprobs >= -1 && sampling.top_logprobs <= 20);
  if (sampling.logit_bias != nullptr)
    for (const auto& [token, bias] : *sampling.logit_bias) CHECK(token >= 0 && token < kVocab && std::abs(bias) <= 100);
  CHECK(request.n >= 1 && request.n <= infinigen::kMostChoices && request.max_tokens >= -1);
  CHECK(request.stops.size() <= infinigen::kMostStops);
  CHECK(request.kind == infinigen::ApiKind::kChat ? !request.messages.empty() : !request.prompts.empty());
  size_t bytes = 0;
  for (const infinigen::PromptText& prompt : request.prompts)
    if (const auto* ids = std::get_if<std::vector<int32_t>>(&prompt))
      CheckIds(*ids), bytes += ids->size();
    else
      bytes += std::get<std::string>(prompt).size();
  for (const infinigen::ChatMessage& message : request.messages) bytes += message.content.size();
  CHECK(bytes <= size);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace infinigen;
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  for (const ApiKind kind : {ApiKind::kChat, ApiKind::kText}) {
    const ApiResult<CompletionRequest> request = ParseCompletion(kind, body, {}, kVocab);
    if (request.ok())
      CheckRequest(*request, size);
    else
      CheckError(request.error());
  }
  if (const auto request = ParseTokenize(body); !request.ok()) CheckError(request.error());
  const auto ids = ParseDetokenize(body, kVocab);
  if (ids.ok())
    CheckIds(*ids);
  else
    CheckError(ids.error());
  return 0;
}
