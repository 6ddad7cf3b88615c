// Engine: schedules requests on an executor; requests in, tokens out. It owns no thread: its owner calls RunOnce() in a
// loop, on one thread.
//
// A turn (RunOnce) drops cancelled requests; admits queued requests while the pool has room, fairly between clients and
// in order of arrival within a client; runs prefill units of one prompt; and runs one decode step of all decoding
// requests. So a long prompt delays the decode steps of other requests by at most one turn's prefill units, and
// requests can join and leave between steps.
//
// Where clients are limited (EngineOptions::client_running) and one decodes at least twice as many requests as another,
// a turn has further steps for the other's requests alone, until they took as long as the common step. So a client that
// fills the batch makes the steps of others about twice as long, not as long as its batch. Where a small step takes
// nearly as long as a large one (a GPU, weights that are read from memory), there is nothing to gain, and none are run.
//
// Prompts are prefilled in two lanes. The main lane has the oldest prompt. If that is long and the executor planned for
// it (ExecutorOptions::side_tokens), the side lane has the oldest short prompt. Turns alternate between the lanes, so a
// short prompt does not wait for a long one, and a long one takes at most twice as long.
//
// Memory: by default a request is admitted with rows for its final length, so it can always finish. With
// EngineOptions::grows it is admitted with rows for its prompt and the next tokens, and its quota grows as needed. When
// the pool is full, unused cached prefixes are dropped; then the newest request is preempted: it releases its memory
// and returns to its position in the queue. Later its prompt and the tokens generated so far are prefilled again
// (generated tokens as decode steps, so that its entries are bit-identical). The oldest request is never preempted, so
// some request always makes progress.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "engine/prefix_cache.h"
#include "engine/request.h"
#include "model/executor.h"

namespace infinigen {

// For so many turns after a client's last request, others leave half of the slots free: seconds, in most cases.
inline constexpr int64_t kSharedTurns = 256;
// Number of latest step times that are stored for percentiles.
inline constexpr size_t kStepSamples = 65536;

struct EngineOptions {
  // Quotas grow as needed, and the newest request is preempted when the pool is full. Ignored if the method evicts:
  // requests are then admitted with rows for their final length.
  bool grows = false;
  // Requests reuse the entries of earlier requests that begin with the same tokens. Only with `grows`.
  bool reuses_prefixes = false;
  // Limit of the prefix cache: entries and sketches that no request uses. They are dropped when a request needs memory.
  uint64_t prefix_limit_bytes = UINT64_MAX;
  // Requests that may wait in the queue, not counting those for which a slot is free; more are rejected.
  int64_t max_waiting = INT64_MAX;
  // A turn runs prefill units until their tokens add up to this many; 0: one unit. With it a short prompt needs one or
  // two turns instead of one for each layer.
  int64_t turn_prefill_tokens = 0;
  // Requests of one client (Request::client) that may run at once, so that others find a slot. Where other clients have
  // requests, or had one in the last kSharedTurns turns, a client may run in half of the slots: its sequences make each
  // step longer for the others. From max_batch on there is no limit at all.
  int64_t client_running = INT64_MAX;
  // For the time that steps take; a simulation sets it.
  std::function<std::chrono::steady_clock::time_point()> now = std::chrono::steady_clock::now;
};

struct EngineStats {
  int64_t prefill_tokens = 0;
  double prefill_s = 0;  // time inside prefill units
  int64_t decode_tokens = 0;
  double decode_s = 0;  // time inside decode steps
  int64_t decode_steps = 0;
  std::vector<float> step_ms;  // duration of the latest kStepSamples steps, in no particular order

  // Sums so far.
  int64_t prompt_tokens = 0;    // counted when a request's first prefill begins
  int64_t reused_tokens = 0;    // prompt tokens with entries that existed already
  int64_t replayed_tokens = 0;  // tokens prefilled again after a preemption
  int64_t preemptions = 0;
  // State after the latest turn.
  int64_t running = 0;
  int64_t waiting = 0;
  uint64_t pool_bytes = 0;    // entries of running requests, and held rows
  uint64_t cached_bytes = 0;  // entries of cached prefixes that no request uses
  uint64_t prefix_bytes = 0;  // cached_bytes and their sketches: at most prefix_limit_bytes
};

class Engine {
 public:
  explicit Engine(Executor& executor, const EngineOptions& options = {});  // the executor outlives the engine
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Queues a request. Fails at once if it could never run: empty prompt, token outside the vocabulary, prompt longer
  // than the context, unsupported `kv`; kExhausted if the queue is full.
  Result<RequestId> Submit(Request request);

  // Take effect at the start of the next turn; unknown or finished ids are ignored. The only functions that callbacks
  // may call.
  void Cancel(RequestId id);
  void CancelAll();

  // Runs one turn; false when no request is left.
  bool RunOnce();

  // After an exception in RunOnce: all requests that hold a slot end with kError and this message, every slot and
  // cached prefix is freed, and waiting requests stay. The executor may have been stopped anywhere.
  // Where it throws, it can be called again.
  void Recover(std::string_view error);

  // Releases the held rows (Request::hold_rows), and drops all cached prefixes that no request uses.
  void DropHeld();

  // The slot of a request; nullopt while it has none.
  std::optional<SeqSlot> SlotOf(RequestId id) const;
  // The state of a request; kPreempted while it waits again; nullopt once it is finished.
  std::optional<RequestState> StateOf(RequestId id) const;

  const EngineStats& stats() const { return stats_; }
  Executor& executor() { return executor_; }

 private:
  struct Live;

  void DropCancelled();
  void SweepFinished();
  void UpdateStats();

  // Memory (admission.cc).
  void Admit();
  Live* NextToAdmit();
  bool AtLimit(const std::string& client) const;
  void See(const std::string& client);
  void MoveUp(const Live& live);
  Result<SeqSlot> AdmitOne(Live& live, bool alone);
  Result<SeqSlot> AdmitGrowing(Live& live, bool alone);
  PrefixCache::Path FindPrefix(Live& live);
  void AdoptPrefix(Live& live);
  bool AdoptHeldRows(Live& live);
  void GrowAll();
  void Grow(Live& live);
  bool MakeRoom(int64_t extents);
  void Preempt(Live& live);
  void Publish(Live& live);
  void ReleaseSlot(Live& live);
  Live* Newest() const;
  int64_t Running() const;
  int64_t Waiting() const;

  // Computation (engine.cc).
  struct Lanes {
    Live* main = nullptr;
    Live* side = nullptr;
  };
  Lanes FindLanes() const;
  bool IsShort(const Live& live) const;
  void RunPrefill();
  void RunPrefillUnit(Live& live);
  Status BeginPrefill(Live& live);
  void ScorePrompt(Live& live);
  void EndPrefill(Live& live, std::span<float> logits);
  void RunDecodeSteps();
  // Steps all decoding requests, or those of clients that decode few; false: there are none. Adds the time to *taken.
  bool RunDecodeStep(bool light, std::chrono::nanoseconds* taken);
  bool IsLight(const std::string& client) const;
  // Ends a request whose logits are not finite. `item`: the token that they come after.
  void FinishBroken(Live& live, const StepItem& item);
  void Accept(Live& live, std::span<float> logits);
  void CountSteps(Live& live);
  void Finish(Live& live, FinishReason reason, std::string error = {});

  Executor& executor_;
  Sharing* const sharing_;  // null: requests are admitted with rows for their final length
  const EngineOptions options_;
  std::unique_ptr<PrefixCache> prefixes_;  // null: prefixes are not reused
  uint64_t prefix_extent_bytes_ = 0;       // one cached extent and its sketches
  // All that are not finished: those that were admitted, in the order in which they were; then the others, in order of
  // arrival.
  std::deque<std::unique_ptr<Live>> requests_;
  // Rows of a finished request. The slot has room for the whole context, so any request fits into it.
  struct Held {
    SeqSlot slot;
    std::vector<int32_t> tokens;  // one per row
  };
  std::optional<Held> held_;
  uint64_t side_bytes_ = 0;  // the most memory that a prefill in the side lane may use; 0: there is no side lane
  bool side_turn_ = false;   // the latest turn ran the side lane
  int64_t next_id_ = 0;
  // Clients with requests now or in the last kSharedTurns turns, and the latest turn in which they had one.
  struct Seen {
    std::string client;
    int64_t turn = 0;
  };
  std::vector<Seen> seen_;
  int64_t turn_ = 0;
  int64_t next_light_turn_ = 0;  // further steps were not worth it before
  int64_t light_pause_ = 1;      // turns until they are tried again where they are not
  EngineStats stats_;

  // Scratch memory of a step, allocated once.
  std::vector<Live*> batch_;
  std::vector<StepItem> items_;
  std::vector<float> logits_;        // [max_batch][vocab]
  std::vector<float> score_logits_;  // [rows][vocab]; empty until a request scores its prompt
  std::vector<uint32_t> mask_;       // tokens that a constraint allows; empty until a request has one
};

}  // namespace infinigen
