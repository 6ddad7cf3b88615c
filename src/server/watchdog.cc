#include "server/watchdog.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

namespace infinigen {

Watchdog::Watchdog(const Heartbeat& heartbeat, const WatchdogTimes& times, std::function<void()> tell,
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
  const Clock::duration age = heartbeat_.Age(now);
  if (!end_at_) {
    const Clock::duration bound = stopping_ ? times_.end_after : Bound() + times_.end_after;
    if (age <= bound) return;
    end_at_ = now + times_.last_words;
    try {
      tell_();
    } catch (const std::exception&) {  // no memory: the process ends all the same
    }
    return;
  }
  if (now < *end_at_ || std::exchange(ended_, true)) return;
  char message[128];  // memory may be short
  const auto written = fmt::format_to_n(
      message, sizeof(message), "the engine has hung for {:.0f} s (a lost or blocked device?); the process ends",
      std::chrono::duration<double>(age).count());
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
