// The engine's rules against a fake executor whose "model" is trivial: the logits after a sequence peak at
// (last token + number of rows) mod vocab, so that any mix-up between sequences, rows or slots shows in the text.
#include "engine/engine.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "model/decoder.h"

namespace infinigen {
namespace {

constexpr int32_t kVocab = 50;
constexpr int32_t kEos = 49;
constexpr int64_t kUnits = 3;

class FakeExecutor final : public Executor {
 public:
  FakeExecutor(int64_t context, int64_t batch, int64_t pool_rows) : free_rows_(pool_rows), pool_rows_(pool_rows) {
    config_.vocab = kVocab;
    config_.eos_ids = {kEos};
    options_.max_tokens = context;
    options_.max_batch = batch;
  }

  const ModelConfig& config() const override { return config_; }
  const ExecutorOptions& options() const override { return options_; }
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
    free_rows_ += live_.at(slot.value()).quota;
    live_.erase(slot.value());
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
    return Ok();
  }
  int64_t PrefillUnits(SeqSlot) const override { return kUnits; }
  bool RunPrefillUnit(SeqSlot slot) override {
    log += 'p';
    return ++live_.at(slot.value()).units == kUnits;
  }
  void PrefillLogits(SeqSlot slot, int64_t first, int64_t count, std::span<float> logits) override {
    const Sequence& sequence = live_.at(slot.value());
    ASSERT_EQ(count, 1);
    ASSERT_EQ(first + 1, static_cast<int64_t>(sequence.prompt.size()));
    Peak(logits, sequence.prompt.back(), sequence.first_row + first + 1);
  }
  void EndPrefill(SeqSlot slot) override {
    Sequence& sequence = live_.at(slot.value());
    if (sequence.units == kUnits) sequence.rows = sequence.first_row + static_cast<int64_t>(sequence.prompt.size());
    sequence.units = 0;
  }
  void Step(std::span<const StepItem> items, std::span<float> logits) override {
    log += static_cast<char>('0' + items.size());
    for (size_t i = 0; i < items.size(); ++i) {
      Sequence& sequence = live_.at(items[i].slot.value());
      EXPECT_EQ(items[i].row, sequence.rows) << "every token gets the next row";
      ++sequence.rows;
      EXPECT_LE(sequence.rows, sequence.quota);
      Peak(logits.subspan(i * kVocab, kVocab), items[i].token, sequence.rows);
    }
  }
  void ObservePrefill(PrefillObserver) override {}
  void ObserveSelection(SelectionObserver) override {}
  void FillSynthetic(SeqSlot, int64_t, uint64_t) override {}
  KvStats Stats() override { return {}; }
  uint64_t pool_bytes() const override { return 0; }
  uint64_t pool_peak_bytes() const override { return 0; }

  bool clean() const { return live_.empty() && free_rows_ == pool_rows_; }

  std::string log;                 // 'p' per prefill unit, the batch size per step
  std::vector<int64_t> prefilled;  // tokens of every prefill
  bool fail_prefill = false;

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
  int64_t free_rows_, pool_rows_;
};

std::vector<int32_t> Expected(std::vector<int32_t> sequence, size_t n) {
  std::vector<int32_t> out;
  while (out.size() < n) {
    const int32_t next = static_cast<int32_t>((static_cast<size_t>(sequence.back()) + sequence.size()) % kVocab);
    if (next == kEos) break;
    sequence.push_back(next);
    out.push_back(next);
  }
  return out;
}

struct Client {
  std::map<int32_t, RequestResult> results;

  Request Make(std::vector<int32_t> prompt, int64_t n) {
    return {.prompt = std::move(prompt),
            .max_new_tokens = n,
            .sampling = {.temperature = 0},
            .on_done = [this](RequestId id, const RequestResult& result) { results[id.value()] = result; }};
  }
};

TEST(Engine, SequencesOfDifferentLengthsEachGetTheirOwnText) {
  FakeExecutor executor(100, 3, 1000);
  Client client;
  Engine engine(executor);
  const std::vector<std::vector<int32_t>> prompts = {{1}, {2, 3}, {9, 9, 9, 9}, {4, 1}, {30}};
  for (size_t i = 0; i < prompts.size(); ++i)
    ASSERT_TRUE(engine.Submit(client.Make(prompts[i], 5 + static_cast<int64_t>(i))).ok());
  while (engine.RunOnce()) {
  }
  ASSERT_EQ(client.results.size(), prompts.size());
  for (size_t i = 0; i < prompts.size(); ++i)
    EXPECT_EQ(client.results[static_cast<int32_t>(i)].tokens, Expected(prompts[i], 5 + i));
  EXPECT_TRUE(executor.clean());
}

TEST(Engine, PrefillUnitsAlternateWithDecodeSteps) {
  FakeExecutor executor(100, 2, 1000);
  Client client;
  Engine engine(executor);
  ASSERT_TRUE(engine.Submit(client.Make({1}, 7)).ok());
  ASSERT_TRUE(engine.Submit(client.Make({2}, 2)).ok());
  while (engine.RunOnce()) {
  }
  EXPECT_EQ(executor.log, "ppp1p1p1p211") << "a running stream waits for one unit at a time, never for a whole prompt";
}

TEST(Engine, StopsAtLengthContextEosAndClientsWord) {
  FakeExecutor executor(6, 4, 1000);
  Client client;
  Engine engine(executor);
  ASSERT_TRUE(engine.Submit(client.Make({1, 1, 1}, 100)).ok());  // 0: context of 6 rows, the seventh token needs none
  ASSERT_TRUE(engine.Submit(client.Make({1}, 2)).ok());          // 1: length
  ASSERT_TRUE(engine.Submit(client.Make({48}, 5)).ok());         // 2: 48 + 1 = EOS at once
  Request stopped = client.Make({1}, 5);
  stopped.on_token = [](RequestId, int32_t) { return false; };
  ASSERT_TRUE(engine.Submit(std::move(stopped)).ok());  // 3
  Request ignoring = client.Make({48}, 2);
  ignoring.ignore_eos = true;
  ASSERT_TRUE(engine.Submit(std::move(ignoring)).ok());  // 4
  ASSERT_TRUE(engine.Submit(client.Make({7}, 0)).ok());  // 5: prefill only
  while (engine.RunOnce()) {
  }
  EXPECT_EQ(client.results[0].tokens.size(), 4u);
  EXPECT_EQ(client.results[0].reason, FinishReason::kLength);
  EXPECT_EQ(client.results[1].tokens.size(), 2u);
  EXPECT_EQ(client.results[1].reason, FinishReason::kLength);
  EXPECT_TRUE(client.results[2].tokens.empty());
  EXPECT_EQ(client.results[2].reason, FinishReason::kEos);
  EXPECT_EQ(client.results[3].tokens.size(), 1u);
  EXPECT_EQ(client.results[3].reason, FinishReason::kStopped);
  EXPECT_EQ(client.results[4].tokens, (std::vector<int32_t>{kEos, 1}));
  EXPECT_TRUE(client.results[5].tokens.empty());
  EXPECT_EQ(client.results[5].reason, FinishReason::kLength);
  EXPECT_TRUE(executor.clean());
}

TEST(Engine, RefusesAtOnceWhatCanNeverRun) {
  FakeExecutor executor(4, 1, 1000);
  Client client;
  Engine engine(executor);
  EXPECT_FALSE(engine.Submit(client.Make({}, 1)).ok());
  const Result<RequestId> too_long = engine.Submit(client.Make({1, 2, 3, 4, 5}, 1));
  ASSERT_FALSE(too_long.ok());
  EXPECT_EQ(too_long.error().message, "the prompt has 5 tokens, the context holds 4");
  EXPECT_FALSE(engine.Submit(client.Make({kVocab}, 1)).ok());
  EXPECT_FALSE(engine.Submit(client.Make({-1}, 1)).ok());
  EXPECT_FALSE(engine.RunOnce());
}

TEST(Engine, WaitsForQuotaInOrderAndGivesUpOnlyWhenWaitingCannotHelp) {
  FakeExecutor executor(100, 4, 20);
  Client client;
  std::vector<int32_t> finished;
  Engine engine(executor);
  const auto submit = [&](std::vector<int32_t> prompt, int64_t n) {
    Request request = client.Make(std::move(prompt), n);
    request.on_done = [&](RequestId id, const RequestResult& result) {
      finished.push_back(id.value());
      client.results[id.value()] = result;
    };
    ASSERT_TRUE(engine.Submit(std::move(request)).ok());
  };
  submit({1}, 15);  // 15 rows
  submit({2}, 10);  // must wait
  submit({3}, 2);   // would fit, but does not overtake
  submit({4}, 50);  // never fits
  submit({5}, 2);
  while (engine.RunOnce()) {
  }
  EXPECT_EQ(client.results[0].tokens.size(), 15u);
  EXPECT_EQ(client.results[1].tokens.size(), 10u);
  EXPECT_EQ(client.results[3].reason, FinishReason::kError);
  EXPECT_EQ(client.results[3].error, "50 rows asked for, 20 free");
  EXPECT_EQ(client.results[4].tokens.size(), 2u);
  EXPECT_EQ(finished.front(), 0);
  EXPECT_TRUE(executor.clean());
}

TEST(Engine, CancellationFreesEverythingInEveryState) {
  for (int turns = 0; turns < 8; ++turns) {  // cancelled while queued, prefilling, decoding
    FakeExecutor executor(100, 1, 1000);
    Client client;
    Engine engine(executor);
    const RequestId a = engine.Submit(client.Make({1}, 50)).value();
    const RequestId b = engine.Submit(client.Make({2}, 50)).value();
    for (int i = 0; i < turns; ++i) ASSERT_TRUE(engine.RunOnce());
    engine.Cancel(a);
    engine.Cancel(b);
    engine.Cancel(RequestId(77));
    EXPECT_FALSE(engine.RunOnce());
    EXPECT_EQ(client.results[0].reason, FinishReason::kCancelled);
    EXPECT_EQ(client.results[1].reason, FinishReason::kCancelled);
    EXPECT_TRUE(executor.clean());
  }
}

TEST(Engine, AFailingPrefillEndsItsRequestWithTheReason) {
  FakeExecutor executor(100, 2, 1000);
  Client client;
  Engine engine(executor);
  ASSERT_TRUE(engine.Submit(client.Make({1}, 50)).ok());
  while (executor.log.find('1') == std::string::npos) engine.RunOnce();
  ASSERT_TRUE(engine.Submit(client.Make({2}, 50)).ok());
  executor.fail_prefill = true;
  while (engine.RunOnce()) {
  }
  EXPECT_EQ(client.results[1].reason, FinishReason::kError);
  EXPECT_EQ(client.results[1].error, "no memory for the prompt");
  EXPECT_EQ(client.results[0].tokens, Expected({1}, 50)) << "its neighbour goes on";
  EXPECT_TRUE(executor.clean());
}

// A conversation of `turns`: each prompt is the one before, its answer, and something new.
TEST(Engine, KeptRowsAreNotComputedAgain) {
  FakeExecutor executor(100, 1, 100);
  Client client;
  {
    Engine engine(executor);
    const auto run = [&](const std::vector<int32_t>& prompt, int64_t n) {
      Request request = client.Make(prompt, n);
      request.keep_rows = true;
      const int32_t id = engine.Submit(std::move(request)).value().value();
      while (engine.RunOnce()) {
      }
      EXPECT_EQ(client.results[id].tokens, Expected(prompt, static_cast<size_t>(n)));
      return client.results[id];
    };
    std::vector<int32_t> prompt = {1, 2, 3};
    const RequestResult first = run(prompt, 5);
    prompt.insert(prompt.end(), first.tokens.begin(), first.tokens.end());
    prompt.push_back(9);
    // The last token of an answer has no row yet.
    EXPECT_EQ(run(prompt, 4).kept_tokens, 7);
    prompt.resize(4);  // back to the middle of what is kept
    prompt.push_back(11);
    EXPECT_EQ(run(prompt, 2).kept_tokens, 4);
    EXPECT_EQ(run(prompt, 0).kept_tokens, 4) << "the same prompt again still needs the logits of its last token";
    EXPECT_EQ(run({8}, 2).kept_tokens, 0);
    EXPECT_EQ(executor.prefilled, (std::vector<int64_t>{3, 2, 1, 1, 1}));
    EXPECT_FALSE(executor.clean());

    ASSERT_TRUE(engine.Submit(client.Make({5}, 60)).ok());
    while (engine.RunOnce()) {
    }
    EXPECT_TRUE(executor.clean()) << "another request took the room";
    EXPECT_EQ(run({8, 1}, 2).kept_tokens, 0);
    engine.DropKept();
    EXPECT_TRUE(executor.clean());
    run({8, 1}, 2);
  }
  EXPECT_TRUE(executor.clean());
}

TEST(Engine, ACancelledConversationKeepsOnlyWholeRows) {
  for (int turns = 0; turns < 9; ++turns) {
    FakeExecutor executor(100, 1, 100);
    Client client;
    Engine engine(executor);
    Request request = client.Make({1, 2}, 3);
    request.keep_rows = true;
    ASSERT_TRUE(engine.Submit(std::move(request)).ok());
    while (engine.RunOnce()) {
    }
    std::vector<int32_t> prompt = {1, 2};
    prompt.insert(prompt.end(), client.results[0].tokens.begin(), client.results[0].tokens.end());
    for (int32_t more = 0; more < 2; ++more) {
      prompt.push_back(20 + more);
      request = client.Make(prompt, 30);
      request.keep_rows = true;
      const RequestId id = engine.Submit(std::move(request)).value();
      for (int i = 0; more == 0 && i < turns; ++i) engine.RunOnce();
      if (more == 0) engine.Cancel(id);
      while (engine.RunOnce()) {
      }
    }
    // Cancelled in the prefill (turns 1 and 2): the first answer's rows. Later: the whole second prompt's.
    EXPECT_EQ(client.results[2].kept_tokens, turns < 3 ? 4 : 6) << turns;
    EXPECT_EQ(client.results[2].tokens, Expected(prompt, 30)) << turns;
  }
}

TEST(Engine, DestructionReturnsWhatIsStillRunning) {
  FakeExecutor executor(100, 2, 1000);
  Client client;
  {
    Engine engine(executor);
    ASSERT_TRUE(engine.Submit(client.Make({1}, 50)).ok());
    ASSERT_TRUE(engine.RunOnce());
  }
  EXPECT_TRUE(executor.clean());
}

}  // namespace
}  // namespace infinigen
