#include "base/thread_pool.h"

#include <utility>

#include "base/check.h"

namespace infinigen {
namespace {

// About 50 µs of spinning, longer than the gap between two loops of a decode step.
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
  try {
    for (int thread = 1; thread < threads; ++thread) workers_.emplace_back([this, thread] { WorkerLoop(thread); });
  } catch (...) {
    Stop();  // those that have started
    throw;
  }
}

ThreadPool::~ThreadPool() { Stop(); }

void ThreadPool::Stop() {
  stop_.store(true);
  Wake();
  for (std::thread& worker : workers_) worker.join();
}

// No wake-up is lost: a worker increments sleepers_ before it reads generation_, and this function increments
// generation_ before it reads sleepers_. All four operations are sequentially consistent, so at least one of the two
// sees the other's increment.
void ThreadPool::Wake() {
  generation_.fetch_add(1);
  if (sleepers_.load() == 0) return;
  { std::lock_guard lock(mutex_); }  // waits for a worker that is between reading generation_ and sleeping
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
    // With more threads than cores, yield the core to the worker that this thread waits for.
    if (++spins > kSpins)
      std::this_thread::yield();
    else
      Relax();
  }
  if (failed_.load(std::memory_order_relaxed)) {
    failed_ = false;
    std::rethrow_exception(std::exchange(failure_, nullptr));
  }
}

void ThreadPool::Drain(int thread) noexcept {
  try {
    for (;;) {
      const int64_t task = next_task_.fetch_add(1, std::memory_order_relaxed);
      if (task >= tasks_) return;
      function_(context_, task, thread);
    }
  } catch (...) {
    next_task_.store(tasks_, std::memory_order_relaxed);
    if (!failed_.exchange(true)) failure_ = std::current_exception();
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
    // generation_ is read before stop_: a worker that sees the destructor's generation also sees stop_.
    seen = generation_.load();
    if (stop_.load()) return;
    // If the loop that woke this worker is over, kClosed is set, and its members must not be touched.
    if ((inside_.fetch_add(1, std::memory_order_acquire) & kClosed) == 0) Drain(thread);
    inside_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace infinigen
