#include "base/log_ring.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <exception>
#include <utility>

namespace infinigen {
namespace {

constexpr int kPollMs = 50;
// A pipe that poll calls writable takes so many bytes without blocking.
constexpr size_t kAtomicBytes = 4096;

}  // namespace

LogRing::LogRing(int fd, size_t max_lines) : fd_(fd), max_lines_(max_lines), thread_([this] { Run(); }) {}

LogRing::~LogRing() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  woken_.notify_one();
  thread_.join();
}

void LogRing::Write(std::string_view line) noexcept {
  {
    const std::lock_guard lock(mutex_);
    try {
      if (lines_.size() < max_lines_ && !ending_) {
        std::string text(line.substr(0, kMaxLineBytes - 1));
        text += '\n';
        lines_.push_back(std::move(text));
      } else {
        ++dropped_;
      }
    } catch (const std::exception&) {
      ++dropped_;
    }
  }
  woken_.notify_one();
}

void LogRing::CountDropped() noexcept {
  {
    const std::lock_guard lock(mutex_);
    ++dropped_;
  }
  woken_.notify_one();
}

uint64_t LogRing::dropped() const {
  const std::lock_guard lock(mutex_);
  return dropped_;
}

void LogRing::Run() {
  for (;;) {
    std::string line;
    char note[128];  // no memory may be a reason for dropped lines, so the note about them needs none
    std::string_view text;
    {
      std::unique_lock lock(mutex_);
      woken_.wait(lock, [this] { return ending_ || !lines_.empty() || dropped_ > reported_; });
      if (!lines_.empty()) {
        line = std::move(lines_.front());
        lines_.pop_front();
        text = line;
      } else if (dropped_ > reported_) {
        const uint64_t count = dropped_ - std::exchange(reported_, dropped_);
        const auto written = fmt::format_to_n(
            note, sizeof(note), "infinigen: {} lines of the log were dropped: it was not read, or memory was short\n",
            count);
        text = {note, written.size};
      } else {
        return;  // ending, and everything is written
      }
    }
    if (!WriteAll(text)) {
      const std::lock_guard lock(mutex_);
      dropped_ += 1 + lines_.size();
      reported_ = dropped_;  // there is no place to say so
      lines_.clear();
    }
  }
}

bool LogRing::WriteAll(std::string_view text) {
  using Clock = std::chrono::steady_clock;
  Clock::time_point give_up = Clock::time_point::max();
  while (!text.empty()) {
    {
      const std::lock_guard lock(mutex_);
      if (ending_ && give_up == Clock::time_point::max()) give_up = Clock::now() + std::chrono::milliseconds(kFlushMs);
    }
    if (Clock::now() >= give_up) return false;
    pollfd target{.fd = fd_, .events = POLLOUT, .revents = 0};
    if (::poll(&target, 1, kPollMs) <= 0) continue;
    const ssize_t written = ::write(fd_, text.data(), std::min(text.size(), kAtomicBytes));
    if (written < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (written < 0) return false;
    text.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

}  // namespace infinigen
