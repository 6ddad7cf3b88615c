// The part of Api that exists once a model is loaded: engine, engine thread, KV watch, worker. Private to api.cc and
// api_complete.cc.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <ctime>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/engine_thread.h"
#include "server/admission.h"
#include "server/api.h"
#include "server/completion.h"
#include "server/grammars.h"
#include "server/kv_watch.h"
#include "server/watchdog.h"
#include "server/worker.h"

namespace infinigen {

// Prompt tokens that go through one layer per turn: short prompts start together, and running streams wait for no more.
inline constexpr int64_t kTurnPrefillTokens = 256;
// Interval between updates of /metrics, and between heartbeat checks of streams.
inline constexpr std::chrono::milliseconds kBetweenSnapshots{250};
// Large bodies that may wait for the worker: the 32 of 8 MiB that HttpLimits::memory_bytes allows, and as many small.
inline constexpr size_t kMostWaitingBodies = 64;
// Of those, as many of one client. `share`: as in Clients.
inline size_t BodiesOfClient(double share) {
  return std::max<size_t>(static_cast<size_t>(share * static_cast<double>(kMostWaitingBodies)), 1);
}

// Larger bodies go to the worker: parsing and encoding this many bytes takes 1 to 2 ms.
inline constexpr size_t kInPlaceBytes = 16 << 10;
// A model whose chat template once took longer than this for a small body has all chats rendered by the worker, not on
// the threads that send streams. Published templates take less than a millisecond, a hostile one up to a second or two.
inline constexpr std::chrono::milliseconds kSlowChat{10};

struct Api::Call {
  std::shared_ptr<HttpExchange> exchange;
  std::string id;
  std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
  Serving* serving = nullptr;  // null: the model is not loaded yet
  // Set for a body that the worker reads. Its answer, the client's disconnect and the server's shutdown may happen at
  // the same time on three threads: the first to settle the call replies and logs, the others do nothing. Null: only
  // one thread can reply.
  std::shared_ptr<std::atomic<bool>> settled;

  // True for the first caller.
  bool Settle() const { return settled == nullptr || !settled->exchange(true); }
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
  std::atomic<bool> slow_chats{false};
  Grammars grammars;
  std::vector<std::weak_ptr<Completion>> streams;  // used on the engine's thread only
  // Formats answers that are not streamed, which takes long where they have logprobs. Its tasks are as many as the
  // queue has places.
  Worker formatter{SIZE_MAX};
  // Last members: they use the others; the worker and the watchdog use the engine's thread.
  EngineThread thread;
  Worker worker;
  // Reads requests whose answers have a grammar, because compiling one takes up to a second.
  Worker grammar_worker;
  std::optional<Watchdog> watchdog;

  Serving(ServedModel model_, Metrics& metrics_, double client_share, EngineLoop::OnException on_exception)
      : model(std::move(model_)),
        metrics(metrics_),
        engine(*model.executor, {.grows = true,
                                 .reuses_prefixes = true,
                                 .prefix_limit_bytes = model.prefix_limit_bytes,
                                 .turn_prefill_tokens = kTurnPrefillTokens,
                                 .client_running = SlotsOfClient(model.executor->options().max_batch, client_share)}),
        watch(engine, metrics_, model.prefix_limit_bytes,
              /*samples=*/model.executor->options().device == Device::kCuda),
        thread(
            engine, [this] { AfterTurn(); }, std::move(on_exception)),
        worker(kMostWaitingBodies, BodiesOfClient(client_share)),
        grammar_worker(kMostWaitingBodies, BodiesOfClient(client_share)) {}

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
