#include "server/worker.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

namespace infinigen {

Worker::Worker(size_t most_waiting) : most_waiting_(most_waiting), thread_([this] { Run(); }) {}

Worker::~Worker() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  woken_.notify_one();
  thread_.join();
}

bool Worker::Post(const void* owner, std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    if (tasks_.size() >= most_waiting_) return false;
    tasks_.push_back({owner, std::move(task)});
  }
  woken_.notify_one();
  return true;
}

bool Worker::Withdraw(const void* owner) {
  Task dropped;  // and freed outside the lock
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find(tasks_, owner, &Task::owner);
  if (found == tasks_.end()) return false;
  dropped = std::move(*found);
  tasks_.erase(found);
  return true;
}

void Worker::Run() {
  // Behind the engine's threads, where cores are few: somebody's next token goes before somebody's first. Of this
  // thread alone, on Linux; not worth an error.
  if (::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), 10) != 0) errno = 0;
  for (;;) {
    Task task;
    {
      std::unique_lock lock(mutex_);
      woken_.wait(lock, [this] { return ending_ || !tasks_.empty(); });
      if (ending_) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task.run();
  }
}

}  // namespace infinigen
