// Worker: a thread that parses and encodes large request bodies, which would block the streams of an I/O thread for too
// long. It runs one task at a time, which bounds the memory of parsing; the number of waiting tasks is bounded too, in
// all and for each client. Clients take turns: one that posts many tasks delays another by one of them.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <thread>

namespace infinigen {

// Whose task it is. `id` is only compared, never dereferenced.
struct WorkerClient {
  const void* id = nullptr;
  bool limited = false;  // may have only its share of the waiting tasks
};

class Worker {
 public:
  // `most_of_client`: tasks of one limited client that may wait.
  explicit Worker(size_t most_waiting, size_t most_of_client = SIZE_MAX);
  // Finishes the running task and drops the waiting ones.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Any thread. Tasks of a client run in the order of the calls. False: too many are waiting, in all or of this client,
  // or RefuseAll was called; neither function will be called.
  bool Post(const void* owner, std::function<void()> run, std::function<void()> refuse, WorkerClient client = {});
  // Any thread. Removes the waiting task of `owner`. False: there is none; it runs, has run, or was never posted.
  bool Withdraw(const void* owner);
  // Any thread. Removes all waiting tasks and calls their `refuse` on the calling thread, client by client; further
  // tasks are not accepted. Also calls `refuse` of the running task, whose `run` continues: the two must decide which
  // of them takes effect (Api::Call::Settle).
  void RefuseAll();

 private:
  struct Task {
    const void* owner;  // only compared, never dereferenced
    std::function<void()> run, refuse;
  };

  // The waiting tasks of one client, oldest first; never empty.
  struct Lane {
    const void* client;
    std::deque<std::shared_ptr<const Task>> tasks;
  };

  void Run();
  // With the lock held, and a task waiting. Does not allocate.
  std::shared_ptr<const Task> TakeNext();

  const size_t most_waiting_, most_of_client_;
  std::mutex mutex_;
  std::condition_variable woken_;
  std::list<Lane> lanes_;  // in the order of their turns; allocated by Post, whose callers can fail
  size_t waiting_ = 0;     // tasks in all lanes
  std::shared_ptr<const Task> under_way_;
  bool refusing_ = false;
  bool ending_ = false;
  std::thread thread_;  // last member: it uses the others as soon as it starts
};

}  // namespace infinigen
