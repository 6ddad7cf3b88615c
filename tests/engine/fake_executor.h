// A fake executor with a trivial model: the logits after a sequence peak at (last token + number of rows) mod vocab, so
// that any mix-up of sequences, rows or slots changes the text. It records which prefills are in progress.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "model/executor.h"

namespace infinigen {

inline constexpr int32_t kVocab = 50;
inline constexpr int32_t kEos = 49;
inline constexpr int64_t kUnits = 3;        // units of a chunk, like layers
inline constexpr int64_t kUnitTokens = 20;  // tokens of a chunk

class FakeExecutor final : public Executor, public Instruments {
 public:
  FakeExecutor(int64_t context, int64_t batch, int64_t pool_rows, int64_t side_tokens = 0)
      : free_rows_(pool_rows), pool_rows_(pool_rows) {
    config_.SetLayers(kUnits, PlainLayer(64));
    config_.vocab = kVocab;
    config_.eos_ids = {kEos};
    options_.max_tokens = context;
    options_.max_batch = batch;
    options_.side_tokens = side_tokens;
  }

  const ModelConfig& config() const override { return config_; }
  const ExecutorOptions& options() const override { return options_; }
  ExecutorOptions& mutable_options() { return options_; }
  Sharing* sharing() override { return nullptr; }
  Instruments& instruments() override { return *this; }
  void SetRule(SeqSlot, const SelectRule&) override {}
  std::string device_name() const override { return "fake"; }

  Result<SeqSlot> Admit(int64_t final_tokens) override {
    if (static_cast<int64_t>(live_.size()) == options_.max_batch) return Exhausted("no slot");
    if (final_tokens > free_rows_) return Exhausted("{} rows asked for, {} free", final_tokens, free_rows_);
    free_rows_ -= final_tokens;
    int64_t slot = 0;
    while (live_.contains(slot)) ++slot;
    live_[slot] = {.quota = final_tokens};
    return SeqSlot(slot);
  }
  void Release(SeqSlot slot) override {
    EndPrefill(slot);
    free_rows_ += live_.at(slot.value()).quota;
    live_.erase(slot.value());
  }
  void Reset() override {
    live_.clear();
    under_way_.clear();
    free_rows_ = pool_rows_;
    ++resets;
  }
  Status BeginPrefill(SeqSlot slot, int64_t first_row, std::span<const int32_t> tokens, PrefillKind kind) override {
    EXPECT_EQ(kind, PrefillKind::kDense);
    if (fail_prefill) return Exhausted("no memory for the prompt");
    Sequence& sequence = live_.at(slot.value());
    EXPECT_LE(first_row, sequence.rows);
    EXPECT_LE(first_row + static_cast<int64_t>(tokens.size()), sequence.quota);
    sequence.first_row = first_row;
    sequence.units = 0;
    sequence.prompt.assign(tokens.begin(), tokens.end());
    prefilled.push_back(static_cast<int64_t>(tokens.size()));
    EXPECT_TRUE(under_way_.emplace(slot.value(), PrefillBytes(first_row, std::ssize(tokens))).second);
    uint64_t bytes = 0;
    for (const auto& [_, taken] : under_way_) bytes += taken;
    most_prefill_bytes = std::max(most_prefill_bytes, bytes);
    return Ok();
  }
  int64_t PrefillUnits(SeqSlot slot) const override {
    const int64_t tokens = std::ssize(live_.at(slot.value()).prompt);
    return kUnits * ((tokens + kUnitTokens - 1) / kUnitTokens);
  }
  bool RunPrefillUnit(SeqSlot slot) override {
    log += 'p';
    if (throw_in_prefill) throw std::bad_alloc();
    EXPECT_TRUE(under_way_.contains(slot.value()));
    return ++live_.at(slot.value()).units == PrefillUnits(slot);
  }
  void PrefillLogits(SeqSlot slot, int64_t first, int64_t count, std::span<float> logits) override {
    const Sequence& sequence = live_.at(slot.value());
    ASSERT_EQ(count, 1);
    ASSERT_EQ(first + 1, static_cast<int64_t>(sequence.prompt.size()));
    Peak(logits, sequence.prompt.back(), sequence.first_row + first + 1);
    if (sequence.prompt.back() == broken_token) logits[3] = std::nanf("");
  }
  void EndPrefill(SeqSlot slot) override {
    Sequence& sequence = live_.at(slot.value());
    if (under_way_.erase(slot.value()) > 0 && sequence.units == PrefillUnits(slot))
      sequence.rows = sequence.first_row + static_cast<int64_t>(sequence.prompt.size());
    sequence.units = 0;
  }
  uint64_t PrefillBytes(int64_t, int64_t count) const override { return static_cast<uint64_t>(count) * 4; }
  void Step(std::span<const StepItem> items, std::span<float> logits) override {
    log += static_cast<char>('0' + items.size());
    if (on_step) on_step();
    ++steps_;
    observed_steps += observer_ ? 1 : 0;
    for (size_t i = 0; i < items.size(); ++i) {
      if (observer_ && observed_ == items[i].slot)
        observer_(LayerId(0), items[i].slot, KvHead(0), std::array{static_cast<int32_t>(items[i].row)});
      Sequence& sequence = live_.at(items[i].slot.value());
      EXPECT_EQ(items[i].row, sequence.rows) << "every token gets the next row";
      ++sequence.rows;
      EXPECT_LE(sequence.rows, sequence.quota);
      Peak(logits.subspan(i * kVocab, kVocab), items[i].token, sequence.rows);
    }
  }
  std::string ExplainBreak(const StepItem& item) override {
    return item.token == broken_token ? "layer 1 of 3" : "another token";
  }
  void ObservePrefill(PrefillObserver) override {}
  void ObserveSelection(SelectionObserver observer, std::optional<SeqSlot> slot) override {
    observer_ = std::move(observer);
    observed_ = slot;
  }
  void FillSynthetic(SeqSlot, int64_t, uint64_t) override {}
  KvStats Stats() override {
    KvStats stats;
    stats.steps = steps_;
    return stats;
  }
  KvStats SlotStats(SeqSlot) override { return {}; }
  DeviceUse device_use() const override { return {}; }
  void AwaitPool() override {}
  bool Skip(bool, bool) override { return false; }
  std::vector<ZoneTime> TakeZones(bool) override { return {}; }
  uint64_t pool_bytes() const override { return 0; }
  uint64_t pool_peak_bytes() const override { return 0; }

  bool clean() const { return live_.empty() && under_way_.empty() && free_rows_ == pool_rows_; }

  std::string log;                  // 'p' for each prefill unit, the batch size for each step
  std::vector<int64_t> prefilled;   // number of tokens of every prefill
  uint64_t most_prefill_bytes = 0;  // maximum over all prefills in progress at once
  bool fail_prefill = false;
  bool throw_in_prefill = false;
  int32_t broken_token = -1;      // as the last of a prompt: the logits after it are NaN
  std::function<void()> on_step;  // may throw or block
  int resets = 0;
  int64_t observed_steps = 0;

 private:
  struct Sequence {
    int64_t quota = 0, first_row = 0, units = 0, rows = 0;
    std::vector<int32_t> prompt;
  };
  static void Peak(std::span<float> logits, int32_t token, int64_t rows) {
    std::fill(logits.begin(), logits.end(), 0.0f);
    logits[static_cast<size_t>((token + rows) % kVocab)] = 1.0f;
  }

  ModelConfig config_;
  ExecutorOptions options_;
  std::map<int64_t, Sequence> live_;
  std::map<int64_t, uint64_t> under_way_;  // bytes by slot
  int64_t free_rows_, pool_rows_;
  SelectionObserver observer_;
  std::optional<SeqSlot> observed_;
  int64_t steps_ = 0;
};

inline std::vector<int32_t> Expected(std::vector<int32_t> sequence, size_t n, bool ignore_eos = false) {
  std::vector<int32_t> out;
  while (out.size() < n) {
    const int32_t next = static_cast<int32_t>((static_cast<size_t>(sequence.back()) + sequence.size()) % kVocab);
    if (next == kEos && !ignore_eos) break;
    sequence.push_back(next);
    out.push_back(next);
  }
  return out;
}

struct FakeClient {
  std::map<int64_t, RequestResult> results;

  Request Make(std::vector<int32_t> prompt, int64_t n) {
    return {.prompt = std::move(prompt),
            .max_new_tokens = n,
            .sampling = {.temperature = 0},
            .on_done = [this](RequestId id, const RequestResult& result) { results[id.value()] = result; }};
  }
};

}  // namespace infinigen
