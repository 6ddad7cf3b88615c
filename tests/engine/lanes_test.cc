// Two lanes for prompts: a short prompt does not wait for a long one, and only the long one takes longer for it, at
// most twice as long.
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <random>
#include <set>

#include "engine/engine.h"
#include "engine/fake_executor.h"

namespace infinigen {
namespace {

constexpr int64_t kSide = 2 * kUnitTokens;
constexpr int64_t kLong = 10 * kUnitTokens;  // 30 units
constexpr int64_t kContext = kLong + 50;
constexpr int64_t kLongUnits = kUnits * kLong / kUnitTokens;
constexpr int64_t kSideUnits = kUnits * kSide / kUnitTokens;

std::vector<int32_t> Prompt(int64_t tokens, int32_t seed) {
  std::vector<int32_t> prompt;
  for (int64_t i = 0; i < tokens; ++i) prompt.push_back(static_cast<int32_t>((seed + 7 * i) % kVocab));
  return prompt;
}

// Records the request of every prefill unit, and the order of first tokens.
class LanesTest : public testing::Test {
 protected:
  RequestId Submit(Engine& engine, int64_t tokens, int64_t n, int32_t seed = 1) {
    Request request = client.Make(Prompt(tokens, seed), n);
    request.ignore_eos = true;
    request.on_prefill = [this](RequestId id, const PrefillProgress&) { units.push_back(id.value()); };
    request.on_token = [this](RequestId id, int32_t) {
      if (said[id.value()]++ == 0) first.push_back(id.value());
      return true;
    };
    const RequestId id = engine.Submit(std::move(request)).value();
    asked[id.value()] = {Prompt(tokens, seed), n};
    return id;
  }
  // The number of turns until then.
  static int64_t RunUntil(Engine& engine, const std::function<bool()>& done) {
    int64_t turns = 0;
    for (; !done() && turns < 1000; ++turns) engine.RunOnce();
    return turns;
  }
  static void RunOut(Engine& engine) {
    while (engine.RunOnce()) {
    }
  }
  int64_t UnitsOf(RequestId id) const { return std::ranges::count(units, id.value()); }
  // Every request has the text that it has alone.
  void CheckTexts() {
    ASSERT_EQ(client.results.size(), asked.size());
    for (const auto& [id, of] : asked) {
      const std::vector<int32_t> expected = Expected(of.first, static_cast<size_t>(of.second), /*ignore_eos=*/true);
      const RequestResult& result = client.results.at(id);
      if (result.reason == FinishReason::kCancelled)
        EXPECT_TRUE(std::equal(result.tokens.begin(), result.tokens.end(), expected.begin())) << id;
      else
        EXPECT_EQ(result.tokens, expected) << id;
    }
  }

  FakeExecutor executor{kContext, 8, 10000, kSide};
  FakeClient client;
  std::vector<int64_t> units;  // ids
  std::vector<int64_t> first;  // ids
  std::map<int64_t, int64_t> said;
  std::map<int64_t, std::pair<std::vector<int32_t>, int64_t>> asked;
};

TEST_F(LanesTest, AShortPromptDoesNotWaitForALongOne) {
  Engine engine(executor);
  const RequestId a = Submit(engine, kLong, 5);
  RunUntil(engine, [&] { return UnitsOf(a) == 4; });
  const RequestId b = Submit(engine, kSide, 5, 2);
  EXPECT_LE(RunUntil(engine, [&] { return !first.empty(); }), 2 * kSideUnits);
  EXPECT_EQ(first, (std::vector<int64_t>{b.value()}));
  EXPECT_GE(UnitsOf(a), 4 + kSideUnits - 1) << "the long one went on meanwhile";
  EXPECT_LT(UnitsOf(a), kLongUnits);
  RunOut(engine);
  CheckTexts();
  EXPECT_EQ(executor.most_prefill_bytes, executor.PrefillBytes(0, kLong) + executor.PrefillBytes(0, kSide));
  EXPECT_TRUE(executor.clean());
}

TEST_F(LanesTest, APromptLongerThanPlannedWaits) {
  Engine engine(executor);
  Submit(engine, kLong, 1);
  Submit(engine, kSide + 1, 1, 2);
  RunOut(engine);
  EXPECT_EQ(first, (std::vector<int64_t>{0, 1}));
  EXPECT_EQ(executor.most_prefill_bytes, executor.PrefillBytes(0, kLong));
}

TEST_F(LanesTest, ShortPromptsRunInOrderOfArrival) {
  Engine engine(executor);
  for (const int64_t tokens : {kLong, kSide, kLong, kSide - 5, kUnitTokens}) Submit(engine, tokens, 3, 3);
  RunOut(engine);
  EXPECT_EQ(first, (std::vector<int64_t>{1, 3, 4, 0, 2}));
  std::vector<int64_t> shorts;
  for (const int64_t id : units)
    if (id == 1 || id == 3 || id == 4) shorts.push_back(id);
  EXPECT_TRUE(std::ranges::is_sorted(shorts)) << "one at a time";
  CheckTexts();
  EXPECT_TRUE(executor.clean());
}

TEST_F(LanesTest, AStreamOfShortOnesDelaysTheLongOneAtMostTwofold) {
  for (const int64_t turn_tokens : {int64_t{0}, 3 * kUnitTokens}) {
    const auto turns = [&](bool others) {
      FakeExecutor fake(kContext, 8, 10000, kSide);
      Engine engine(fake, {.turn_prefill_tokens = turn_tokens});
      const RequestId a = Submit(engine, kLong, 1);
      said.clear();
      // There are always short requests running or waiting beside the long one.
      return RunUntil(engine, [&] {
        if (others && engine.stats().running + engine.stats().waiting < 6) Submit(engine, kSide, 1, 4);
        return said[a.value()] > 0;
      });
    };
    const int64_t alone = turns(false);
    const int64_t delayed = turns(true);
    EXPECT_GT(delayed, alone * 3 / 2) << "the others were read too, or this shows nothing";
    EXPECT_LE(delayed, 2 * alone + 1);
  }
}

TEST_F(LanesTest, AfterAShortPromptTheOrderIsByArrival) {
  Engine engine(executor);
  for (const int64_t tokens : {kSide, kUnitTokens, kSide, kUnitTokens}) Submit(engine, tokens, 3, 5);
  RunOut(engine);
  EXPECT_EQ(first, (std::vector<int64_t>{0, 1, 2, 3}));
  EXPECT_TRUE(std::ranges::is_sorted(units));
  EXPECT_EQ(executor.most_prefill_bytes, executor.PrefillBytes(0, kSide)) << "never two at once";
}

TEST_F(LanesTest, WithoutAPlanThereIsNoSideLane) {
  for (const auto& [context, batch, side] :
       {std::tuple{kContext, 8, int64_t{0}}, {kContext, 1, kSide}, {kLong, 8, kLong}}) {
    FakeExecutor fake(context, batch, 10000, side);
    EXPECT_EQ(fake.options().planned_side_tokens(), 0);
    Engine engine(fake);
    first.clear();
    said.clear();
    Submit(engine, kLong, 1);
    Submit(engine, kSide, 1, 2);
    RunOut(engine);
    EXPECT_EQ(first, (std::vector<int64_t>{0, 1}));
    EXPECT_EQ(fake.most_prefill_bytes, fake.PrefillBytes(0, kLong));
  }
}

TEST_F(LanesTest, DecodingRequestsWaitNoLonger) {
  // A unit counts as at least 32 tokens.
  const int64_t budget = 64;
  for (const int64_t side : {int64_t{0}, kSide}) {
    FakeExecutor fake(kContext, 8, 10000, side);
    Engine engine(fake, {.turn_prefill_tokens = budget});
    said.clear();
    const RequestId stream = Submit(engine, 1, 45, 6);
    RunUntil(engine, [&] { return said[stream.value()] > 1; });
    Submit(engine, kLong, 1, 7);
    for (const int64_t tokens : {kSide, kUnitTokens, int64_t{3}}) Submit(engine, tokens, 1, 8);
    size_t most = 0;
    for (int64_t before = said[stream.value()]; before < 45; before = said[stream.value()]) {
      units.clear();
      ASSERT_TRUE(engine.RunOnce() || said[stream.value()] == 45);
      EXPECT_EQ(said[stream.value()], before + 1) << "a turn without a token";
      most = std::max(most, units.size());
    }
    EXPECT_EQ(most, 2u) << side;
    RunOut(engine);
  }
}

TEST_F(LanesTest, EitherLaneCanBeCancelledAtAnyTime) {
  for (const bool cancel_long : {false, true}) {
    for (int64_t turns = 0; turns < 2 * kSideUnits + 3; ++turns) {
      client.results.clear();
      asked.clear();
      first.clear();
      said.clear();
      {
        Engine engine(executor);
        const RequestId a = Submit(engine, kLong, 4, 9);
        for (int i = 0; i < 3; ++i) engine.RunOnce();
        const RequestId b = Submit(engine, kSide, 20, 10);
        Submit(engine, kSide, 4, 11);
        Submit(engine, kLong, 4, 12);
        for (int64_t i = 0; i < turns; ++i) engine.RunOnce();
        engine.Cancel(cancel_long ? a : b);
        RunOut(engine);
        EXPECT_EQ(client.results.at((cancel_long ? a : b).value()).reason, FinishReason::kCancelled)
            << cancel_long << turns;
      }
      CheckTexts();
      EXPECT_TRUE(executor.clean());
    }
  }
  EXPECT_LE(executor.most_prefill_bytes, executor.PrefillBytes(0, kLong) + executor.PrefillBytes(0, kSide));
}

TEST_F(LanesTest, AFailureInTheSideLaneAffectsOnlyItsRequest) {
  Engine engine(executor);
  const RequestId a = Submit(engine, kLong, 4);
  RunUntil(engine, [&] { return UnitsOf(a) == 2; });
  const RequestId b = Submit(engine, kSide, 4);
  executor.fail_prefill = true;
  RunUntil(engine, [&] { return !client.results.empty(); });
  EXPECT_EQ(client.results.at(b.value()).reason, FinishReason::kError);
  RunOut(engine);
  EXPECT_EQ(std::ssize(client.results.at(a.value()).tokens), 4);
  EXPECT_TRUE(executor.clean());
}

// With random arrivals and cancellations, at most two prefills are in progress, and their memory stays within the plan.
TEST_F(LanesTest, RandomTrafficStaysWithinThePlan) {
  std::mt19937 random(5);
  Engine engine(executor, {.turn_prefill_tokens = 70});
  bool busy = true;
  for (int turn = 0; turn < 3000 || busy; ++turn) {
    if (turn < 3000 && random() % 6 == 0 && engine.stats().waiting < 10) {
      const int64_t tokens = random() % 3 == 0 ? kSide + random() % (kLong - kSide) : 1 + random() % kSide;
      Submit(engine, tokens, 1 + random() % 20, static_cast<int32_t>(random() % kVocab));
    }
    if (random() % 20 == 0 && !asked.empty()) engine.Cancel(RequestId(static_cast<int64_t>(random() % asked.size())));
    busy = engine.RunOnce();
  }
  CheckTexts();
  EXPECT_TRUE(executor.clean());
  EXPECT_GT(executor.most_prefill_bytes, executor.PrefillBytes(0, kLong)) << "or the lane was not used";
  EXPECT_LE(executor.most_prefill_bytes, executor.PrefillBytes(0, kLong) + executor.PrefillBytes(0, kSide));
}

}  // namespace
}  // namespace infinigen
