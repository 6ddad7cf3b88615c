#include "simulation/queue_model.h"

#include <fmt/format.h>

#include <algorithm>

namespace infinigen {
namespace {

constexpr int64_t kRanksForEachOwn = 128;
// A turn may preempt its only request and admit it again in the next.
constexpr int kMostIdleTurns = 3;

}  // namespace

RequestId QueueModel::Submitted(const std::string& client) {
  int64_t own = 0;
  for (const Tracked& other : requests_)
    if (!client.empty() && other.client == client)
      own += other.announced || engine_.StateOf(RequestId(other.id)).has_value();
  const int64_t id = next_id_++;
  if (!client.empty()) seen_[client] = turn_;
  requests_.push_back({.id = id, .client = client, .rank = id + own * kRanksForEachOwn});
  return RequestId(id);
}

void QueueModel::Look() {
  running_ = unfinished_ = 0;
  for (Tracked& request : requests_) {
    request.announced = false;
    const std::optional<RequestState> state = engine_.StateOf(RequestId(request.id));
    const bool waits = state == RequestState::kQueued || state == RequestState::kPreempted;
    request.after = !state ? Place::kDone : waits ? Place::kWaiting : Place::kRunning;
    request.preempted = state == RequestState::kPreempted;
    running_ += request.after == Place::kRunning;
    unfinished_ += request.after != Place::kDone;
  }
}

int64_t QueueModel::Slots(const std::string& client) const {
  if (client.empty() || client_running_ >= batch_) return batch_;
  for (const auto& [other, turn] : seen_)
    if (other != client && turn_ - turn <= kSharedTurns) return std::min((batch_ + 1) / 2, client_running_);
  return client_running_;
}

bool QueueModel::AtLimit(const std::string& client) const {
  if (client.empty() || client_running_ >= batch_) return false;
  int64_t held = 0;
  for (const Tracked& request : requests_)
    held += request.client == client && (request.before == Place::kRunning || request.after != Place::kWaiting);
  return held >= Slots(client);
}

std::string QueueModel::CheckOrder() const {
  for (const Tracked& request : requests_) {
    if (!request.is_new()) continue;
    for (const Tracked& other : requests_) {
      if (!other.still_waits()) continue;
      if (other.admitted >= 0 && (request.admitted < 0 || other.admitted < request.admitted))
        return fmt::format("request {} was admitted before {}, which was preempted", request.id, other.id);
      if (other.admitted < 0 && request.admitted < 0 && other.rank < request.rank && !AtLimit(other.client))
        return fmt::format("request {} (rank {}) was admitted before {} (rank {})", request.id, request.rank, other.id,
                           other.rank);
    }
  }
  std::map<std::string, int64_t> running;
  for (const Tracked& request : requests_)
    if (request.after == Place::kRunning && !request.client.empty()) ++running[request.client];
  for (const auto& [client, count] : running)
    if (count > client_running_) return fmt::format("client '{}' runs in {} slots", client, count);
  for (const Tracked& request : requests_)
    if (request.is_new() && request.admitted < 0 && !request.client.empty() &&
        running[request.client] > Slots(request.client))
      return fmt::format("client '{}' got slot {}, though others need theirs", request.client, running[request.client]);
  return {};
}

std::string QueueModel::CheckOldest() const {
  const Tracked* oldest = nullptr;
  for (const Tracked& request : requests_)
    if (request.before == Place::kRunning && (oldest == nullptr || request.admitted < oldest->admitted))
      oldest = &request;
  if (oldest == nullptr || oldest->after != Place::kWaiting || running_ == 0) return {};
  return fmt::format("request {} was preempted, though it was the oldest", oldest->id);
}

std::string QueueModel::AfterTurn(bool threw, bool worked) {
  Look();
  ++turn_;
  std::string problem;
  if (!threw) problem = CheckOrder();
  if (!threw && problem.empty()) problem = CheckOldest();
  const bool ended =
      std::ranges::any_of(requests_, [](const Tracked& request) { return request.after == Place::kDone; });
  idle_turns_ = worked || ended || requests_.empty() ? 0 : idle_turns_ + 1;
  if (problem.empty() && idle_turns_ > kMostIdleTurns) problem = "turns without progress";
  if (running_ > batch_) problem = "more requests run than the batch has slots";
  // First admissions of this turn, in the order of their ranks; some were preempted in the same turn.
  std::vector<Tracked*> fresh;
  for (Tracked& request : requests_)
    if ((request.after == Place::kRunning || request.preempted) && request.admitted < 0) fresh.push_back(&request);
  std::ranges::sort(fresh, {}, [](const Tracked* request) { return request->rank; });
  for (Tracked* request : fresh) request->admitted = admissions_++;
  for (Tracked& request : requests_) {
    request.before = request.after;
    if (!request.client.empty()) seen_[request.client] = turn_;
  }
  std::erase_if(requests_, [](const Tracked& request) { return request.after == Place::kDone; });
  return problem;
}

}  // namespace infinigen
