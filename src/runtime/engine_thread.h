// EngineThread: the thread that runs an engine's loop. Other threads post tasks, which it runs between two turns of the
// loop. Only this thread touches the engine and the model, so they need no locks.
#pragma once

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

  // `engine` outlives it. `after_turn` runs on this thread after every turn of the engine.
  EngineThread(Engine& engine, std::function<void()> after_turn);
  // Cancels all requests, runs their on_done on this thread, and joins it.
  ~EngineThread();
  EngineThread(const EngineThread&) = delete;
  EngineThread& operator=(const EngineThread&) = delete;

  // Any thread. Tasks run in the order of the calls, before the next turn.
  void Post(Task task);

 private:
  void Run();
  // Runs the posted tasks; if `idle`, waits for one first. False: the thread is to end.
  bool RunTasks(bool idle);

  Engine& engine_;
  const std::function<void()> after_turn_;
  std::mutex mutex_;
  std::condition_variable woken_;
  std::vector<Task> tasks_;
  bool ending_ = false;
  std::thread thread_;  // last member: it uses the others as soon as it starts
};

}  // namespace infinigen
