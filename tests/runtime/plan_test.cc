// The memory plan: its parts, its refusals, and the largest context, exact to the row.
#include "runtime/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/size.h"
#include "runtime/report.h"

namespace infinigen {
namespace {

using testing::HasSubstr;

ModelConfig SmallLlama() {
  ModelConfig config;
  config.name = "small";
  config.hidden = config.embed_dim = 64;
  config.heads = 8;
  config.kv_heads = 2;
  config.head_dim = 8;
  config.ffn = 48;
  config.vocab = 160;
  config.max_positions = 512;
  config.ropes = {RopeConfig()};
  config.SetLayers(2, PlainLayer(config.head_dim));
  return config;
}

constexpr uint64_t kGiB = uint64_t{1} << 30;

TEST(MemoryPlanning, FitsAndLeavesTheRestToThePool) {
  const ModelConfig config = SmallLlama();
  const ExecutorOptions options{.max_tokens = 512, .max_batch = 2, .kv_type = StoreType::kF16};
  const RunPlan plan = PlanOptions(config, 1000, options, std::nullopt, kGiB);
  EXPECT_EQ(plan.refusal, "");
  EXPECT_EQ(plan.parts.weights_bytes, 1000u);
  // 2 sequences × 512 tokens × 2 layers × 2 heads × (key, value) × 8 × 2 bytes
  EXPECT_EQ(plan.parts.pool_bytes, 2u * 512 * 2 * 2 * 2 * 8 * 2);
  EXPECT_EQ(plan.parts.prefill_bytes, 512u * 64 * sizeof(float)) << "one prompt prefills at a time";
  EXPECT_EQ(plan.parts.total_bytes() - plan.parts.pool_bytes + kMarginBytes + plan.options.pool_limit_bytes, kGiB);
  EXPECT_GT(plan.largest_context, 512) << "rope has no end";
}

TEST(MemoryPlanning, APromptBesideAnotherIsCountedWhereItIsWanted) {
  const ModelConfig config = SmallLlama();
  ExecutorOptions options{.max_tokens = 512, .max_batch = 2, .kv_type = StoreType::kF16};
  const RunPlan without = PlanOptions(config, 0, options, std::nullopt, kGiB);
  options.side_tokens = 100;
  const RunPlan with = PlanOptions(config, 0, options, std::nullopt, kGiB);
  EXPECT_EQ(with.parts.prefill_bytes, (512u + 100) * 64 * sizeof(float));
  EXPECT_EQ(with.parts.total_bytes(), without.parts.total_bytes() + 100 * 64 * sizeof(float));
  EXPECT_EQ(with.options.pool_limit_bytes, without.options.pool_limit_bytes - 100 * 64 * sizeof(float));
  EXPECT_THAT(DescribePlan(config, with), HasSubstr("one prompt, and a second of up to 100 tokens"));
  EXPECT_THAT(DescribePlan(config, without), testing::Not(HasSubstr("a second of")));
  options.side_tokens = 512;  // no prompt is longer
  EXPECT_EQ(PlanOptions(config, 0, options, std::nullopt, kGiB).parts.total_bytes(), without.parts.total_bytes());
  options.side_tokens = 100;
  options.max_batch = 1;  // no second prompt
  EXPECT_EQ(PlanOptions(config, 0, options, std::nullopt, kGiB).parts.prefill_bytes, 512u * 64 * sizeof(float));
}

TEST(MemoryPlanning, TheLargestContextIsExact) {
  ModelConfig config = SmallLlama();
  config.max_positions = 1 << 20;
  ExecutorOptions options{.max_tokens = 1 << 20, .max_batch = 4, .kv_type = StoreType::kF32};
  const uint64_t available = kMarginBytes + (uint64_t{300} << 20);
  const RunPlan plan = PlanOptions(config, 0, options, std::nullopt, available);
  EXPECT_THAT(plan.refusal, HasSubstr("not enough memory"));
  EXPECT_THAT(plan.refusal, HasSubstr(std::to_string(plan.largest_context)));
  ASSERT_GT(plan.largest_context, 0);
  options.max_tokens = plan.largest_context;
  EXPECT_EQ(PlanOptions(config, 0, options, std::nullopt, available).refusal, "");
  ++options.max_tokens;
  EXPECT_NE(PlanOptions(config, 0, options, std::nullopt, available).refusal, "");
}

TEST(MemoryPlanning, LearnedPositionsEndTheContext) {
  ModelConfig config = SmallLlama();
  config.positions = PositionKind::kLearned;
  const ExecutorOptions options{.max_tokens = 10, .max_batch = 1};
  EXPECT_EQ(PlanOptions(config, 0, options, std::nullopt, 64 * kGiB).largest_context, 512);
}

TEST(MemoryPlanning, AHardLimitMustHoldOneSequence) {
  const ModelConfig config = SmallLlama();
  const ExecutorOptions options{.max_tokens = 512, .max_batch = 8, .kv_type = StoreType::kF16};
  const uint64_t one = 512 * 2 * 2 * 2 * 8 * 2;
  const RunPlan enough = PlanOptions(config, 0, options, one, kGiB);
  EXPECT_EQ(enough.refusal, "") << "the others wait";
  EXPECT_EQ(enough.parts.pool_bytes, one);
  EXPECT_EQ(enough.options.pool_limit_bytes, one);
  const RunPlan less = PlanOptions(config, 0, options, one - 1, kGiB);
  EXPECT_THAT(less.refusal, HasSubstr("one sequence of 512 tokens takes"));
  EXPECT_EQ(less.largest_context, 511) << "to the row";
}

TEST(MemoryPlanning, CachedPrefixesHaveAShareThatIsPrinted) {
  const ModelConfig config = SmallLlama();
  ExecutorOptions options{.max_tokens = 512, .max_batch = 8, .kv_type = StoreType::kF16};
  const uint64_t one = 512 * 2 * 2 * 2 * 8 * 2;
  RunPlan plan = PlanOptions(config, 0, options, std::nullopt, kGiB);
  plan = WithPrefixes(plan);
  EXPECT_EQ(plan.prefix_bytes, 4 * one) << "half of the pool";
  EXPECT_EQ(plan.options.pool_limit_bytes, 12 * one)
      << "the pool and the prefix cache: the plan covers all that the pool can hold";
  EXPECT_THAT(DescribePlan(config, plan), HasSubstr("prefixes     256.0 KiB   prefix cache, at most 256.0 KiB"));
  EXPECT_THAT(DescribePlan(config, plan),
              HasSubstr(fmt::format("total     {:>12}", FormatSize(plan.parts.total_bytes() + 4 * one))));
  // Within a limit that was given, and never less than a context.
  plan = PlanOptions(config, 0, options, 2 * one, kGiB);
  plan = WithPrefixes(plan);
  EXPECT_EQ(plan.prefix_bytes, one);
  EXPECT_EQ(plan.options.pool_limit_bytes, 2 * one);
  EXPECT_THAT(DescribePlan(config, plan), HasSubstr("0 B   prefix cache, at most 64.0 KiB"));
  options.max_batch = 1;
  plan = PlanOptions(config, 0, options, std::nullopt, kGiB);
  plan = WithPrefixes(plan);
  EXPECT_EQ(plan.prefix_bytes, one);
  // Nothing is shared by sequences that evict.
  options.method.retain = &kRetainCounter;
  options.method.limit.share = 0.4;
  plan = PlanOptions(config, 0, options, std::nullopt, kGiB);
  const uint64_t limit = plan.options.pool_limit_bytes;
  plan = WithPrefixes(plan);
  EXPECT_EQ(plan.prefix_bytes, 0u);
  EXPECT_EQ(plan.options.pool_limit_bytes, limit);
}

TEST(MemoryPlanning, SketchesArePlannedFor) {
  ModelConfig config = SmallLlama();
  config.head_dim = 32;
  ExecutorOptions options{.max_tokens = 512, .max_batch = 2, .kv_type = StoreType::kF16};
  const RunPlan full = PlanOptions(config, 0, options, std::nullopt, kGiB);
  EXPECT_EQ(full.parts.sketch_bytes, 0u);
  options.method = {.preset = "infinigen", .select = &kSelectSketch, .dense_layers = 1, .sketch = {.dims = 16}};
  const RunPlan plan = PlanOptions(config, 0, options, std::nullopt, kGiB);
  // 2 sequences x 1 layer x 2 heads x 512 rows x (16 numbers and a scale of 2 bytes)
  EXPECT_EQ(plan.parts.sketch_bytes, 2u * 2 * 512 * (16 + 2));
  EXPECT_LT(plan.options.pool_limit_bytes, full.options.pool_limit_bytes);
  EXPECT_LT(plan.largest_context, full.largest_context);
  EXPECT_THAT(DescribePlan(config, plan), HasSubstr("sketches      36.0 KiB"));
  EXPECT_EQ(PlanJson(plan)["sketch_bytes"], 36 * 1024);
  options.method.select = &kSelectQuest;
  options.max_tokens = 500;
  // 2 sequences x 1 layer x 2 heads x 32 pages, the last of them short, x 2 bounds of 32 numbers of 2 bytes
  EXPECT_EQ(PlanOptions(config, 0, options, std::nullopt, kGiB).parts.sketch_bytes, 2u * 2 * 32 * 2 * 32 * 2);
}

TEST(MemoryPlanning, NothingFits) {
  const RunPlan plan = PlanOptions(SmallLlama(), kGiB, {.max_tokens = 1, .max_batch = 1}, std::nullopt, kGiB);
  EXPECT_EQ(plan.largest_context, 0);
  EXPECT_EQ(plan.options.pool_limit_bytes, 0u);
  EXPECT_THAT(plan.refusal, HasSubstr("no context fits"));
}

}  // namespace
}  // namespace infinigen
