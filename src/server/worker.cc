#include "server/worker.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <utility>

namespace infinigen {

Worker::Worker(size_t most_waiting, size_t most_of_client)
    : most_waiting_(most_waiting), most_of_client_(most_of_client), thread_([this] { Run(); }) {}

Worker::~Worker() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  woken_.notify_one();
  thread_.join();
}

bool Worker::Post(const void* owner, std::function<void()> run, std::function<void()> refuse, WorkerClient client) {
  auto task = std::make_shared<const Task>(Task{owner, std::move(run), std::move(refuse)});
  {
    const std::lock_guard lock(mutex_);
    if (refusing_ || waiting_ >= most_waiting_) return false;
    const auto lane = std::ranges::find(lanes_, client.id, &Lane::client);
    if (lane != lanes_.end()) {
      if (client.limited && lane->tasks.size() >= most_of_client_) return false;
      lane->tasks.push_back(std::move(task));
    } else {
      std::list<Lane> last(1);  // made apart: an exception must not leave an empty lane
      last.front().client = client.id;
      last.front().tasks.push_back(std::move(task));
      lanes_.splice(lanes_.end(), last);
    }
    ++waiting_;
  }
  woken_.notify_one();
  return true;
}

bool Worker::Withdraw(const void* owner) {
  std::shared_ptr<const Task> dropped;  // declared before the lock, so that the task is freed after it is released
  const std::lock_guard lock(mutex_);
  for (auto lane = lanes_.begin(); lane != lanes_.end(); ++lane) {
    const auto found = std::ranges::find(lane->tasks, owner, [](const auto& task) { return task->owner; });
    if (found == lane->tasks.end()) continue;
    dropped = std::move(*found);
    lane->tasks.erase(found);
    --waiting_;
    if (lane->tasks.empty()) lanes_.erase(lane);
    return true;
  }
  return false;
}

void Worker::RefuseAll() {
  std::list<Lane> waiting;
  std::shared_ptr<const Task> under_way;
  {
    const std::lock_guard lock(mutex_);
    refusing_ = true;
    waiting.swap(lanes_);
    waiting_ = 0;
    under_way = under_way_;
  }
  if (under_way) under_way->refuse();
  for (const Lane& lane : waiting)
    for (const auto& task : lane.tasks) task->refuse();
}

std::shared_ptr<const Worker::Task> Worker::TakeNext() {
  const auto lane = lanes_.begin();
  std::shared_ptr<const Task> task = std::move(lane->tasks.front());
  lane->tasks.pop_front();
  --waiting_;
  if (lane->tasks.empty())
    lanes_.erase(lane);
  else
    lanes_.splice(lanes_.end(), lanes_, lane);
  return task;
}

void Worker::Run() {
  // A lower priority than the engine's threads: running streams go before new requests when cores are few. On Linux
  // this affects only the calling thread. A failure is harmless.
  if (::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), 10) != 0) errno = 0;
  for (;;) {
    std::shared_ptr<const Task> task;  // freed outside the lock
    {
      std::unique_lock lock(mutex_);
      woken_.wait(lock, [this] { return ending_ || waiting_ > 0; });
      if (ending_) return;
      task = under_way_ = TakeNext();
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
