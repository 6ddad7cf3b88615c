// The engine: requests in, tokens out. One loop on one thread; it owns no thread itself, its owner calls RunOnce().
//
// A turn: drop what was cancelled; admit from the queue, in order of arrival, while the pool has room; run prefill
// units of one prompt; run one decode step for every decoding request. So a long prompt never stalls the streams of
// others for longer than one unit, and a request joins and leaves between steps.
//
// Prompts are read in two lanes. The main lane has the oldest. Where that is a long one, and the executor planned for
// it (ExecutorOptions::side_tokens), the side lane has the oldest of the short ones. Turns alternate between them, so a
// short prompt does not wait for a long one, and a long one takes at most twice as long.
//
// Room: a request is admitted with rows for its final length, so that nothing can stop it any more. An engine that
// grows gives it rows for its prompt and the next tokens, and more when they are used up. When the pool has none,
// cached prefixes leave; then the request that came last is preempted: it gives everything up, waits again in its place
// by arrival, and its prompt and what it said so far are read again (what it said, as steps: the entries are the ones
// it had). The oldest takes from everybody and nobody from it, so it always gets on, and everybody is the oldest once.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "engine/prefix_cache.h"
#include "engine/request.h"
#include "model/executor.h"

namespace infinigen {

// Step times kept for percentiles: the latest so many.
inline constexpr size_t kStepSamples = 65536;

struct EngineOptions {
  // Quotas grow, and who came last is preempted. Methods that evict never grow: they are admitted whole.
  bool grows = false;
  // Sequences begin with what others had in common with them. Only where quotas grow.
  bool reuses_prefixes = false;
  // What may stay of them, sketches included, while nobody uses it. Whoever needs the room takes it from there first.
  uint64_t prefix_limit_bytes = UINT64_MAX;
  // Requests that wait beyond those that a free slot is there for; one more is refused.
  int64_t max_waiting = INT64_MAX;
  // Prefill units of a turn go on until so many tokens went through a layer; 0: one unit. A short prompt is then done
  // in a turn or two, instead of in as many as there are layers.
  int64_t turn_prefill_tokens = 0;
};

struct EngineStats {
  int64_t prefill_tokens = 0;
  double prefill_s = 0;  // time inside prefill units
  int64_t decode_tokens = 0;
  double decode_s = 0;  // time inside decode steps
  int64_t decode_steps = 0;
  std::vector<float> step_ms;  // of the latest kStepSamples steps, in no particular order

  // Sums so far.
  int64_t prompt_tokens = 0;    // of requests whose prefill has begun, each once
  int64_t reused_tokens = 0;    // of them, those that were not computed
  int64_t replayed_tokens = 0;  // computed again after a preemption
  int64_t preemptions = 0;
  // After the latest turn.
  int64_t running = 0;
  int64_t waiting = 0;
  uint64_t pool_bytes = 0;    // entries of requests that run or are kept
  uint64_t cached_bytes = 0;  // entries that leave when somebody needs the room
  uint64_t prefix_bytes = 0;  // the same with their sketches: at most prefix_limit_bytes
};

class Engine {
 public:
  explicit Engine(Executor& executor, const EngineOptions& options = {});  // the executor outlives the engine
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Queues a request. Refused at once, with the numbers, when it can never run: empty prompt, a token outside the
  // vocabulary, a prompt longer than the context, a kv that cannot be had; kExhausted when too many wait.
  Result<RequestId> Submit(Request request);

  // Takes effect at the start of the next turn, before anything is computed; unknown or finished ids are ignored. The
  // only calls allowed inside callbacks.
  void Cancel(RequestId id);
  void CancelAll();

  // One turn; false when there is nothing to do.
  bool RunOnce();

  // Gives up the rows that a hold_rows request left behind, if any, and all prefixes that nobody uses.
  void DropHeld();

  // Where a request's entries are; nullopt while it has none.
  std::optional<SeqSlot> SlotOf(RequestId id) const;

  const EngineStats& stats() const { return stats_; }
  Executor& executor() { return executor_; }

 private:
  struct Live;

  void DropCancelled();
  void SweepFinished();
  void UpdateStats();

  // Room (engine_room.cc).
  void Admit();
  Result<SeqSlot> AdmitOne(Live& live, bool alone);
  Result<SeqSlot> AdmitGrowing(Live& live, bool alone);
  PrefixCache::Path FindPrefix(Live& live);
  void TakeOverPrefix(Live& live);
  bool TakeOverHeld(Live& live);
  void GrowAll();
  void Grow(Live& live);
  bool MakeRoom(int64_t extents);
  void Preempt(Live& live);
  void Publish(Live& live);
  void GiveUp(Live& live);
  Live* Youngest() const;
  int64_t Running() const;
  int64_t Waiting() const;

  // Work.
  struct Lanes {
    Live* main = nullptr;
    Live* side = nullptr;
  };
  Lanes FindLanes() const;
  bool IsShort(const Live& live) const;
  void RunPrefill();
  void RunPrefillUnit(Live& live);
  Status BeginPrefill(Live& live);
  void EndPrefill(Live& live, std::span<float> logits);
  void RunDecodeStep();
  void Accept(Live& live, std::span<float> logits);
  void CountSteps(Live& live);
  void Finish(Live& live, FinishReason reason, std::string error = {});

  Executor& executor_;
  Sharing* const sharing_;  // null: sequences are admitted whole
  const EngineOptions options_;
  std::unique_ptr<PrefixCache> prefixes_;       // null: none are reused
  uint64_t prefix_extent_bytes_ = 0;            // of a cached extent, its sketches included
  std::deque<std::unique_ptr<Live>> requests_;  // in order of arrival, until finished
  // Rows that outlived their request. The slot was admitted for the whole context, so any request fits into it.
  struct Held {
    SeqSlot slot;
    std::vector<int32_t> tokens;  // one per row
  };
  std::optional<Held> held_;
  uint64_t side_bytes_ = 0;  // of a prefill in the side lane, at most; 0: there is none
  bool side_turn_ = false;   // the latest turn was the side lane's
  int64_t next_id_ = 0;
  EngineStats stats_;

  // Scratch of a step, sized once.
  std::vector<Live*> batch_;
  std::vector<struct StepItem> items_;
  std::vector<float> logits_;  // [max_batch][vocab]
};

}  // namespace infinigen
