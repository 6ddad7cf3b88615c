// What the public API keeps of an answer on request: logprobs, logits, the map of attended tokens, scores of a prompt;
// and requests submitted together. On the shipped model, with a selection that leaves most tokens out.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <infinigen/infinigen.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <string>
#include <vector>

namespace {

namespace ig = infinigen::v1;
using std::chrono::milliseconds;
using testing::Each;
using testing::HasSubstr;

class ApiAnswers : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    model_ = new ig::Model(ig::Model::Open());
    ig::Options options;
    options.Set("ctx", "1024").Set("batch", "4").Set("threads", "2");
    options.Set("kv", "infinigen").Set("kv-min", "0").Set("kv-window", "16").Set("kv-cap", "0.1");
    engine_ = new ig::Engine(*model_, options);
  }
  static void TearDownTestSuite() {
    delete engine_;
    delete model_;
  }
  static ig::Request Greedy(std::string prompt, int64_t tokens) {
    return {.prompt = std::move(prompt), .max_tokens = tokens, .sampling = {.temperature = 0}, .ignore_eos = true};
  }
  static std::string Long() {
    std::string text = "The key is under the mat. ";
    for (int i = 0; i < 60; ++i) text += "Nothing happens here. ";
    return text + "The key is";
  }

  static ig::Model* model_;
  static ig::Engine* engine_;
};
ig::Model* ApiAnswers::model_ = nullptr;
ig::Engine* ApiAnswers::engine_ = nullptr;

template <class F>
std::string ErrorOf(F f) {
  try {
    f();
  } catch (const ig::Error& error) {
    return error.what();
  }
  return "no error";
}

double Logprob(std::span<const float> logits, int32_t token) {
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - top);
  return logits[static_cast<size_t>(token)] - top - std::log(sum);
}

TEST_F(ApiAnswers, LogprobsAreThoseOfTheKeptLogits) {
  ig::Request request = Greedy("Once upon a time", 5);
  request.top_logprobs = 2;
  request.keep_logits = true;
  const ig::Outcome outcome = engine_->Submit(request).Wait();
  const size_t vocabulary = static_cast<size_t>(model_->info().vocabulary);
  ASSERT_EQ(outcome.logits.size(), 5 * vocabulary);
  ASSERT_EQ(outcome.logprobs.size(), 5u);
  for (size_t i = 0; i < 5; ++i) {
    const std::span<const float> row = std::span(outcome.logits).subspan(i * vocabulary, vocabulary);
    const ig::TokenLogprobs& given = outcome.logprobs[i];
    EXPECT_EQ(given.chosen.token, outcome.tokens[i]);
    EXPECT_NEAR(given.chosen.logprob, Logprob(row, outcome.tokens[i]), 1e-4);
    ASSERT_EQ(given.top.size(), 2u);
    EXPECT_EQ(given.top[0].token, outcome.tokens[i]);
    EXPECT_GE(given.top[0].logprob, given.top[1].logprob);
  }
}

// The logits and logprobs of the token that ends a text are not among those of its tokens.
TEST_F(ApiAnswers, AnEndOfTextHasNeither) {
  const int32_t eos = model_->info().eos.at(0);
  ig::Request request = Greedy("Once upon a time", 5);
  request.ignore_eos = false;
  request.logit_bias = {{eos, 1000.0f}};
  request.top_logprobs = 0;
  request.keep_logits = true;
  const ig::Outcome outcome = engine_->Submit(request).Wait();
  EXPECT_EQ(outcome.finish_reason, "stop");
  EXPECT_TRUE(outcome.tokens.empty());
  EXPECT_TRUE(outcome.logits.empty());
  EXPECT_TRUE(outcome.logprobs.empty());
}

TEST_F(ApiAnswers, AMapAddsUpToTheAttendedRatio) {
  ig::Request request = Greedy(Long(), 9);
  request.keep_kv_map = true;
  const ig::Outcome outcome = engine_->Submit(request).Wait();
  const ig::KvMap& map = outcome.kv_map;
  EXPECT_EQ(map.layers, model_->info().layers);
  EXPECT_EQ(map.steps, 8);
  ASSERT_EQ(map.rows, outcome.prompt_tokens + 8);
  ASSERT_EQ(std::ssize(map.share), map.layers * map.rows);
  double attended = 0, possible = 0;
  for (int64_t row = 0; row < map.rows; ++row) {
    const double steps = static_cast<double>(std::min<int64_t>(8, map.rows - row));  // in which the row existed
    for (int64_t layer = 0; layer < map.layers; ++layer) {
      attended += steps * static_cast<double>(map.share[static_cast<size_t>(layer * map.rows + row)]);
      possible += steps;
    }
  }
  EXPECT_NEAR(attended / possible, outcome.kv.attended_ratio, 1e-3);
  EXPECT_LT(attended / possible, 0.5);
  EXPECT_TRUE(engine_->Submit(Greedy(Long(), 9)).Wait().kv_map.share.empty());
  request.kv_full = true;
  EXPECT_THAT(engine_->Submit(request).Wait().kv_map.share, Each(1.0f));
}

TEST_F(ApiAnswers, ScoresByPrefillAreThoseOfAnAnswerThatAttendsToEverything) {
  ig::Request full = Greedy(Long(), 6);
  full.kv_full = true;
  full.top_logprobs = 0;
  const ig::Outcome answer = engine_->Submit(full).Wait();
  ig::Request scored{.tokens = model_->Encode(Long()), .max_tokens = 0};
  scored.score_from = std::ssize(scored.tokens);
  scored.tokens.insert(scored.tokens.end(), answer.tokens.begin(), answer.tokens.end());
  const ig::Outcome by_prefill = engine_->Submit(scored).Wait();
  ASSERT_EQ(by_prefill.scores.size(), 6u);
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(by_prefill.scores[i].chosen.token, answer.tokens[i]);
    EXPECT_NEAR(by_prefill.scores[i].chosen.logprob, answer.logprobs[i].chosen.logprob, 1e-5);
  }
  EXPECT_TRUE(by_prefill.tokens.empty());
  EXPECT_EQ(by_prefill.kv.steps, 0);
}

TEST_F(ApiAnswers, ScoresByStepsAreThoseOfAnAnswerUnderTheMethod) {
  ig::Request generated = Greedy(Long(), 6);
  generated.top_logprobs = 0;
  const ig::Outcome answer = engine_->Submit(generated).Wait();
  ig::Request scored{.tokens = model_->Encode(Long()), .max_tokens = 0};
  const int64_t first = std::ssize(scored.tokens) + 1;  // the prefill predicts the answer's first token
  scored.tokens.insert(scored.tokens.end(), answer.tokens.begin(), answer.tokens.end());
  scored.score_from = first;
  scored.score_steps = true;
  const ig::Outcome by_steps = engine_->Submit(scored).Wait();
  ASSERT_EQ(by_steps.scores.size(), 5u);
  for (size_t i = 0; i < 5; ++i)
    EXPECT_NEAR(by_steps.scores[i].chosen.logprob, answer.logprobs[i + 1].chosen.logprob, 1e-5);
  EXPECT_LT(by_steps.kv.attended_ratio, 0.5);
  for (const int64_t wrong : {int64_t{0}, int64_t{-1}, std::ssize(scored.tokens)}) {
    scored.score_from = wrong;
    EXPECT_THAT(ErrorOf([&] { engine_->Submit(scored); }), HasSubstr("scored from"));
  }
}

TEST_F(ApiAnswers, RequestsThatAreSubmittedTogetherAllRunOrNone) {
  const std::vector<ig::Request> fine = {Greedy("The sea", 4), Greedy("A house", 4)};
  std::vector<ig::Stream> streams = engine_->SubmitAll(fine);
  ASSERT_EQ(streams.size(), 2u);
  EXPECT_EQ(streams[1].Wait().text, engine_->Submit(fine[1]).Wait().text);
  const int64_t before = engine_->statistics().decode_tokens;
  const std::vector<ig::Request> mixed = {Greedy("The sea", 500), {.tokens = std::vector<int32_t>(3000, 5)}};
  EXPECT_THAT(ErrorOf([&] { engine_->SubmitAll(mixed); }), HasSubstr("request 1: the prompt has 3000 tokens"));
  engine_->Submit(Greedy("The end", 2)).Wait();
  EXPECT_LT(engine_->statistics().decode_tokens - before, 100);
  EXPECT_TRUE(engine_->SubmitAll({}).empty());
}

TEST_F(ApiAnswers, AWaitCanBeShort) {
  ig::Stream stream = engine_->Submit(Greedy("Once upon a time", 400));
  EXPECT_FALSE(stream.AwaitEnd(milliseconds(0)));
  ASSERT_TRUE(stream.AwaitText(milliseconds(60'000)));
  EXPECT_TRUE(stream.Next().has_value());
  stream.Cancel();
  EXPECT_TRUE(stream.AwaitEnd(milliseconds(60'000)));
  EXPECT_TRUE(stream.AwaitText(milliseconds(0))) << "there is no more to wait for";
}

TEST_F(ApiAnswers, BiasIsChecked) {
  ig::Request request = Greedy("a", 1);
  request.logit_bias = {{-1, 0.0f}};
  EXPECT_THAT(ErrorOf([&] { engine_->Submit(request); }), HasSubstr("outside the vocabulary"));
  request.logit_bias = {{5, 1.0f}, {5, 2.0f}};
  EXPECT_THAT(ErrorOf([&] { engine_->Submit(request); }), HasSubstr("appears twice"));
  request.logit_bias = {{5, NAN}};
  EXPECT_THAT(ErrorOf([&] { engine_->Submit(request); }), HasSubstr("not between"));
}

TEST_F(ApiAnswers, SpecialTokensCanBeLeftOut) {
  const ig::ModelInfo info = model_->info();
  std::vector<int32_t> tokens = model_->Encode("Hello", false);
  tokens.push_back(info.eos.at(0));
  EXPECT_EQ(model_->DecodePlain(tokens), "Hello");
  EXPECT_NE(model_->Decode(tokens), "Hello");
  std::vector<int32_t> opened = model_->Opening();
  const std::vector<int32_t> plain = model_->Encode("Hello", false);
  opened.insert(opened.end(), plain.begin(), plain.end());
  EXPECT_EQ(opened, model_->Encode("Hello"));
}

}  // namespace
