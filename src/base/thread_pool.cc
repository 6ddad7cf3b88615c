#include "base/thread_pool.h"

#include "base/check.h"

namespace infinigen {
namespace {

// About 50 µs of spinning: longer than the gap between two loops of a decode step, far shorter than a human notices.
constexpr int kSpins = 20000;

void Relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

}  // namespace

ThreadPool::ThreadPool(int threads) {
  CHECK(threads >= 1);
  workers_.reserve(static_cast<size_t>(threads - 1));
  for (int thread = 1; thread < threads; ++thread) workers_.emplace_back([this, thread] { WorkerLoop(thread); });
}

ThreadPool::~ThreadPool() {
  stop_.store(true);
  {
    std::lock_guard lock(mutex_);
    generation_.fetch_add(1);
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::RunErased(int64_t tasks, Function function, void* context) {
  function_ = function;
  context_ = context;
  tasks_ = tasks;
  next_task_.store(0, std::memory_order_relaxed);
  working_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
  bool wake = false;
  {
    // The lock orders the raise against a worker that is about to sleep: it sees either the raise or the notification.
    std::lock_guard lock(mutex_);
    generation_.fetch_add(1, std::memory_order_release);
    wake = sleepers_ > 0;
  }
  if (wake) wake_.notify_all();
  Drain(0);
  int spins = 0;
  while (working_.load(std::memory_order_acquire) != 0) {
    // More threads than cores: give the core to the worker we wait for.
    if (++spins > kSpins)
      std::this_thread::yield();
    else
      Relax();
  }
}

void ThreadPool::Drain(int thread) {
  for (;;) {
    const int64_t task = next_task_.fetch_add(1, std::memory_order_relaxed);
    if (task >= tasks_) return;
    function_(context_, task, thread);
  }
}

void ThreadPool::WorkerLoop(int thread) {
  uint64_t seen = 0;
  for (;;) {
    int spins = 0;
    while (generation_.load(std::memory_order_acquire) == seen) {
      if (++spins < kSpins) {
        Relax();
        continue;
      }
      std::unique_lock lock(mutex_);
      ++sleepers_;
      wake_.wait(lock, [&] { return generation_.load(std::memory_order_acquire) != seen; });
      --sleepers_;
    }
    if (stop_.load()) return;
    ++seen;
    Drain(thread);
    working_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace infinigen
