// What an Api has once there is a model: the engine, its thread, and who looks at them. Part of the Api, for its own
// files only.
#pragma once

#include <atomic>
#include <chrono>
#include <ctime>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/engine_thread.h"
#include "server/api.h"
#include "server/completion.h"
#include "server/kv_watch.h"
#include "server/worker.h"

namespace infinigen {

// Through a layer, in one turn: short prompts get going together, and nobody's next token waits for more.
inline constexpr int64_t kTurnPrefillTokens = 256;
// How often the engine's numbers are taken for /metrics, and streams are looked after.
inline constexpr std::chrono::milliseconds kBetweenSnapshots{250};
// Bodies that may wait to be read: as many of the largest as all bodies together may have bytes, and some small ones.
inline constexpr size_t kMostWaitingBodies = 64;

// "5f3c…", not to be guessed.
std::string RandomHex(int digits);
// Text as a log line can hold it.
std::string Printable(std::string_view text);

struct Api::Call {
  std::shared_ptr<HttpExchange> exchange;
  std::string id;
  std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
  Serving* serving = nullptr;  // null: not ready
  // Of a body that the worker reads. Its answer, its client's leaving and the server's end may come at once: whoever
  // settles it first has the reply and the line in the log, and the others say nothing. Null: there is one way only.
  std::shared_ptr<std::atomic<bool>> settled;

  bool CopySurvivors() const { return settled == nullptr || !settled->exchange(true); }
  bool is_settled() const { return settled != nullptr && *settled; }
  const HttpRequest& head() const { return exchange->request(); }
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); }
};

struct Api::Serving {
  using Clock = std::chrono::steady_clock;

  ServedModel model;
  int64_t created = std::time(nullptr);
  Metrics& metrics;
  Engine engine;
  KvWatch watch;
  Clock::time_point last_snapshot{};
  std::vector<std::weak_ptr<Completion>> streams;  // on the engine's thread
  // Last: they use all the others, and the worker the engine's thread.
  EngineThread thread;
  Worker worker{kMostWaitingBodies};

  Serving(ServedModel model_, Metrics& metrics_)
      : model(std::move(model_)),
        metrics(metrics_),
        engine(*model.executor, {.grows = true,
                                 .reuses_prefixes = true,
                                 .prefix_limit_bytes = model.prefix_limit_bytes,
                                 .turn_prefill_tokens = kTurnPrefillTokens}),
        watch(engine, metrics_, model.prefix_limit_bytes,
              /*samples=*/model.executor->options().device == Device::kCuda),
        thread(engine, [this] { AfterTurn(); }) {}

  void AfterTurn() {
    watch.Turn();
    const Clock::time_point now = Clock::now();
    if (now - last_snapshot < kBetweenSnapshots && metrics.running() > 0) return;
    last_snapshot = now;
    std::erase_if(streams, [&](const std::weak_ptr<Completion>& held) {
      const std::shared_ptr<Completion> stream = held.lock();
      return stream == nullptr || !stream->Beat(now);
    });
    const EngineStats& stats = engine.stats();
    metrics.Update({.kv = model.executor->instruments().Stats(),
                    .pool_bytes = stats.pool_bytes,
                    .prefix_bytes = stats.prefix_bytes,
                    .prefix_limit_bytes = model.prefix_limit_bytes,
                    .pool_limit_bytes = PoolLimit(*model.executor),
                    .preemptions = stats.preemptions,
                    .replayed_tokens = stats.replayed_tokens,
                    .prefilled_tokens = stats.prefill_tokens});
  }
  int64_t context() const { return model.executor->options().max_tokens; }
  int64_t vocab() const { return model.executor->config().vocab; }
};

}  // namespace infinigen
