#include "server/worker.h"

#include <sys/resource.h>
#include <unistd.h>

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

bool Worker::Post(std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    if (tasks_.size() >= most_waiting_) return false;
    tasks_.push_back(std::move(task));
  }
  woken_.notify_one();
  return true;
}

void Worker::Run() {
  // Behind the engine's threads, where cores are few: somebody's next token goes before somebody's first. Of this
  // thread alone, on Linux; not worth an error.
  if (::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), 10) != 0) errno = 0;
  for (;;) {
    std::function<void()> task;
    {
      std::unique_lock lock(mutex_);
      woken_.wait(lock, [this] { return ending_ || !tasks_.empty(); });
      if (ending_) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
  }
}

}  // namespace infinigen
