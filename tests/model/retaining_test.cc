// Caches with a limit: compared with an independent forward pass that tracks retained entries, with an unlimited cache
// when everything fits, and with themselves in other batches.
#include <gtest/gtest.h>

#include <string>

#include "model/random_model.h"

namespace infinigen {
namespace {

struct Case {
  const RetainPolicy* policy;
  GuessSource from;
  ModelConfig config;
  bool tail = false;
  int32_t late = 0;

  // Policies that need no selection are tested without one.
  bool selects() const { return policy->needs_selection() || (policy == &kRetainFifo && from != GuessSource::kSelf); }
  std::string name() const {
    std::string text = std::string(policy->name) + "_" + std::string(Name(from)) + "_" + config.name.substr(5) +
                       (tail ? "_tail" : "") + (late > 0 ? "_late" : "");
    std::replace(text.begin(), text.end(), '-', '_');
    return text;
  }
};
std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const RetainPolicy* policy : RetainPolicies()) cases.push_back({policy, GuessSource::kSelf, Llama()});
  for (const RetainPolicy* policy : {&kRetainCounter, &kRetainLru, &kRetainFifo})
    cases.push_back({policy, GuessSource::kPrevMid, Llama()});
  cases.push_back({&kRetainCounter, GuessSource::kPrevStep, Opt()});
  cases.push_back({&kRetainH2o, GuessSource::kSelf, Opt()});
  cases.push_back({&kRetainH2o, GuessSource::kSelf, Capped()});
  cases.push_back({&kRetainLru, GuessSource::kPrevMid, Capped()});
  cases.push_back({&kRetainCounter, GuessSource::kSelf, Llama(), true});
  cases.push_back({&kRetainLru, GuessSource::kPrevLayer, Llama(), true});
  cases.push_back({&kRetainLru, GuessSource::kPrevMid, Capped(), true});
  cases.push_back({&kRetainCounter, GuessSource::kPrevLayer, Llama(), true, 3});
  cases.push_back({&kRetainLru, GuessSource::kPrevStep, Opt(), true, 3});
  return cases;
}

class Retaining : public testing::TestWithParam<Case> {
 protected:
  Retaining() {
    if (!GetParam().selects()) {
      method.select = &kSelectAll;
      method.dense_layers = 0;
    }
    method.retain = GetParam().policy;
    method.limit.share = 0.4;
  }
  std::vector<float> Plain(const std::vector<int32_t>& ids, size_t prefill, GuessMistakes mistakes = {}) const {
    return Independent(model, method, ids, prefill, mistakes);
  }

  RandomModelWithBases model{GetParam().config, 8, 11};
  KvMethod method = GetParam().tail ? WithTail(Sparse(GetParam().from), GetParam().late) : Sparse(GetParam().from);
};

// Prompts longer than the quota (56 rows), shorter ones, and none.
TEST_P(Retaining, EqualsAnIndependentForwardPass) {
  for (const size_t prefill : {size_t{100}, size_t{25}, size_t{0}}) {
    constexpr uint32_t kSeeds = 3;
    uint32_t reference = 0, cpu = 0;
    for (uint32_t seed = 1; seed <= kSeeds; ++seed) {
      const std::vector<int32_t> ids = model.Ids(140, seed);
      const std::vector<float> want = Plain(ids, prefill);
      // Rounding may also move a number of a value's sketch by one of its 15 steps.
      const double bound = GetParam().tail ? 20 * kRounding : kRounding;
      reference += Difference(Decode(*model.Make(method, Device::kReference), ids, prefill), want) < bound;
      cpu += Difference(Decode(*model.Make(method), ids, prefill), want) < bound;
    }
    // If rounding swaps two rows of almost equal score, all later results differ.
    const uint32_t least = GetParam().selects() ? kSeeds - 1 : kSeeds;
    EXPECT_GE(reference, least) << "prefill " << prefill;
    EXPECT_GE(cpu, least) << "prefill " << prefill;
  }
}

// The published code also selects evicted rows, so that eviction has no effect on its results.
TEST_P(Retaining, EvictedEntriesAreNotSelected) {
  const std::vector<int32_t> ids = model.Ids(190, 1);
  const std::vector<float> ours = Decode(*model.Make(method), ids, 150);
  if (GetParam().selects()) {
    EXPECT_GT(Difference(ours, Plain(ids, 150, {.undead = true})), 100 * kRounding);
  }
  if (GetParam().tail) {
    EXPECT_GT(Difference(ours, Plain(ids, 150, {.undead_tail = true})), 100 * kRounding);
  }
  KvMethod unlimited = method;
  unlimited.retain = nullptr;
  EXPECT_GT(Difference(ours, Decode(*model.Make(unlimited), ids, 150)), 100 * kRounding);
}

TEST_P(Retaining, ALimitThatHoldsEverythingChangesNoBit) {
  const std::vector<int32_t> ids = model.Ids(620, 2);
  KvMethod unlimited = method;
  unlimited.retain = nullptr;
  method.limit.share = 1.0;
  const std::unique_ptr<Executor> limited = model.Make(method), free = model.Make(unlimited);
  EXPECT_EQ(Decode(*limited, ids, 530), Decode(*free, ids, 530));
  EXPECT_EQ(AsSteps(*limited, ids), AsSteps(*free, ids));
  EXPECT_EQ(limited->instruments().Stats().evicted, 0u);
}

TEST_P(Retaining, StepsInAPrefillEqualSingleSteps) {
  const std::vector<int32_t> ids = model.Ids(600, 3);  // more than one chunk
  const std::unique_ptr<Executor> executor = model.Make(method);
  EXPECT_EQ(AsSteps(*executor, ids), Decode(*executor, ids, 0));
}

TEST_P(Retaining, NeitherThreadsNorOtherSequencesMatter) {
  const std::vector<int32_t> ids = model.Ids(560, 4);
  const std::vector<float> one = Decode(*model.Make(method, Device::kCpu, 1), ids, 530);
  EXPECT_EQ(Decode(*model.Make(method, Device::kCpu, 3), ids, 530), one);

  const std::unique_ptr<Executor> together = model.Make(method, Device::kCpu, 2, 3);
  const size_t vocab = static_cast<size_t>(model.config.vocab);
  std::vector<std::vector<int32_t>> texts = {model.Ids(90, 7), ids, model.Ids(333, 8)};
  const std::vector<size_t> prompts = {60, 530, 303};
  std::vector<StepItem> items;
  for (size_t i = 0; i < texts.size(); ++i) {
    const SeqSlot slot = together->Admit(std::ssize(texts[i])).value();
    ASSERT_TRUE(together->BeginPrefill(slot, 0, std::span(texts[i]).first(prompts[i])).ok());
    while (!together->RunPrefillUnit(slot)) {
    }
    together->EndPrefill(slot);
    items.push_back({.slot = slot, .token = 0, .row = static_cast<int64_t>(prompts[i])});
  }
  std::vector<float> logits(3 * vocab), ours;
  for (int step = 0; step < 30; ++step) {
    for (size_t i = 0; i < items.size(); ++i) items[i].token = texts[i][static_cast<size_t>(items[i].row)];
    together->Step(items, logits);
    ours.insert(ours.end(), logits.begin() + static_cast<ptrdiff_t>(vocab),
                logits.begin() + static_cast<ptrdiff_t>(2 * vocab));
    for (StepItem& item : items) ++item.row;
  }
  EXPECT_EQ(ours, one);
}

TEST_P(Retaining, ThePoolStaysWithinTheLimit) {
  const uint64_t row_bytes = static_cast<uint64_t>(2 * model.config.kv_heads * model.config.head_dim) * sizeof(float);
  uint64_t layers = 0, dense = 0, rings = 0;  // layers without a window; those that never evict; rows of the others
  for (int64_t layer = 0; layer < model.config.layers; ++layer) {
    const bool window = model.config.specs[static_cast<size_t>(layer)].window > 0;
    layers += window ? 0 : 1;
    dense += !window && layer < method.dense_layers ? 1 : 0;
    rings += window ? 2 * static_cast<uint64_t>(kExtentTokens) : 0;  // 300 rows in whole extents
  }
  const std::vector<int32_t> ids = model.Ids(300, 5);
  const std::unique_ptr<Executor> share = model.Make(method);
  Decode(*share, ids, 200);
  EXPECT_EQ(share->instruments().pool_peak_bytes(), row_bytes * (dense * 300 + (layers - dense) * 120 + rings));
  // 200 tokens of the prompt and 100 of steps in 120 rows.
  const uint64_t entries = (layers - dense) * static_cast<uint64_t>(model.config.kv_heads);
  EXPECT_EQ(share->instruments().Stats().evicted, 180 * entries);
  const LayerKvStats last = share->instruments().Stats().layers.back();
  EXPECT_EQ(last.totals.retained, 100u * 120u * static_cast<uint64_t>(model.config.kv_heads));
  EXPECT_LT(last.attended_ratio(), 0.6);

  method.limit.bytes = row_bytes * (dense * 300 + (layers - dense) * 77 + rings) + 5;
  const std::unique_ptr<Executor> size = model.Make(method);
  Decode(*size, ids, 200);
  EXPECT_EQ(size->instruments().pool_peak_bytes(), row_bytes * (dense * 300 + (layers - dense) * 77 + rings));
}

// A limit in bytes is divided by the stated number of sequences, however many there are.
TEST_P(Retaining, BytesAreDividedByTheBatchNotByRunningSequences) {
  const uint64_t row_bytes = static_cast<uint64_t>(2 * model.config.kv_heads * model.config.head_dim) * sizeof(float);
  uint64_t rows = 0;
  for (const LayerSpec& spec : model.config.specs) rows += spec.window > 0 ? static_cast<uint64_t>(kExtentTokens) : 100;
  method.limit.bytes = 3 * row_bytes * rows;
  method.limit.sequences = 3;
  const std::vector<int32_t> ids = model.Ids(160, 9);
  EXPECT_EQ(Decode(*model.Make(method, Device::kCpu, 2, 1), ids, 150),
            Decode(*model.Make(method, Device::kCpu, 2, 3), ids, 150));
}

TEST_P(Retaining, TinyLimitsWork) {
  const std::vector<int32_t> ids = model.Ids(90, 6);
  for (const double share : {1.0 / 90, 2.0 / 90, 3.0 / 90, 5.0 / 90}) {
    method.limit.share = share;
    for (const size_t prefill : {size_t{0}, size_t{60}}) {
      for (const float logit : Decode(*model.Make(method), ids, prefill)) ASSERT_TRUE(std::isfinite(logit));
    }
  }
  method.limit.bytes = 10;  // less than one row
  EXPECT_FALSE(model.Make(method)->Admit(90).ok());
}

INSTANTIATE_TEST_SUITE_P(Policies, Retaining, testing::ValuesIn(Cases()),
                         [](const auto& instance) { return instance.param.name(); });

}  // namespace
}  // namespace infinigen
