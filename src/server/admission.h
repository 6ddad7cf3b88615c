// What a parsed request must get before it enters the engine's queue: memory, places, room for its logprobs. Shared by
// the server and its simulation (tests/simulation). Any thread.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "server/clients.h"
#include "server/completion_request.h"
#include "server/metrics.h"

namespace infinigen {

// Slots of the batch that one client may use: all but one, so that another client finds a slot without waiting for the
// end of an answer. `share`: as in Clients.
inline int64_t SlotsOfClient(int64_t batch, double share) {
  return share < 1 ? std::max<int64_t>(batch - 1, 1) : batch;
}

// The salt of a request's prefixes: requests with different salts share none. `tenant`: empty where tenants share them.
// A salt of the request never equals a tenant's name: it begins with a line end.
inline std::string CacheSalt(std::string tenant, const std::string& salt_of_request) {
  return salt_of_request.empty() ? std::move(tenant) : std::move(tenant) + "\n" + salt_of_request;
}

// Upper bound of the tokens with logprobs that an answer holds until its end. A stream sends them with their text.
int64_t KeptLogprobs(const CompletionRequest& request, std::span<const std::vector<int32_t>> prompts, int64_t context);
// Memory of a request in the engine: the ids of every prompt, once here and once a choice; its texts; its logprobs,
// once as numbers and once as JSON.
uint64_t KeptBytes(const CompletionRequest& request, std::span<const std::vector<int32_t>> prompts, int64_t context);
// Reserves `count` of the logprobs that all unfinished answers may hold; released with the last copy of the result.
ApiResult<std::shared_ptr<const void>> ReserveLogprobs(int64_t count, std::atomic<int64_t>* all);

// Places in the queue until they are released or a completion takes them over.
struct QueuePlaces {
  struct Guard {
    Guard(Metrics* metrics_, int64_t count_) : metrics(metrics_), count(count_) {}
    Guard(Guard&& other) noexcept : metrics(std::exchange(other.metrics, nullptr)), count(other.count) {}
    ~Guard() {
      if (metrics != nullptr) metrics->Leave(count);
    }
    Metrics* metrics;
    int64_t count;
  };
  ClientCount own;
  Guard all;
};

// Takes places for all choices of a request, of the queue's `places` and of the client's. `clients`: null where clients
// are not limited.
ApiResult<QueuePlaces> EnterQueue(const Clients* clients, Metrics& metrics, const std::shared_ptr<Client>& client,
                                  int64_t choices, int64_t places);

}  // namespace infinigen
