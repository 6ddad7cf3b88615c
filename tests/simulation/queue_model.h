// QueueModel: what docs/serving-design.md and docs/serving-safety.md promise about the order of requests, checked turn
// by turn from outside of the engine:
//
//   - among requests that were never admitted, the one with the smallest rank is admitted first, where the rank is its
//     arrival plus 128 for each unfinished request of its client; only a client that runs in all its slots is passed
//   - a client gets no more than half of the slots where another has requests, or had one in the last kSharedTurns
//   turns
//   - a preempted request is admitted before every other
//   - the oldest request is never preempted, unless it is alone
//   - every turn computes something or ends a request
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"

namespace infinigen {

class QueueModel {
 public:
  QueueModel(const Engine& engine, int64_t client_running, int64_t batch)
      : engine_(engine), client_running_(client_running), batch_(batch) {}

  // A request that the engine is about to accept. Returns the id that it gets.
  RequestId Submitted(const std::string& client);
  // After a turn. `threw`: it was ended by an exception. `worked`: a unit or a step ran. The first broken promise, or
  // empty.
  std::string AfterTurn(bool threw, bool worked);
  int64_t running() const { return running_; }
  int64_t unfinished() const { return unfinished_; }

 private:
  enum class Place : uint8_t { kWaiting, kRunning, kDone };
  struct Tracked {
    int64_t id = 0;
    std::string client;
    int64_t rank = 0;
    Place before = Place::kWaiting, after = Place::kWaiting;
    bool announced = true;  // the engine may not know it yet
    bool preempted = false;
    int64_t admitted = -1;  // how many were admitted for the first time before it; -1: never admitted

    bool is_new() const { return before == Place::kWaiting && after == Place::kRunning; }
    bool still_waits() const { return before == Place::kWaiting && after == Place::kWaiting; }
  };

  void Look();
  // The slots in which a client may run.
  int64_t Slots(const std::string& client) const;
  // A client that was at its limit at some time in the turn.
  bool AtLimit(const std::string& client) const;
  std::string CheckOrder() const;
  std::string CheckOldest() const;

  const Engine& engine_;
  const int64_t client_running_, batch_;
  std::vector<Tracked> requests_;        // unfinished before the turn
  std::map<std::string, int64_t> seen_;  // the latest turn in which a client had a request
  int64_t turn_ = 0;
  int64_t next_id_ = 0, admissions_ = 0, running_ = 0, unfinished_ = 0;
  int idle_turns_ = 0;
};

}  // namespace infinigen
