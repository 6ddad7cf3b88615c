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
  Wake();
  for (std::thread& worker : workers_) worker.join();
}

// A worker that is about to sleep raises sleepers_ and then looks at generation_; we raise generation_ and then look at
// sleepers_. In the one order of these four that all threads agree on, one of the two sees the other.
void ThreadPool::Wake() {
  generation_.fetch_add(1);
  if (sleepers_.load() == 0) return;
  { std::lock_guard lock(mutex_); }  // a sleeper between its look and its wait holds it
  wake_.notify_all();
}

void ThreadPool::RunErased(int64_t tasks, Function function, void* context) {
  function_ = function;
  context_ = context;
  tasks_ = tasks;
  next_task_.store(0, std::memory_order_relaxed);
  inside_.fetch_and(~kClosed, std::memory_order_release);
  Wake();
  Drain(0);
  inside_.fetch_or(kClosed, std::memory_order_relaxed);
  int spins = 0;
  while (inside_.load(std::memory_order_acquire) != kClosed) {
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
  uint32_t seen = 0;
  for (;;) {
    int spins = 0;
    while (generation_.load() == seen) {
      if (++spins < kSpins) {
        Relax();
        continue;
      }
      std::unique_lock lock(mutex_);
      sleepers_.fetch_add(1);
      wake_.wait(lock, [&] { return generation_.load() != seen; });
      sleepers_.fetch_sub(1);
    }
    // In this order: who sees the end's generation sees the end too, and does not wait for another.
    seen = generation_.load();
    if (stop_.load()) return;
    // Late for the loop that woke us? Then the door is closed, and nothing of it is touched.
    if ((inside_.fetch_add(1, std::memory_order_acquire) & kClosed) == 0) Drain(thread);
    inside_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace infinigen
