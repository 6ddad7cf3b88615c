#include "server/admission.h"

#include <fmt/format.h>

#include <string>
#include <variant>

namespace infinigen {
namespace {

// A token with its logprob: 12 bytes as numbers, about 70 as JSON.
constexpr uint64_t kLogprobBytes = 96;
// Copies of a prompt that a choice echoes: as its text, and in the reply as it is made.
constexpr uint64_t kEchoCopies = 2;

}  // namespace

int64_t KeptLogprobs(const CompletionRequest& request, std::span<const std::vector<int32_t>> prompts, int64_t context) {
  if (!request.logprobs || request.stream) return 0;
  int64_t tokens = 0;
  for (const std::vector<int32_t>& prompt : prompts)
    tokens += request.n * (std::min(request.max_tokens, context - std::ssize(prompt) + 1) +
                           (request.echo ? std::ssize(prompt) : 0));
  return tokens * (request.sampling.top_logprobs + 1);
}

uint64_t KeptBytes(const CompletionRequest& request, std::span<const std::vector<int32_t>> prompts, int64_t context) {
  uint64_t ids = 0, texts = 0;
  for (const std::vector<int32_t>& prompt : prompts) ids += prompt.size();
  for (const PromptText& prompt : request.prompts)
    if (const auto* text = std::get_if<std::string>(&prompt)) texts += text->size();
  if (request.echo) texts += kEchoCopies * static_cast<uint64_t>(request.n) * texts;
  for (const ChatMessage& message : request.messages) texts += message.bytes();
  texts += request.tools_json.size() * 2 + (request.grammar ? request.grammar->text.size() : 0);
  return ids * sizeof(int32_t) * (static_cast<uint64_t>(request.n) + 1) + texts +
         static_cast<uint64_t>(KeptLogprobs(request, prompts, context)) * kLogprobBytes;
}

ApiResult<std::shared_ptr<const void>> ReserveLogprobs(int64_t count, std::atomic<int64_t>* all) {
  if (count > kMostLoggedTokens)
    return ApiError{.message = fmt::format("'logprobs': the request needs up to {} tokens and alternatives, but an "
                                           "answer holds {}; lower max_tokens, n or the alternatives, or set stream",
                                           count, kMostLoggedTokens),
                    .code = "too_many_logprobs",
                    .parameter = "logprobs"};
  int64_t taken = *all;
  do {
    if (taken + count > kMostLoggedTokensInAll)
      return ApiError{.status = 429,
                      .message = fmt::format("'logprobs': the request needs up to {} tokens and alternatives, but "
                                             "unfinished answers hold {} of {}; try again later, or set stream",
                                             count, taken, kMostLoggedTokensInAll),
                      .type = "rate_limit_error",
                      .code = "too_many_logprobs",
                      .parameter = "logprobs",
                      .retry_after_s = 1};
  } while (!all->compare_exchange_weak(taken, taken + count));
  return std::shared_ptr<const void>(all, [all, count](const void*) { *all -= count; });
}

ApiResult<QueuePlaces> EnterQueue(const Clients* clients, Metrics& metrics, const std::shared_ptr<Client>& client,
                                  int64_t choices, int64_t places) {
  if (choices > places)
    return ApiError{
        .message = fmt::format("the request needs {} choices, but the server has only {} places", choices, places),
        .parameter = "n"};
  const auto full = [&](const char* whose) {
    return ApiError{.status = 429,
                    .message = fmt::format("{} is full ({} places in all); try again later", whose, places),
                    .type = "rate_limit_error",
                    .code = "queue_full",
                    .parameter = {},
                    .retry_after_s = 1};
  };
  ClientCount own;
  if (clients != nullptr) {
    own = clients->TryCount(client, &Client::places, choices, places);
    if (!own) return full("this client's share of the queue");
  }
  if (!metrics.TryEnter(choices, places)) return full("the queue");
  return QueuePlaces{std::move(own), QueuePlaces::Guard(&metrics, choices)};
}

}  // namespace infinigen
