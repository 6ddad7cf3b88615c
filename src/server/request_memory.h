// RequestMemory: what one request takes from its client's account while it is read and answered. One thread at a time.
#pragma once

#include <malloc.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "runtime/requests.h"
#include "server/clients.h"
#include "server/completion_request.h"

namespace infinigen {

class RequestMemory {
 public:
  explicit RequestMemory(const std::shared_ptr<Client>& client)
      : limit_(client->memory->request_limit()), share_(client->memory) {}
  // Memory of a large request goes back to the system: the allocator would keep it.
  ~RequestMemory() {
    if (share_.highest() >= kTrimBytes) ::malloc_trim(0);
  }
  RequestMemory(const RequestMemory&) = delete;
  RequestMemory& operator=(const RequestMemory&) = delete;

  // An error if the request may not take `bytes` more.
  std::optional<ApiError> Take(uint64_t bytes) {
    if (Reserve(bytes)) return std::nullopt;
    return Refusal();
  }
  void GiveBack(uint64_t bytes) { share_.Set(share_.bytes() - bytes); }
  bool Reserve(uint64_t bytes) {
    too_large_ = bytes > limit_ - share_.bytes();
    refused_ = too_large_ || !share_.TryAdd(bytes);
    return !refused_;
  }
  bool refused() const { return refused_; }
  // Hands everything over that was taken.
  MemoryShare TakeShare() { return std::move(share_); }
  uint64_t bytes() const { return share_.bytes(); }
  // For EncodeOptions; valid as long as this object.
  ReserveMemory hook() {
    return [this](size_t bytes) { return Reserve(bytes); };
  }

  // Why the latest call of Reserve failed.
  ApiError Refusal() const {
    if (too_large_)
      return {.status = 413, .message = "the request needs more memory than one may take", .code = "too_large"};
    return {.status = 429,
            .message = "requests hold all the memory there is for them; try again later",
            .type = "rate_limit_error",
            .code = "too_many_bodies",
            .parameter = {},
            .retry_after_s = 1};
  }

 private:
  static constexpr uint64_t kTrimBytes = 16 << 20;

  const uint64_t limit_;
  MemoryShare share_;
  bool too_large_ = false, refused_ = false;
};

}  // namespace infinigen
