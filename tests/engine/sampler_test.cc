#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

namespace infinigen {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

SamplingOptions Plain(float temperature) {
  return {.temperature = temperature, .top_k = 0, .top_p = 1, .min_p = 0, .repeat_penalty = 1, .seed = 1};
}

std::shared_ptr<const std::vector<std::pair<int32_t, float>>> Bias(std::pair<int32_t, float> bias) {
  return std::make_shared<const std::vector<std::pair<int32_t, float>>>(1, bias);
}

std::optional<int32_t> SampleOnce(const SamplingOptions& options, std::vector<float> logits,
                                  std::vector<int32_t> history = {}) {
  return Sampler(options, static_cast<int64_t>(logits.size())).Sample(logits, history);
}

// How often each token is drawn in `n` draws.
std::map<int32_t, int> Count(const SamplingOptions& options, const std::vector<float>& logits, int n) {
  Sampler sampler(options, static_cast<int64_t>(logits.size()));
  std::map<int32_t, int> counts;
  for (int i = 0; i < n; ++i) {
    std::vector<float> scratch = logits;
    ++counts[sampler.Sample(scratch, {}).value()];
  }
  return counts;
}

TEST(Sampler, GreedyTakesTheLargestAndTheSmallerIdOnTies) {
  EXPECT_EQ(SampleOnce(Plain(0), {1, 5, 3}), 1);
  EXPECT_EQ(SampleOnce(Plain(0), {1, 5, 5}), 1);
}

TEST(Sampler, BrokenLogitsAreNeverChosen) {
  for (float temperature : {0.0f, 1.0f}) {
    EXPECT_EQ(SampleOnce(Plain(temperature), {kNan, -3, kInf, -kInf}), 1);
    EXPECT_EQ(SampleOnce(Plain(temperature), {kNan, kInf}), std::nullopt);
  }
}

TEST(Sampler, FollowsTheSoftmax) {
  const std::vector<float> logits = {std::log(0.5f), std::log(0.3f), std::log(0.2f)};
  const int n = 20000;
  std::map<int32_t, int> counts = Count(Plain(1), logits, n);
  // Six standard deviations: detects a wrong distribution, but practically never fails by chance.
  EXPECT_NEAR(counts[0], 0.5 * n, 6 * std::sqrt(0.25 * n));
  EXPECT_NEAR(counts[1], 0.3 * n, 6 * std::sqrt(0.21 * n));
  std::map<int32_t, int> sharp = Count(Plain(0.5f), logits, n);  // p² normalised: .25/.38
  EXPECT_NEAR(sharp[0], 0.25 / 0.38 * n, 6 * std::sqrt(0.23 * n));
}

TEST(Sampler, FiltersKeepExactlyWhatTheyName) {
  const std::vector<float> logits = {std::log(0.4f), std::log(0.1f), std::log(0.3f), std::log(0.2f)};
  SamplingOptions top_k = Plain(5);  // high temperature, so that every allowed token is drawn
  top_k.top_k = 2;
  EXPECT_EQ(Count(top_k, logits, 2000).size(), 2u);
  SamplingOptions top_p = Plain(5);
  top_p.top_p = 0.65f;  // .4 + .3 ≥ .65
  std::map<int32_t, int> counts = Count(top_p, logits, 2000);
  EXPECT_EQ(counts.size(), 2u);
  EXPECT_TRUE(counts.contains(0) && counts.contains(2));
  SamplingOptions min_p = Plain(5);
  min_p.min_p = 0.4f;  // 0.4 · 0.4 = 0.16, so 0.1 is dropped
  EXPECT_EQ(Count(min_p, logits, 2000).size(), 3u);
  SamplingOptions tiny = Plain(5);
  tiny.top_p = 1e-6f;
  EXPECT_EQ(Count(tiny, logits, 100).size(), 1u) << "the most likely token is never filtered out";
}

TEST(Sampler, RepeatPenaltyCountsEachTokenOnceAndForgetsBeyondTheWindow) {
  SamplingOptions options = Plain(0);
  options.repeat_penalty = 1.5f;
  options.repeat_window = 3;
  EXPECT_EQ(SampleOnce(options, {3.0f, 2.5f}, {0, 0, 0}), 1) << "3 / 1.5 = 2";
  EXPECT_EQ(SampleOnce(options, {4.0f, 2.5f}, {0, 0, 0}), 0) << "once: 4 / 1.5 = 2.67, not 4 / 1.5³";
  EXPECT_EQ(SampleOnce(options, {3.0f, 2.5f}, {0, 1, 1, 1}), 0) << "0 is outside the window";
  EXPECT_EQ(SampleOnce(options, {-1.0f, -1.2f}, {0}), 1) << "negative logits move away from zero";
}

TEST(Sampler, SameSeedSameDraws) {
  const std::vector<float> logits(50, 0.0f);
  for (uint64_t seed : {0u, 1u, 12345u}) {
    SamplingOptions options = Plain(1);
    options.seed = seed;
    Sampler a(options, 50), b(options, 50);
    for (int i = 0; i < 100; ++i) {
      std::vector<float> x = logits, y = logits;
      EXPECT_EQ(a.Sample(x, {}), b.Sample(y, {}));
    }
  }
  EXPECT_NE(Count(Plain(1), logits, 20),
            Count({.temperature = 1, .top_k = 0, .top_p = 1, .min_p = 0, .seed = 2}, logits, 20));
}

TEST(Sampler, BiasIsAddedToTheLogit) {
  SamplingOptions options = Plain(0);
  options.logit_bias = Bias({2, 3.5f});
  EXPECT_EQ(SampleOnce(options, {1, 5, 2}), 2);
  options.logit_bias = Bias({1, -100.0f});
  EXPECT_EQ(SampleOnce(options, {1, 5, 2}), 2);
}

TEST(Sampler, PenaltiesCountOnlyGeneratedTokens) {
  SamplingOptions options = Plain(0);
  options.presence_penalty = 1.0f;
  options.frequency_penalty = 0.5f;
  Sampler sampler(options, 3);
  const std::vector<int32_t> history = {0, 0, 0, 1, 1, 2};  // the first three are the prompt
  const std::span<const int32_t> all = history;
  const auto next = [&](std::vector<float> logits, size_t generated) {
    return sampler.Sample(logits, all.first(3 + generated), all.subspan(3, generated)).value();
  };
  EXPECT_EQ(next({3, 3.1f, 0}, 0), 1);
  EXPECT_EQ(next({3, 4.4f, 0}, 1), 0);  // token 1 once: 1 + 0.5
  EXPECT_EQ(next({3, 4.6f, 0}, 1), 1);
  EXPECT_EQ(next({3, 4.9f, 0}, 2), 0);  // twice: 1 + 2 · 0.5
  EXPECT_EQ(next({3, 5.1f, 0}, 2), 1);
  EXPECT_EQ(next({3, 0, 4.4f}, 3), 0);
}

TEST(Sampler, LogprobsAreTheModelsOwn) {
  SamplingOptions options = Plain(0);
  options.top_logprobs = 2;
  options.logit_bias = Bias({3, 50.0f});
  const std::vector<float> logits = {std::log(0.5f), kNan, std::log(0.3f), std::log(0.2f)};
  Sampler sampler(options, 4);
  std::vector<float> scratch = logits;
  EXPECT_EQ(sampler.Sample(scratch, {}), 3);
  const TokenLogprobs& logprobs = *sampler.logprobs();
  EXPECT_EQ(logprobs.chosen.token, 3);
  EXPECT_NEAR(logprobs.chosen.logprob, std::log(0.2), 1e-6);
  ASSERT_EQ(logprobs.top.size(), 2u);
  EXPECT_EQ(logprobs.top[0].token, 0);
  EXPECT_NEAR(logprobs.top[0].logprob, std::log(0.5), 1e-6);
  EXPECT_EQ(logprobs.top[1].token, 2);
  EXPECT_EQ(Sampler(Plain(0), 4).logprobs(), nullptr);
}

}  // namespace
}  // namespace infinigen
