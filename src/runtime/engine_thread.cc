#include "runtime/engine_thread.h"

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <utility>

namespace infinigen {

namespace {

// An engine that cannot recover because memory is short tries again so often.
constexpr int kRecoveries = 100;
constexpr std::chrono::milliseconds kBetweenRecoveries{50};

}  // namespace

EngineLoop::EngineLoop(Engine& engine, std::function<void()> after_turn, OnException on_exception, NowFunction now)
    : engine_(engine),
      after_turn_(std::move(after_turn)),
      on_exception_(std::move(on_exception)),
      now_(std::move(now)) {}

template <class F>
void EngineLoop::Guarded(bool recovers, F&& f) noexcept {
  char what[200];
  try {
    return f();
  } catch (const std::bad_alloc&) {
    std::snprintf(what, sizeof(what), "out of memory");
  } catch (const std::exception& error) {  // from a library; this project's code does not throw
    std::snprintf(what, sizeof(what), "%s", error.what());
  }
  if (on_exception_) on_exception_(what, recovers);
  if (recovers) Recover(what);
}

void EngineLoop::Recover(const char* what) noexcept {
  for (int tries = 1;; ++tries) {
    try {
      return engine_.Recover(what);
    } catch (const std::exception& error) {
      if (tries == kRecoveries) {
        std::fprintf(stderr, "infinigen: the engine could not recover from an exception (%s): %s\n", what,
                     error.what());
        std::_Exit(1);
      }
      std::this_thread::sleep_for(kBetweenRecoveries);
    }
  }
}

bool EngineLoop::Pass(std::vector<Task>& tasks, bool turns) {
  bool busy = true;
  heartbeat_.Begin(now_());
  for (const Task& task : tasks) Guarded(/*recovers=*/false, [&] { task(engine_); });
  tasks.clear();
  if (turns) {
    Guarded(/*recovers=*/true, [&] { busy = engine_.RunOnce(); });
    Guarded(/*recovers=*/false, after_turn_);
  }
  heartbeat_.End(now_());
  return busy;
}

void EngineLoop::End() {
  Guarded(/*recovers=*/true, [&] {
    engine_.CancelAll();
    engine_.RunOnce();
  });
}

EngineThread::EngineThread(Engine& engine, std::function<void()> after_turn, EngineLoop::OnException on_exception)
    : loop_(engine, std::move(after_turn), std::move(on_exception)), thread_([this] { Run(); }) {}

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

bool EngineThread::TakeTasks(bool idle, std::vector<Task>* tasks) {
  std::unique_lock lock(mutex_);
  if (idle) woken_.wait(lock, [this] { return ending_ || !tasks_.empty(); });
  tasks->swap(tasks_);
  return !ending_;
}

void EngineThread::Run() {
  bool busy = false, goes_on = true;
  while (goes_on) {
    std::vector<Task> tasks;
    goes_on = TakeTasks(/*idle=*/!busy, &tasks);
    busy = loop_.Pass(tasks, /*turns=*/goes_on);
  }
  loop_.End();
}

}  // namespace infinigen
