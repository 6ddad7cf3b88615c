// Requests that score their prompt: each token's logprobs are those of the same tokens fed to the executor directly, in
// one prefill or one step after another, alone, beside others and after preemptions.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "engine/engine.h"
#include "engine/logprobs.h"
#include "engine/serving_model.h"

namespace infinigen {
namespace {

struct Scores {
  std::vector<float> logprobs;  // of tokens 1, 2, …
  std::vector<std::vector<TokenLogprob>> top;
};

Request MakeScoring(Client& client, std::vector<int32_t> prompt, int64_t n, int64_t steps_from, Scores* scores) {
  Request request = client.Make(std::move(prompt), n);
  request.score = {.scores = true, .steps_from = steps_from};
  request.sampling.top_logprobs = 3;
  request.on_scored = [scores, ids = request.prompt](RequestId, int64_t index, const TokenLogprobs& values) {
    EXPECT_EQ(index, std::ssize(scores->logprobs) + 1) << "in order, each once";
    EXPECT_EQ(values.chosen.token, ids[static_cast<size_t>(index)]);
    scores->logprobs.push_back(values.chosen.logprob);
    scores->top.push_back(values.top);
  };
  return request;
}

// The first `dense` tokens in one prefill, the others one step after another.
std::vector<float> Fed(const KvMethod& method, const std::vector<int32_t>& ids, int64_t dense) {
  const std::unique_ptr<Executor> executor = MakeModel({.method = method, .batch = 1});
  const size_t vocab = static_cast<size_t>(executor->config().vocab);
  const SeqSlot slot = executor->Admit(std::ssize(ids)).value();
  EXPECT_TRUE(executor->BeginPrefill(slot, 0, std::span(ids).first(static_cast<size_t>(dense))).ok());
  while (!executor->RunPrefillUnit(slot)) {
  }
  std::vector<float> logprobs, logits(vocab);
  const auto add = [&](int64_t row) {
    if (row + 1 == std::ssize(ids)) return;
    const int32_t next = ids[static_cast<size_t>(row + 1)];
    logprobs.push_back(static_cast<float>(logits[static_cast<size_t>(next)] - LogSum(logits)));
  };
  for (int64_t row = 0; row < dense; ++row) {
    executor->PrefillLogits(slot, row, 1, logits);
    add(row);
  }
  executor->EndPrefill(slot);
  for (int64_t row = dense; row < std::ssize(ids); ++row) {
    const StepItem item{slot, ids[static_cast<size_t>(row)], row};
    executor->Step({&item, 1}, logits);
    add(row);
  }
  executor->Release(slot);
  return logprobs;
}

TEST(ScoreTest, LogprobsAreThoseOfThePromptFedDirectly) {
  for (const KvMethod& method : Methods()) {
    const std::vector<int32_t> ids = Model().Ids(330, 71);
    const std::vector<float> dense = Fed(method, ids, 330), steps = Fed(method, ids, 1), mixed = Fed(method, ids, 200);
    EXPECT_EQ(dense != steps, method.selects()) << "selection must matter, or this shows nothing";
    const std::unique_ptr<Executor> executor = MakeModel({.method = method, .batch = 4});
    Engine engine(*executor, {.grows = true, .reuses_prefixes = true});
    Client client;
    Scores all, by_steps, by_both;
    ASSERT_TRUE(engine.Submit(client.Make(ids, 5)).ok());  // its cached prefix must not be used
    while (engine.RunOnce()) {
    }
    ASSERT_TRUE(engine.Submit(MakeScoring(client, ids, 0, INT64_MAX, &all)).ok());
    ASSERT_TRUE(engine.Submit(MakeScoring(client, ids, 1, 0, &by_steps)).ok());
    ASSERT_TRUE(engine.Submit(MakeScoring(client, ids, 2, 200, &by_both)).ok());
    while (engine.RunOnce()) {
    }
    EXPECT_EQ(all.logprobs, dense);
    EXPECT_EQ(by_steps.logprobs, steps);
    EXPECT_EQ(by_both.logprobs, mixed);
    EXPECT_EQ(client.results[1].reason, FinishReason::kLength);
    EXPECT_TRUE(client.results[1].tokens.empty());
    EXPECT_EQ(client.results[1].reused_tokens, 0);
    EXPECT_EQ(client.results[1].kv.steps, 0);
    EXPECT_EQ(client.results[2].kv.steps, 329) << "the prompt's own steps; the one generated token has none";
    EXPECT_EQ(client.results[3].kv.steps, 131);
    for (const std::vector<TokenLogprob>& top : all.top) {
      ASSERT_EQ(top.size(), 3u);
      EXPECT_GE(top[0].logprob, top[1].logprob);
      EXPECT_GE(top[1].logprob, top[2].logprob);
    }
  }
}

TEST(ScoreTest, PreemptionChangesNoScoreAndNoText) {
  for (const KvMethod& method : {KvMethod{}, Infinigen()}) {
    const std::vector<int32_t> first = Model().Ids(500, 72), second = Model().Ids(400, 73);
    const std::vector<float> expected = Fed(method, second, 1);
    std::vector<int32_t> text;
    for (const int64_t rows : {100000, 6 * 256}) {  // with room for both; too small once both have grown
      const std::unique_ptr<Executor> executor = MakeModel({.method = method, .batch = 2, .pool_rows = rows});
      Engine engine(*executor, {.grows = true, .reuses_prefixes = true});
      Client client;
      Scores scores;
      ASSERT_TRUE(engine.Submit(client.Make(first, 700)).ok());
      ASSERT_TRUE(engine.Submit(MakeScoring(client, second, 400, 0, &scores)).ok());
      while (engine.RunOnce()) {
      }
      EXPECT_EQ(engine.stats().preemptions > 0, rows < 100000);
      EXPECT_EQ(scores.logprobs, expected);
      ASSERT_EQ(client.results[1].tokens.size(), 400u);
      if (text.empty()) text = client.results[1].tokens;
      EXPECT_EQ(client.results[1].tokens, text);
    }
  }
}

TEST(ScoreTest, APromptOfOneTokenHasNothingToScore) {
  const std::unique_ptr<Executor> executor = MakeModel({.batch = 1});
  Engine engine(*executor);
  Client client;
  Scores scores;
  ASSERT_TRUE(engine.Submit(MakeScoring(client, {5}, 2, 0, &scores)).ok());
  while (engine.RunOnce()) {
  }
  EXPECT_TRUE(scores.logprobs.empty());
  EXPECT_EQ(client.results[0].tokens.size(), 2u);
}

TEST(LogprobsTest, TheMostLikelyComeFirstAndEqualsByTheirIds) {
  const std::vector<float> logits = {1, 3, INFINITY, 3, NAN, 2, -INFINITY, 0};
  const TokenLogprobs values = LogprobsOf(logits, 5, 4);
  ASSERT_EQ(values.top.size(), 4u);
  const std::vector<int32_t> order = {values.top[0].token, values.top[1].token, values.top[2].token,
                                      values.top[3].token};
  EXPECT_EQ(order, (std::vector<int32_t>{1, 3, 5, 0}));
  const double sum = std::exp(1.0) + 2 * std::exp(3.0) + std::exp(2.0) + 1;
  EXPECT_NEAR(values.chosen.logprob, 2 - std::log(sum), 1e-6);
  EXPECT_NEAR(values.top[0].logprob, 3 - std::log(sum), 1e-6);
  EXPECT_EQ(LogprobsOf(logits, 0, 20).top.size(), 5u);
  EXPECT_TRUE(LogprobsOf(logits, 0, 0).top.empty());
}

}  // namespace
}  // namespace infinigen
