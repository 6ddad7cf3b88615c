// LogRing: a log that never blocks its caller. Lines go into a bounded ring; a thread of its own writes them to a file
// descriptor. While the other end of a pipe is not read, the ring fills; further lines are dropped and counted, and the
// log says how many once it can be written again. Any thread.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

namespace infinigen {

class LogRing {
 public:
  static constexpr size_t kMaxLineBytes = 1024;

  // `fd` outlives the object and stays in the mode (blocking or not) that it has.
  explicit LogRing(int fd, size_t max_lines = 1024);
  // Writes what is left, for at most kFlushMs.
  ~LogRing();
  LogRing(const LogRing&) = delete;
  LogRing& operator=(const LogRing&) = delete;

  // Adds a line, cut to kMaxLineBytes; a line end is added. Drops it when the ring is full or memory is short.
  void Write(std::string_view line) noexcept;
  // Counts a line that its writer had no memory to make.
  void CountDropped() noexcept;
  uint64_t dropped() const;

 private:
  static constexpr int kFlushMs = 1000;

  void Run();
  // False: the descriptor could not be written.
  bool WriteAll(std::string_view text);

  const int fd_;
  const size_t max_lines_;
  mutable std::mutex mutex_;
  std::condition_variable woken_;
  std::deque<std::string> lines_;
  uint64_t dropped_ = 0, reported_ = 0;
  bool ending_ = false;
  std::thread thread_;  // last member: it uses the others as soon as it starts
};

}  // namespace infinigen
