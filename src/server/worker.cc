#include "server/worker.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
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

bool Worker::Post(const void* owner, std::function<void()> run, std::function<void()> refuse) {
  auto task = std::make_shared<const Task>(Task{owner, std::move(run), std::move(refuse)});
  {
    const std::lock_guard lock(mutex_);
    if (refusing_ || tasks_.size() >= most_waiting_) return false;
    tasks_.push_back(std::move(task));
  }
  woken_.notify_one();
  return true;
}

bool Worker::Withdraw(const void* owner) {
  std::shared_ptr<const Task> dropped;  // declared before the lock, so that the task is freed after it is released
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find(tasks_, owner, [](const auto& task) { return task->owner; });
  if (found == tasks_.end()) return false;
  dropped = std::move(*found);
  tasks_.erase(found);
  return true;
}

void Worker::RefuseAll() {
  std::deque<std::shared_ptr<const Task>> waiting;
  std::shared_ptr<const Task> under_way;
  {
    const std::lock_guard lock(mutex_);
    refusing_ = true;
    waiting.swap(tasks_);
    under_way = under_way_;
  }
  if (under_way) under_way->refuse();
  for (const auto& task : waiting) task->refuse();
}

void Worker::Run() {
  // A lower priority than the engine's threads: running streams go before new requests when cores are few. On Linux
  // this affects only the calling thread. A failure is harmless.
  if (::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), 10) != 0) errno = 0;
  for (;;) {
    std::shared_ptr<const Task> task;  // freed outside the lock
    {
      std::unique_lock lock(mutex_);
      woken_.wait(lock, [this] { return ending_ || !tasks_.empty(); });
      if (ending_) return;
      task = under_way_ = std::move(tasks_.front());
      tasks_.pop_front();
    }
    try {
      task->run();
    } catch (const std::exception&) {  // tasks have barriers of their own; what they held is freed with them
    }
    const std::lock_guard lock(mutex_);
    under_way_ = nullptr;
  }
}

}  // namespace infinigen
