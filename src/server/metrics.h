// Metrics: what the server counted, as Prometheus reads it. Every method may be called from any thread. Also the gate
// of the bounded queue, since that needs the same count.
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

// Counts of values up to each bound; the last is without one.
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

// The engine's side of things, as it last was.
struct EngineSnapshot {
  KvStats kv;
  uint64_t pool_bytes = 0;    // of sequences that run
  uint64_t prefix_bytes = 0;  // of prefixes that nobody uses at the moment, sketches included
  uint64_t prefix_limit_bytes = 0;
  uint64_t pool_limit_bytes = 0;  // 0: not known yet
  int64_t preemptions = 0, replayed_tokens = 0, prefilled_tokens = 0;
};

class Metrics {
 public:
  Metrics();

  // Takes `count` places among `limit`, or none: the queue is full.
  bool TryEnter(int64_t count, int64_t limit);
  // Gives them back as if nobody had come.
  void Leave(int64_t count);
  void Started(int64_t prompt_tokens, int64_t cached_tokens);
  void FirstToken(double seconds);  // since the request came
  void NextToken(double gap_seconds);
  // Gives one place back. `started`: it had been admitted.
  void Finished(FinishReason reason, bool started, double seconds);

  void Replied(int status);
  void Update(EngineSnapshot snapshot);
  std::string Render(const HttpCounters& http) const;

  int64_t running() const;
  int64_t waiting() const;

 private:
  mutable std::mutex mutex_;
  int64_t inside_ = 0, running_ = 0;
  uint64_t prompt_tokens_ = 0, cached_tokens_ = 0, generated_tokens_ = 0;
  Histogram first_token_, gap_, whole_;
  std::map<std::string, uint64_t> succeeded_, failed_;  // by reason
  std::map<int, uint64_t> replies_;
  EngineSnapshot engine_;
};

}  // namespace infinigen
