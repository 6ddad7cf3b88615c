// SimExecutor: a real executor between engine and model of which a simulation decides the time that calls take, which
// calls throw, and which defects are planted. It checks what the engine must never do: use a slot that it does not
// hold, or pass the batch. Called from the simulation's only thread.
#pragma once

#include <functional>
#include <memory>
#include <new>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "model/executor.h"

namespace infinigen {

// A defect that the tests of the checker plant. All but the first must be found within a number of histories.
enum class Defect : uint8_t {
  kNone,
  kPrefixNotDropped,    // the release of an unused prefix is skipped
  kReplayWrongToken,    // one row is computed from the wrong token after a preemption
  kReplayDense,         // rows of selecting steps are computed as a prompt after a preemption
  kSaltIgnored,         // prefixes are shared among all salts
  kCancelLeaksSlot,     // a cancelled request keeps its slot
  kNeighboursLogits,    // two sequences of a step get each other's logits
  kRuleNotSet,          // a slot keeps the engine's own selection rule
  kClientLimitIgnored,  // a client may run in every slot
  kWrongClient,         // the queue takes all requests for those of one client
  kPlaceKept,           // a place in the queue is never given back
  kMemoryKept,          // memory of a request is never given back to its account
  kNoHeartbeat,         // silent streams get no comment
  kCancelIgnored,       // a client that leaves is not told to the engine
  kSeedIgnored,         // a request does not get the seed that it asks for
  kWatchOfAll,          // a watcher sees the requests of all tenants
  kRefusesWhatFits,     // an empty pool refuses a long sequence with windows or eviction
  kCount,
};

// When an instrumented call throws. Calls are counted from 0, once before and once after the call itself.
struct SimFault {
  int64_t call = 0;
  bool out_of_memory = false;
};

class SimExecutor final : public Executor, public Sharing, public Instruments {
 public:
  // `work` is called once for each prefill unit and step, and advances the simulated clock.
  SimExecutor(std::unique_ptr<Executor> inner, std::vector<SimFault> faults, Defect defect, std::function<void()> work)
      : inner_(std::move(inner)), faults_(std::move(faults)), defect_(defect), work_(std::move(work)) {}

  // Slots that the engine holds.
  const std::set<int64_t>& held() const { return held_; }
  int64_t throws() const { return throws_; }
  const std::string& misuse() const { return misuse_; }
  // Called before a call throws.
  void OnThrow(std::function<void()> on_throw) { on_throw_ = std::move(on_throw); }
  // With kCancelLeaksSlot: the next release is skipped.
  void LeakNextSlot() { leak_ = defect_ == Defect::kCancelLeaksSlot; }
  Executor& inner() { return *inner_; }

  // ---- Executor ----
  const ModelConfig& config() const override { return inner_->config(); }
  const ExecutorOptions& options() const override { return inner_->options(); }
  Sharing* sharing() override { return inner_->sharing() == nullptr ? nullptr : this; }
  Instruments& instruments() override { return *this; }
  Result<SeqSlot> Admit(int64_t final_tokens) override {
    Throw();
    if (Refuses(final_tokens)) return Exhausted("planted: no room in the KV pool");
    return Admitted(inner_->Admit(final_tokens));
  }
  void SetRule(SeqSlot slot, const SelectRule& rule) override {
    Use(slot);
    if (defect_ != Defect::kRuleNotSet) inner_->SetRule(slot, rule);
  }
  void Release(SeqSlot slot) override {
    Use(slot);
    if (std::exchange(leak_, false)) return;
    held_.erase(slot.value());
    inner_->Release(slot);
  }
  void Reset() override {
    held_.clear();
    inner_->Reset();
  }
  Status BeginPrefill(SeqSlot slot, int64_t first_row, std::span<const int32_t> tokens, PrefillKind kind) override {
    Use(slot);
    Throw();
    std::vector<int32_t> changed(tokens.begin(), tokens.end());
    if (kind == PrefillKind::kSteps && defect_ == Defect::kReplayWrongToken)
      changed.back() = static_cast<int32_t>((changed.back() + 1) % config().vocab);
    if (defect_ == Defect::kReplayDense) kind = PrefillKind::kDense;
    Status begun = inner_->BeginPrefill(slot, first_row, changed, kind);
    Throw();
    return begun;
  }
  int64_t PrefillUnits(SeqSlot slot) const override { return inner_->PrefillUnits(slot); }
  bool RunPrefillUnit(SeqSlot slot) override {
    Use(slot);
    Throw();
    work_();
    const bool finished = inner_->RunPrefillUnit(slot);
    Throw();
    return finished;
  }
  void PrefillLogits(SeqSlot slot, int64_t first, int64_t count, std::span<float> logits) override {
    Throw();
    inner_->PrefillLogits(slot, first, count, logits);
  }
  void EndPrefill(SeqSlot slot) override { inner_->EndPrefill(slot); }
  int64_t FirstRestart(SeqSlot slot) const override { return inner_->FirstRestart(slot); }
  uint64_t PrefillBytes(int64_t first_row, int64_t count) const override {
    return inner_->PrefillBytes(first_row, count);
  }
  void Step(std::span<const StepItem> items, std::span<float> logits) override {
    for (const StepItem& item : items) Use(item.slot);
    Throw();
    work_();
    inner_->Step(items, logits);
    if (defect_ == Defect::kNeighboursLogits && items.size() > 1 && ++steps_ % 64 == 0) {
      const size_t vocab = static_cast<size_t>(config().vocab);
      std::swap_ranges(logits.begin(), logits.begin() + static_cast<ptrdiff_t>(vocab),
                       logits.begin() + static_cast<ptrdiff_t>(vocab));
    }
    Throw();
  }

  // ---- Sharing ----
  Result<SeqSlot> AdmitGrowing(int64_t rows, std::span<const SharedId> prefix) override {
    Throw();
    if (Refuses(rows)) return Exhausted("planted: no room in the KV pool");
    return Admitted(inner_->sharing()->AdmitGrowing(rows, prefix));
  }
  Status Grow(SeqSlot slot, int64_t rows) override {
    Use(slot);
    Throw();
    Status grown = inner_->sharing()->Grow(slot, rows);
    Throw();
    return grown;
  }
  int64_t Quota(SeqSlot slot) const override { return inner_->sharing()->Quota(slot); }
  int64_t free_extents() const override { return inner_->sharing()->free_extents(); }
  bool can_share() const override { return inner_->sharing()->can_share(); }
  Result<SharedId> Share(SeqSlot slot, int64_t extent) override {
    Use(slot);
    Throw();
    Result<SharedId> id = inner_->sharing()->Share(slot, extent);
    Throw();
    return id;
  }
  void Adopt(SeqSlot slot, int64_t extent, SharedId id) override {
    Use(slot);
    Throw();
    inner_->sharing()->Adopt(slot, extent, id);
    Throw();
  }
  void DropShared(SharedId id) override {
    if (defect_ != Defect::kPrefixNotDropped) inner_->sharing()->DropShared(id);
  }
  uint64_t shared_extent_bytes() const override { return inner_->sharing()->shared_extent_bytes(); }
  uint64_t shared_index_bytes() const override { return inner_->sharing()->shared_index_bytes(); }

  // ---- Instruments ----
  std::string device_name() const override { return "simulated"; }
  KvStats Stats() override { return inner_->instruments().Stats(); }
  KvStats SlotStats(SeqSlot slot) override { return inner_->instruments().SlotStats(slot); }
  uint64_t pool_bytes() const override { return inner_->instruments().pool_bytes(); }
  uint64_t pool_peak_bytes() const override { return inner_->instruments().pool_peak_bytes(); }
  DeviceUse device_use() const override { return {}; }
  void ObservePrefill(PrefillObserver observer) override { inner_->instruments().ObservePrefill(std::move(observer)); }
  void ObserveSelection(SelectionObserver observer, std::optional<SeqSlot> slot) override {
    inner_->instruments().ObserveSelection(std::move(observer), slot);
  }
  void FillSynthetic(SeqSlot, int64_t, uint64_t) override {}
  void AwaitPool() override {}
  bool Skip(bool, bool) override { return false; }
  std::vector<ZoneTime> TakeZones(bool) override { return {}; }

 private:
  void Throw() {
    const int64_t call = calls_++;
    for (const SimFault& fault : faults_) {
      if (fault.call != call) continue;
      ++throws_;
      if (on_throw_) on_throw_();
      if (fault.out_of_memory) throw std::bad_alloc();
      throw std::runtime_error("injected");
    }
  }
  Result<SeqSlot> Admitted(Result<SeqSlot> slot) {
    if (slot.ok() && !held_.insert(slot->value()).second) misuse_ = "a slot was admitted twice";
    if (slot.ok() && std::ssize(held_) > options().max_batch) misuse_ = "more slots than the batch has";
    Throw();
    return slot;
  }
  bool Refuses(int64_t rows) {
    return defect_ == Defect::kRefusesWhatFits && held_.empty() && rows > kExtentTokens &&
           (inner_->sharing() == nullptr || !inner_->sharing()->can_share());
  }
  void Use(SeqSlot slot) {
    if (!held_.contains(slot.value())) misuse_ = "the engine used a slot that it does not hold";
  }

  const std::unique_ptr<Executor> inner_;
  const std::vector<SimFault> faults_;
  const Defect defect_;
  const std::function<void()> work_;
  std::function<void()> on_throw_;
  std::set<int64_t> held_;
  int64_t calls_ = 0, throws_ = 0, steps_ = 0;
  bool leak_ = false;
  std::string misuse_;
};

}  // namespace infinigen
