// Metrics: the server's counters, rendered for Prometheus. It also admits sequences to the bounded queue, which needs
// the same counts. Every method may be called from any thread.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/requests.h"
#include "server/http.h"

namespace infinigen {

// Counts values by upper bound; the last bucket has none.
class Histogram {
 public:
  explicit Histogram(std::vector<double> bounds) : bounds_(std::move(bounds)), counts_(bounds_.size() + 1) {}
  void Observe(double value);
  void Render(const char* name, const char* help, std::string* text) const;

 private:
  std::vector<double> bounds_;
  std::vector<uint64_t> counts_;
  double sum_ = 0;
};

// The engine's numbers at the latest update.
struct EngineSnapshot {
  KvStats kv;
  uint64_t pool_bytes = 0;    // held by running sequences
  uint64_t prefix_bytes = 0;  // cached prefixes that no sequence uses now, sketches included
  uint64_t prefix_limit_bytes = 0;
  uint64_t pool_limit_bytes = 0;  // 0: not known yet
  int64_t preemptions = 0, replayed_tokens = 0, prefilled_tokens = 0;
};

class Metrics {
 public:
  Metrics();

  // Reserves `count` of `limit` queue positions. False: the queue is full, and nothing is reserved.
  bool TryEnter(int64_t count, int64_t limit);
  // Releases the positions of a request that was not submitted.
  void Leave(int64_t count);
  void Started(int64_t prompt_tokens, int64_t cached_tokens);
  void FirstToken(double seconds);  // since the request arrived
  void NextToken(double gap_seconds);
  // Releases one position. `started`: Started was called for this sequence.
  void Finished(FinishReason reason, bool started, double seconds);

  void Replied(int status);
  void Update(EngineSnapshot snapshot);
  std::string Render(const HttpCounters& http, uint64_t dropped_log_lines = 0) const;

  int64_t running() const;
  int64_t waiting() const;

 private:
  mutable std::mutex mutex_;
  int64_t inside_ = 0;  // reserved positions: running and waiting
  int64_t running_ = 0;
  uint64_t prompt_tokens_ = 0, cached_tokens_ = 0, generated_tokens_ = 0;
  Histogram first_token_, gap_, whole_;
  std::map<std::string, uint64_t> succeeded_, failed_;  // by reason
  std::map<int, uint64_t> replies_;
  EngineSnapshot engine_;
};

}  // namespace infinigen
