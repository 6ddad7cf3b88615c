// Watchdog: notices that the engine's loop hangs (a GPU kernel that does not return, a lost device) and ends the
// process, so that a supervisor can start it again (docs/serving-safety.md). Time in which the watchdog itself did not
// run is a pause of the process, and does not count (Heartbeat). Every function may be called from any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>

#include "runtime/engine_thread.h"

namespace infinigen {

struct WatchdogTimes {
  using Duration = std::chrono::steady_clock::duration;
  // A turn is stalled, and /health fails, after max(least_bound, longest_factor × the longest finished turn).
  Duration least_bound = std::chrono::seconds(30);
  int longest_factor = 5;
  Duration end_after = std::chrono::seconds(10);   // a turn is stalled for so long before clients are told
  Duration last_words = std::chrono::seconds(2);   // time for clients to get the error, before the process ends
  Duration poll = std::chrono::milliseconds(500);  // 0: no thread; the owner calls Check
};

class Watchdog {
 public:
  using Clock = Heartbeat::Clock;

  // `heartbeat` outlives it. `tell` tells the clients, `end` ends the process with a message; both run on the
  // watchdog's thread. If the loop goes on after `tell`, the process does not end, and a later stall calls `tell`
  // again; `end` runs once. An exception of `tell` is ignored; `end` must not throw.
  Watchdog(Heartbeat& heartbeat, const WatchdogTimes& times, std::function<void()> tell,
           std::function<void(std::string_view message)> end);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // Whether the current turn has lasted too long.
  bool stalled(Clock::time_point now) const { return heartbeat_.Age(now) > Bound(); }
  // The server ends: a turn may last no longer than `end_after`.
  void SetStopping();
  // Called by the watchdog's own thread every `poll`; by tests, with times of their own and no thread. One thread.
  void Check(Clock::time_point now);

 private:
  Clock::duration Bound() const;
  void Run();

  Heartbeat& heartbeat_;
  const WatchdogTimes times_;
  const std::function<void()> tell_;
  const std::function<void(std::string_view)> end_;
  std::optional<Heartbeat::Turn> told_;  // the turn that was stalled when the last words were said
  bool ended_ = false;
  std::atomic<bool> stopping_{false};
  std::mutex mutex_;
  std::condition_variable woken_;
  bool ending_ = false;
  std::thread thread_;  // last member: it uses the others as soon as it starts
};

}  // namespace infinigen
