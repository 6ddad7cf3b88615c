// EngineThread: the thread that runs an engine's loop. Other threads post tasks, which it runs between two turns of the
// loop. Only this thread touches the engine and the model, so they need no locks. Heartbeat tells other threads whether
// the loop goes on. EngineLoop is what the thread runs; tests call it without a thread and with a clock of their own.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>
#include <vector>

#include "engine/engine.h"

namespace infinigen {

// Reads the time. Whatever depends on the time gets it from such a function, so that a simulation can set it.
using NowFunction = std::function<std::chrono::steady_clock::time_point()>;

// When the loop's current turn began, and how long the longest finished one took. One thread calls Begin and End, one
// thread Look, any thread the others.
//
// Pauses of the process do not count: a stopped process, a frozen container or a suspended machine does not hang. The
// thread that watches calls Look regularly; where two looks are further apart than `pause`, that thread did not run
// either, and the time between them is taken off the turn.
class Heartbeat {
 public:
  using Clock = std::chrono::steady_clock;
  struct Turn {
    uint64_t beats = 0;                             // beginnings and ends of turns so far: another number, another turn
    Clock::duration age = Clock::duration::zero();  // how long the current turn has lasted; 0 between turns
  };

  void Begin(Clock::time_point now) {
    const std::lock_guard lock(mutex_);
    ++beats_;
    began_ = now;
    paused_ = Clock::duration::zero();
  }
  void End(Clock::time_point now) {
    const std::lock_guard lock(mutex_);
    ++beats_;
    // The turn may end before the other thread looks again, so the pause after its last look is counted here.
    longest_ = std::max(longest_, AgeAt(now) - PauseUntil(now));
    began_.reset();
  }
  void Look(Clock::time_point now, Clock::duration pause) {
    const std::lock_guard lock(mutex_);
    pause_ = pause;
    paused_ += PauseUntil(now);
    looked_ = now;
  }

  Turn Current(Clock::time_point now) const {
    const std::lock_guard lock(mutex_);
    return {.beats = beats_, .age = AgeAt(now)};
  }
  Clock::duration Age(Clock::time_point now) const { return Current(now).age; }
  Clock::duration longest() const {
    const std::lock_guard lock(mutex_);
    return longest_;
  }

 private:
  Clock::duration AgeAt(Clock::time_point now) const {
    return began_ ? std::max(now - *began_ - paused_, Clock::duration::zero()) : Clock::duration::zero();
  }
  // The part of the current turn that is a pause and lies after the last look.
  Clock::duration PauseUntil(Clock::time_point now) const {
    if (!began_ || !looked_ || now - *looked_ <= pause_) return Clock::duration::zero();
    return std::min(now - *looked_, AgeAt(now));
  }

  mutable std::mutex mutex_;  // held for a few instructions
  uint64_t beats_ = 0;
  std::optional<Clock::time_point> began_;   // empty between turns
  std::optional<Clock::time_point> looked_;  // empty: not watched
  Clock::duration pause_ = Clock::duration::max(), paused_ = Clock::duration::zero();
  Clock::duration longest_ = Clock::duration::zero();
};

// One pass of the loop. Called from one thread, but for heartbeat().
class EngineLoop {
 public:
  using Task = std::function<void(Engine&)>;

  // What runs when a turn or a task threw; it must not throw. `ends_requests`: a turn, whose requests end.
  using OnException = std::function<void(std::string_view what, bool ends_requests)>;

  // `engine` outlives it. `after_turn` runs after every turn of the engine. After a turn that threw, the engine
  // recovers (Engine::Recover).
  EngineLoop(Engine& engine, std::function<void()> after_turn, OnException on_exception = {},
             NowFunction now = std::chrono::steady_clock::now);

  // Runs the tasks, clears them, and with `turns` runs one turn. False: no request is left.
  bool Pass(std::vector<Task>& tasks, bool turns = true);
  // Cancels all requests and runs their on_done.
  void End();
  Heartbeat& heartbeat() { return heartbeat_; }

 private:
  // Calls f. An exception in it goes to on_exception; with `recovers` the engine's running requests end then. Does not
  // throw, and allocates nothing itself: usually there was no memory.
  template <class F>
  void Guarded(bool recovers, F&& f) noexcept;
  void Recover(const char* what) noexcept;

  Engine& engine_;
  const std::function<void()> after_turn_;
  const OnException on_exception_;
  const NowFunction now_;
  Heartbeat heartbeat_;
};

class EngineThread {
 public:
  using Task = EngineLoop::Task;

  // As EngineLoop's; both functions run on this thread.
  EngineThread(Engine& engine, std::function<void()> after_turn, EngineLoop::OnException on_exception = {});
  // Cancels all requests, runs their on_done on this thread, and joins it.
  ~EngineThread();
  EngineThread(const EngineThread&) = delete;
  EngineThread& operator=(const EngineThread&) = delete;

  // Any thread. Tasks run in the order of the calls, before the next turn.
  void Post(Task task);
  // Any thread.
  Heartbeat& heartbeat() { return loop_.heartbeat(); }

 private:
  void Run();
  // Waits for a task if `idle`. False: the thread is to end.
  bool TakeTasks(bool idle, std::vector<Task>* tasks);

  EngineLoop loop_;
  std::mutex mutex_;
  std::condition_variable woken_;
  std::vector<Task> tasks_;
  bool ending_ = false;
  std::thread thread_;  // last member: it uses the others as soon as it starts
};

}  // namespace infinigen
