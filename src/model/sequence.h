// Sequence: one sequence of an executor, from admission to release. The loop "admit, prefill, look at logits, release"
// for everything that drives an executor without the engine: calibration, evaluation, benchmarks. Same thread as the
// executor's.
#pragma once

#include <functional>
#include <span>
#include <utility>

#include "base/result.h"
#include "model/executor.h"

namespace infinigen {

class Sequence {
 public:
  // Called after every prefill unit; false gives the prefill up.
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

  // `tokens` become rows first_row, first_row + 1, …; rows before them stay, and a prefill before this one ends. False:
  // on_unit gave up. Afterwards Logits may be asked for, until EndPrefill or the next prefill.
  Result<bool> Prefill(std::span<const int32_t> tokens, PrefillKind kind, const OnUnit& on_unit,
                       int64_t first_row = 0) {
    executor_->EndPrefill(slot_);
    RETURN_IF_ERROR(executor_->BeginPrefill(slot_, first_row, tokens, kind));
    const int64_t units = executor_->PrefillUnits(slot_);
    for (int64_t done = 1;; ++done) {
      const bool whole = executor_->RunPrefillUnit(slot_);
      const bool goes_on = !on_unit || on_unit(done, units);
      if (whole) return true;
      if (!goes_on) return false;
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
