// A token's logits depend only on its sequence and the weights: they are bit-identical in prefill and decode, alone and
// in a batch, for any number of threads and any division into chunks. All comparisons here are exact.
#include <gtest/gtest.h>

#include <random>

#include "golden/golden_run.h"

namespace infinigen {
namespace {

constexpr const char* kModels = INFINIGEN_TEST_DATA "/golden/models/";

class Invariance : public testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<LoadedModel> Load(int threads, int64_t batch, StoreType type = StoreType::kBF16) {
    return LoadModel(kModels + GetParam(), {.threads = threads, .max_batch = batch, .kv_type = type});
  }
  static std::vector<int32_t> RandomIds(const ModelConfig& config, size_t count, uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<int32_t> ids(count);
    for (int32_t& id : ids) id = static_cast<int32_t>(random() % static_cast<uint32_t>(config.vocab));
    return ids;
  }
};

TEST_P(Invariance, DecodeEqualsPrefill) {
  for (const StoreType type : {StoreType::kBF16, StoreType::kInt4}) {
    const std::unique_ptr<LoadedModel> model = Load(2, 1, type);
    ASSERT_NE(model, nullptr);
    const std::vector<int32_t> ids = RandomIds(model->config, 150, 1);
    const std::vector<float> whole = PrefillAll(*model->executor, ids);
    for (size_t prefill : {1u, 63u, 64u, 149u})
      EXPECT_EQ(DecodeAll(*model->executor, ids, prefill), whole) << Name(type) << ", " << prefill;
  }
}

// A sequence that is rewound and continued gives the same logits as one prefill of all its tokens.
TEST_P(Invariance, PrefillAfterARewindEqualsAFreshOne) {
  const std::unique_ptr<LoadedModel> model = Load(2, 1);
  ASSERT_NE(model, nullptr);
  Executor& executor = *model->executor;
  const size_t vocab = static_cast<size_t>(model->config.vocab);
  const size_t count = static_cast<size_t>(std::min<int64_t>(400, model->config.max_positions));
  const std::vector<int32_t> ids = RandomIds(model->config, count, 9);
  const std::vector<float> whole = PrefillAll(executor, ids);
  for (const size_t kept : {size_t{1}, size_t{64}, count - 144, count - 1}) {
    // After the rows that stay, the sequence first has other tokens, sometimes more than those that replace them.
    std::vector<int32_t> before = RandomIds(model->config, count, 10);
    std::copy_n(ids.begin(), kept, before.begin());
    before.resize(std::max(kept, count - 50));
    const SeqSlot slot = executor.Admit(static_cast<int64_t>(count)).value();
    ASSERT_TRUE(executor.BeginPrefill(slot, 0, before).ok());
    while (!executor.RunPrefillUnit(slot)) {
    }
    executor.EndPrefill(slot);
    ASSERT_TRUE(executor.BeginPrefill(slot, static_cast<int64_t>(kept), std::span(ids).subspan(kept)).ok());
    while (!executor.RunPrefillUnit(slot)) {
    }
    std::vector<float> logits((ids.size() - kept) * vocab);
    executor.PrefillLogits(slot, 0, static_cast<int64_t>(ids.size() - kept), logits);
    executor.Release(slot);
    EXPECT_TRUE(std::equal(logits.begin(), logits.end(), whole.begin() + static_cast<ptrdiff_t>(kept * vocab))) << kept;
  }
}

TEST_P(Invariance, ThreadsDoNotMatter) {
  std::vector<float> one;
  for (int threads : {1, 2, 3}) {
    const std::unique_ptr<LoadedModel> model = Load(threads, 1);
    ASSERT_NE(model, nullptr);
    const std::vector<int32_t> ids = RandomIds(model->config, 100, 2);
    const std::vector<float> logits = DecodeAll(*model->executor, ids, 70);
    if (one.empty()) one = logits;
    EXPECT_EQ(logits, one) << threads << " threads";
  }
}

TEST_P(Invariance, OtherSequencesDoNotMatter) {
  const std::unique_ptr<LoadedModel> together = Load(2, 5);
  const std::unique_ptr<LoadedModel> alone = Load(2, 1);
  ASSERT_TRUE(together != nullptr && alone != nullptr);
  std::vector<std::vector<int32_t>> prompts;
  for (uint32_t i = 0; i < 5; ++i) prompts.push_back(RandomIds(together->config, 1 + 29 * i, 3 + i));
  const std::vector<std::vector<int32_t>> batch = Greedy(*together->executor, prompts, 40);
  for (size_t i = 0; i < prompts.size(); ++i) EXPECT_EQ(Greedy(*alone->executor, {prompts[i]}, 40)[0], batch[i]) << i;
}

TEST_P(Invariance, StepsOfABatchEqualStepsAlone) {
  const std::unique_ptr<LoadedModel> model = Load(2, 3);
  ASSERT_NE(model, nullptr);
  Executor& executor = *model->executor;
  const size_t vocab = static_cast<size_t>(model->config.vocab);
  std::vector<std::vector<int32_t>> ids;
  std::vector<std::vector<float>> expected;
  for (uint32_t i = 0; i < 3; ++i) {
    ids.push_back(RandomIds(model->config, 20 + 40 * i, 20 + i));
    expected.push_back(PrefillAll(executor, ids[i]));
  }
  std::vector<SeqSlot> slots;
  for (const std::vector<int32_t>& sequence : ids) {
    slots.push_back(executor.Admit(static_cast<int64_t>(sequence.size())).value());
    ASSERT_TRUE(executor.BeginPrefill(slots.back(), 0, std::span(sequence).first(sequence.size() - 10)).ok());
    while (!executor.RunPrefillUnit(slots.back())) {
    }
    executor.EndPrefill(slots.back());
  }
  std::vector<float> logits(3 * vocab);
  for (size_t step = 0; step < 10; ++step) {
    std::vector<StepItem> items;
    for (size_t i = 0; i < 3; ++i) {
      const size_t row = ids[i].size() - 10 + step;
      items.push_back({.slot = slots[i], .token = ids[i][row], .row = static_cast<int64_t>(row)});
    }
    executor.Step(items, logits);
    for (size_t i = 0; i < 3; ++i) {
      const auto row = expected[i].begin() + items[i].row * static_cast<int64_t>(vocab);
      EXPECT_TRUE(std::equal(row, row + static_cast<int64_t>(vocab), logits.begin() + static_cast<int64_t>(i * vocab)));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Invariance,
                         testing::Values("llama_gqa_tied", "llama_head_dim", "llama_bf16", "opt_pre_norm",
                                         "opt_post_norm"),
                         [](const auto& test) { return test.param; });

// Longer than one prefill chunk of the CPU backend (512 tokens), to cross the borders of units, extents and blocks.
TEST(LongPrompt, ChunksAndExtentsDoNotMatter) {
  const std::string directory = std::string(kModels) + "llama_gqa_tied";
  const std::unique_ptr<LoadedModel> model =
      LoadModel(directory, {.threads = 2, .max_tokens = 1200, .max_batch = 1, .kv_type = StoreType::kF16});
  ASSERT_NE(model, nullptr);
  std::mt19937 random(5);
  std::vector<int32_t> ids(1100);
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % static_cast<uint32_t>(model->config.vocab));
  const std::vector<float> whole = PrefillAll(*model->executor, ids);
  EXPECT_EQ(DecodeAll(*model->executor, ids, 500), whole);
}

}  // namespace
}  // namespace infinigen
