// ThreadPool: a fixed set of threads that runs one parallel loop at a time. The calling thread takes part, so a pool of
// size 1 starts no thread. Between loops the workers spin for a short while (a decode step has hundreds of loops,
// microseconds apart), then sleep. One caller at a time; not reentrant. A lock is taken only to wake sleeping workers.
//
// Run waits for workers that have entered the loop, but never for a worker that has not: on a busy machine, where a
// worker may get no core for milliseconds, the caller runs all tasks itself and returns.
//
// The caller divides the work into tasks; any thread may run any task. For reproducible results each output element
// must be computed by exactly one task, in a fixed order.
//
// An exception in a task (no memory) skips the tasks that have not begun, and leaves Run on the calling thread after
// every worker has left the loop.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace infinigen {

class ThreadPool {
 public:
  // std::system_error, with no thread left behind, if the system cannot start so many.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(task, thread) for task in [0, tasks), thread in [0, threads()); returns when all are done.
  // Allocates nothing.
  template <class Body>
  void Run(int64_t tasks, Body&& body) {
    if (tasks <= 0) return;
    if (tasks == 1 || workers_.empty()) {
      for (int64_t task = 0; task < tasks; ++task) body(task, 0);
      return;
    }
    RunErased(
        tasks,
        [](void* context, int64_t task, int thread) {
          (*static_cast<std::remove_reference_t<Body>*>(context))(task, thread);
        },
        const_cast<void*>(static_cast<const void*>(&body)));
  }

 private:
  using Function = void (*)(void* context, int64_t task, int thread);

  void RunErased(int64_t tasks, Function function, void* context);
  void Wake();
  void WorkerLoop(int thread);
  void Drain(int thread) noexcept;
  void Stop();

  // Set in inside_ while no loop is open to workers.
  static constexpr uint32_t kClosed = 1u << 31;

  // The current loop. Written by the caller while the loop is closed and no worker is inside; read by workers that have
  // entered it.
  Function function_ = nullptr;
  void* context_ = nullptr;
  int64_t tasks_ = 0;

  alignas(64) std::atomic<uint32_t> generation_{0};    // incremented for every loop; idle workers watch it
  alignas(64) std::atomic<uint32_t> inside_{kClosed};  // number of workers inside the loop, plus kClosed
  alignas(64) std::atomic<int64_t> next_task_{0};
  std::atomic<bool> stop_{false};
  // The first exception of the current loop: written by the thread that sets failed_, read when the loop is closed.
  std::atomic<bool> failed_{false};
  std::exception_ptr failure_;

  // Used only to sleep after a long idle time.
  std::atomic<int> sleepers_{0};
  std::mutex mutex_;
  std::condition_variable wake_;

  std::vector<std::thread> workers_;
};

}  // namespace infinigen
