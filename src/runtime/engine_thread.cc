#include "runtime/engine_thread.h"

#include <utility>

namespace infinigen {

EngineThread::EngineThread(Engine& engine, std::function<void()> after_turn)
    : engine_(engine), after_turn_(std::move(after_turn)), thread_([this] { Run(); }) {}

EngineThread::~EngineThread() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  woken_.notify_one();
  thread_.join();
}

void EngineThread::Post(Task task) {
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  woken_.notify_one();
}

bool EngineThread::RunTasks(bool idle) {
  std::vector<Task> tasks;
  bool ending = false;
  {
    std::unique_lock lock(mutex_);
    if (idle) woken_.wait(lock, [this] { return ending_ || !tasks_.empty(); });
    tasks.swap(tasks_);
    ending = ending_;
  }
  for (const Task& task : tasks) task(engine_);
  return !ending;
}

void EngineThread::Run() {
  bool busy = false;
  while (RunTasks(/*idle=*/!busy)) {
    busy = engine_.RunOnce();
    after_turn_();
  }
  engine_.CancelAll();
  engine_.RunOnce();
}

}  // namespace infinigen
