// Sequence: owns one sequence of an executor, from admission to release, for code that uses an executor without the
// engine: calibration, evaluation, benchmarks. Called from the executor's thread.
#pragma once

#include <functional>
#include <span>
#include <utility>

#include "base/result.h"
#include "model/executor.h"

namespace infinigen {

class Sequence {
 public:
  // Called after every prefill unit; returning false aborts the prefill.
  using OnUnit = std::function<bool(int64_t done, int64_t units)>;

  // kExhausted when there is no room now. The executor outlives the sequence.
  static Result<Sequence> Admit(Executor& executor, int64_t final_tokens) {
    ASSIGN_OR_RETURN(const SeqSlot slot, executor.Admit(final_tokens));
    return Sequence(executor, slot);
  }
  Sequence(Sequence&& other) noexcept : executor_(std::exchange(other.executor_, nullptr)), slot_(other.slot_) {}
  Sequence& operator=(Sequence&& other) noexcept {
    std::swap(executor_, other.executor_);
    std::swap(slot_, other.slot_);
    return *this;
  }
  ~Sequence() {
    if (executor_ != nullptr) executor_->Release(slot_);
  }

  SeqSlot slot() const { return slot_; }

  // Ends any earlier prefill and prefills `tokens` as rows first_row, first_row + 1, …; rows before them stay. False if
  // on_unit aborted. Logits are available until EndPrefill or the next prefill.
  Result<bool> Prefill(std::span<const int32_t> tokens, PrefillKind kind, const OnUnit& on_unit,
                       int64_t first_row = 0) {
    executor_->EndPrefill(slot_);
    RETURN_IF_ERROR(executor_->BeginPrefill(slot_, first_row, tokens, kind));
    const int64_t units = executor_->PrefillUnits(slot_);
    for (int64_t done = 1;; ++done) {
      const bool whole = executor_->RunPrefillUnit(slot_);
      const bool aborted = on_unit && !on_unit(done, units);
      if (whole) return true;
      if (aborted) return false;
    }
  }
  // Logits [count][vocab] after tokens [first, first + count) of the prefill.
  void Logits(int64_t first, int64_t count, std::span<float> logits) {
    executor_->PrefillLogits(slot_, first, count, logits);
  }
  // Frees the memory of the prefill; the rows stay.
  void EndPrefill() { executor_->EndPrefill(slot_); }

 private:
  Sequence(Executor& executor, SeqSlot slot) : executor_(&executor), slot_(slot) {}

  Executor* executor_;
  SeqSlot slot_;
};

}  // namespace infinigen
