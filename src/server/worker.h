// Worker: a thread that parses and encodes large request bodies, which would block the streams of an I/O thread for too
// long. It runs one task at a time, which bounds the memory of parsing; the number of waiting tasks is bounded too.
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
  // Finishes the running task and drops the waiting ones.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Any thread. Tasks run in the order of the calls. False: too many are waiting, or RefuseAll was called; neither
  // function will be called.
  bool Post(const void* owner, std::function<void()> run, std::function<void()> refuse);
  // Any thread. Removes the waiting task of `owner`. False: there is none; it runs, has run, or was never posted.
  bool Withdraw(const void* owner);
  // Any thread. Removes all waiting tasks and calls their `refuse` on the calling thread, oldest first; further tasks
  // are not accepted. Also calls `refuse` of the running task, whose `run` continues: the two must decide which of them
  // takes effect (Api::Call::Settle).
  void RefuseAll();

 private:
  struct Task {
    const void* owner;  // only compared, never dereferenced
    std::function<void()> run, refuse;
  };

  void Run();

  const size_t most_waiting_;
  std::mutex mutex_;
  std::condition_variable woken_;
  std::deque<std::shared_ptr<const Task>> tasks_;  // allocated by Post, whose callers can fail
  std::shared_ptr<const Task> under_way_;
  bool refusing_ = false;
  bool ending_ = false;
  std::thread thread_;  // last member: it uses the others as soon as it starts
};

}  // namespace infinigen
