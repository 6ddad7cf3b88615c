// Requests with a constraint: only allowed tokens are drawn, logprobs stay the model's, EOS ends the text, and a
// preemption does not change what was accepted.
#include "engine/constraint.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "engine/engine.h"
#include "engine/serving_model.h"

namespace infinigen {
namespace {

// Token i of the text is one of two that depend on i and the token before; after `length` tokens only EOS is allowed.
class TwoWays : public TokenConstraint {
 public:
  TwoWays(std::vector<int32_t>* accepted, size_t length, int32_t eos, int32_t vocab)
      : accepted_(accepted), length_(length), eos_(eos), vocab_(vocab) {}

  static bool Fits(const std::vector<int32_t>& before, int32_t token, int32_t vocab) {
    const int32_t last = before.empty() ? 7 : before.back();
    const int32_t one = (last * 5 + 11 + static_cast<int32_t>(before.size())) % vocab;
    return token == one || token == (one + 17) % vocab;
  }
  bool Fill(std::span<uint32_t> mask) override {
    std::fill(mask.begin(), mask.end(), 0);
    for (int32_t token = 0; token < vocab_; ++token)
      if (accepted_->size() < length_ ? Fits(*accepted_, token, vocab_) : token == eos_)
        mask[static_cast<size_t>(token) / 32] |= uint32_t{1} << (token % 32);
    return true;
  }
  bool Accept(int32_t token) override {
    accepted_->push_back(token);
    return true;
  }

 private:
  std::vector<int32_t>* accepted_;
  size_t length_;
  int32_t eos_, vocab_;
};

TEST(ConstraintTest, OnlyAllowedTokensComeAndPreemptionChangesNothing) {
  const int32_t vocab = static_cast<int32_t>(Model().config.vocab);
  std::vector<int32_t> calm;
  for (const int64_t rows : {100000, 5 * 256}) {
    const std::unique_ptr<Executor> executor = MakeModel({.method = Infinigen(), .batch = 2, .pool_rows = rows});
    Engine engine(*executor, {.grows = true, .reuses_prefixes = true});
    Client client;
    std::vector<int32_t> accepted, logged;
    ASSERT_TRUE(engine.Submit(client.Make(Model().Ids(500, 81), 700)).ok());
    Request request = client.Make(Model().Ids(400, 82), 300);
    request.sampling = {.temperature = 1.5f, .top_logprobs = 0, .seed = 5};
    request.constraint = std::make_unique<TwoWays>(&accepted, 1000, -1, vocab);
    request.on_logprobs = [&](RequestId, const TokenLogprobs& values) { logged.push_back(values.chosen.token); };
    ASSERT_TRUE(engine.Submit(std::move(request)).ok());
    while (engine.RunOnce()) {
    }
    EXPECT_EQ(engine.stats().preemptions > 0, rows < 100000);
    ASSERT_EQ(client.results[1].tokens.size(), 300u);
    EXPECT_EQ(accepted, client.results[1].tokens);
    EXPECT_EQ(logged, accepted);
    for (size_t i = 0; i < accepted.size(); ++i)
      EXPECT_TRUE(TwoWays::Fits({accepted.begin(), accepted.begin() + static_cast<ptrdiff_t>(i)}, accepted[i], vocab));
    if (calm.empty()) calm = accepted;
    EXPECT_EQ(accepted, calm);
  }
}

class Closed : public TokenConstraint {
 public:
  explicit Closed(bool fills) : fills_(fills) {}
  bool Fill(std::span<uint32_t> mask) override {
    std::fill(mask.begin(), mask.end(), 0);
    return fills_;
  }
  bool Accept(int32_t) override { return true; }

 private:
  bool fills_;
};

TEST(ConstraintTest, ARequestThatCannotGoOnEndsWithAnErrorAlone) {
  const std::unique_ptr<Executor> executor = MakeModel({.batch = 3});
  Engine engine(*executor);
  Client client;
  for (const bool fills : {true, false}) {
    Request request = client.Make(Model().Ids(20, 83), 5);
    request.constraint = std::make_unique<Closed>(fills);
    ASSERT_TRUE(engine.Submit(std::move(request)).ok());
  }
  ASSERT_TRUE(engine.Submit(client.Make(Model().Ids(20, 84), 5)).ok());
  while (engine.RunOnce()) {
  }
  EXPECT_EQ(client.results[0].reason, FinishReason::kError);
  EXPECT_NE(client.results[0].error.find("no token"), std::string::npos);
  EXPECT_EQ(client.results[1].reason, FinishReason::kError);
  EXPECT_EQ(client.results[2].tokens.size(), 5u);
}

}  // namespace
}  // namespace infinigen
