// Worker: one thread for what takes too long for an I/O thread, whose streams would stand still meanwhile: parsing and
// encoding of large bodies. One at a time, so that the memory of that is bounded too; those that wait have a bound.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace infinigen {

class Worker {
 public:
  explicit Worker(size_t most_waiting);
  // Ends after the task under way; those that wait are dropped.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Any thread. In order. False: too many wait, or all were refused, and this one is not among them.
  bool Post(const void* owner, std::function<void()> run, std::function<void()> refuse);
  // Any thread. Drops, unrun, what `owner` posted, and frees its place. False: it runs, has run, or was never there.
  bool Withdraw(const void* owner);
  // Any thread. Ends it: whatever waits is dropped unrun, and here, by this thread, `refuse` is called of each, oldest
  // first. Also of the one under way, which goes on meanwhile: which of its two functions counts is theirs to agree on.
  // Nothing is taken from here on.
  void RefuseAll();

 private:
  struct Task {
    const void* owner;  // a name, never followed
    std::function<void()> run, refuse;
  };

  void Run();

  const size_t most_waiting_;
  std::mutex mutex_;
  std::condition_variable woken_;
  std::deque<Task> tasks_;
  std::shared_ptr<const Task> under_way_;
  bool refusing_ = false;
  bool ending_ = false;
  std::thread thread_;  // last: starts when all else is there
};

}  // namespace infinigen
