#include "server/watchdog.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

namespace infinigen {

namespace {

// Two checks that are further apart than this many polls (5 s by default): the process did not run in between. A
// thread that only waits for a core on a loaded machine is late by less.
constexpr int kPausePolls = 10;

}  // namespace

Watchdog::Watchdog(Heartbeat& heartbeat, const WatchdogTimes& times, std::function<void()> tell,
                   std::function<void(std::string_view)> end)
    : heartbeat_(heartbeat), times_(times), tell_(std::move(tell)), end_(std::move(end)) {
  if (times_.poll > times_.poll.zero()) thread_ = std::thread([this] { Run(); });
}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  woken_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void Watchdog::SetStopping() { stopping_ = true; }

Watchdog::Clock::duration Watchdog::Bound() const {
  return std::max(times_.least_bound, times_.longest_factor * heartbeat_.longest());
}

void Watchdog::Check(Clock::time_point now) {
  heartbeat_.Look(now, times_.poll > times_.poll.zero() ? kPausePolls * times_.poll : Clock::duration::max());
  const Heartbeat::Turn turn = heartbeat_.Current(now);
  if (told_ && told_->beats != turn.beats) told_.reset();  // the loop goes on
  if (!told_) {
    const Clock::duration bound = stopping_ ? times_.end_after : Bound() + times_.end_after;
    if (turn.age <= bound) return;
    told_ = turn;
    try {
      tell_();
    } catch (const std::exception&) {  // no memory: the process ends all the same
    }
    return;
  }
  if (turn.age < told_->age + times_.last_words || std::exchange(ended_, true)) return;
  char message[128];  // memory may be short
  const auto written = fmt::format_to_n(
      message, sizeof(message), "the engine has hung for {:.0f} s (a lost or blocked device?); the process ends",
      std::chrono::duration<double>(turn.age).count());
  end_({message, written.size});
}

void Watchdog::Run() {
  std::unique_lock lock(mutex_);
  while (!woken_.wait_for(lock, times_.poll, [this] { return ending_; })) {
    lock.unlock();
    Check(Clock::now());
    lock.lock();
  }
}

}  // namespace infinigen
