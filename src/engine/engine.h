// The engine: requests in, tokens out. One loop on one thread; it owns no thread itself, its owner calls RunOnce().
//
// A turn: drop what was cancelled; admit from the queue, in order of arrival, while the pool has quota; run one prefill
// unit of the oldest prefilling request; run one decode step for every decoding request. So a long prompt never stalls
// the streams of others for longer than one unit, and a request joins and leaves between steps.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "engine/request.h"
#include "model/executor.h"

namespace infinigen {

// Step times kept for percentiles: the latest so many.
inline constexpr size_t kStepSamples = 65536;

struct EngineStats {
  int64_t prefill_tokens = 0;
  double prefill_s = 0;  // time inside prefill units
  int64_t decode_tokens = 0;
  double decode_s = 0;  // time inside decode steps
  int64_t decode_steps = 0;
  std::vector<float> step_ms;  // of the latest kStepSamples steps, in no particular order
};

class Engine {
 public:
  explicit Engine(Executor& executor);  // outlives the engine
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Queues a request. Refused at once, with the numbers, when it can never run: empty prompt, a token outside the
  // vocabulary, a prompt longer than the context.
  Result<RequestId> Submit(Request request);

  // Takes effect at the start of the next turn; unknown or finished ids are ignored. The only calls allowed inside
  // callbacks.
  void Cancel(RequestId id);
  void CancelAll();

  // One turn; false when there is nothing to do.
  bool RunOnce();

  // Gives up the rows that a keep_rows request left behind, if any.
  void DropKept();

  // Where a request's entries are; nullopt while it has none.
  std::optional<SeqSlot> SlotOf(RequestId id) const;

  const EngineStats& stats() const { return stats_; }
  Executor& executor() { return executor_; }

 private:
  struct Live;

  void DropCancelled();
  void Admit();
  Result<SeqSlot> AdmitOne(Live& live);
  bool TakeOverKept(Live& live);
  void RunPrefillUnit();
  void RunDecodeStep();
  void Accept(Live& live, std::span<float> logits);
  void Finish(Live& live, FinishReason reason, std::string error = {});
  void SweepFinished();

  Executor& executor_;
  std::deque<std::unique_ptr<Live>> requests_;  // in order of arrival, until finished
  // Rows that outlived their request. The slot was admitted for the whole context, so any request fits into it.
  struct Kept {
    SeqSlot slot;
    std::vector<int32_t> tokens;  // one per row
  };
  std::optional<Kept> kept_;
  int32_t next_id_ = 0;
  EngineStats stats_;

  // Scratch of a step, sized once.
  std::vector<Live*> batch_;
  std::vector<struct StepItem> items_;
  std::vector<float> logits_;  // [max_batch][vocab]
};

}  // namespace infinigen
