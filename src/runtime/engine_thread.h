// EngineThread: the thread on which an engine lives. Other threads hand it tasks, which it runs between turns of the
// engine's loop; everything that touches the model happens here, so nothing of it needs a lock.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/engine.h"

namespace infinigen {

class EngineThread {
 public:
  using Task = std::function<void(Engine&)>;

  // `engine` outlives it. `after_turn` is called on the thread after every turn that had work, and after tasks.
  EngineThread(Engine& engine, std::function<void()> after_turn);
  // Cancels what runs and ends. Its clients are told, on this thread.
  ~EngineThread();
  EngineThread(const EngineThread&) = delete;
  EngineThread& operator=(const EngineThread&) = delete;

  // Any thread. In order; before the next turn.
  void Post(Task task);

 private:
  void Run();
  // Waits while there is nothing to do. False: end.
  bool RunTasks(bool idle);

  Engine& engine_;
  const std::function<void()> after_turn_;
  std::mutex mutex_;
  std::condition_variable woken_;
  std::vector<Task> tasks_;
  bool ending_ = false;
  std::thread thread_;  // last: starts when all else is there
};

}  // namespace infinigen
