#include "cli/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cli/console.h"
#include "cli/progress.h"

namespace infinigen {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> Keys(const nlohmann::ordered_json& json) {
  std::vector<std::string> keys;
  for (const auto& item : json.items()) keys.push_back(item.key());
  return keys;
}

// The names that scripts depend on.
TEST(Report, FieldsOfTheContract) {
  const ExecutorOptions options{.kv_type = DType::kBF16, .pool_limit_bytes = 123};
  EXPECT_THAT(Keys(KvJson(options)),
              ElementsAre("preset", "alpha", "cap", "ratio", "from", "evict", "limit_bytes", "type", "home"));
  EXPECT_EQ(KvJson(options)["limit_bytes"], 123);
  EXPECT_EQ(KvJson(options)["type"], "bf16");
  EXPECT_THAT(Keys(TimingJson({})), ElementsAre("load_s", "prefill_s", "prefill_tok_s", "decode_s", "decode_tok_s",
                                                "decode_step_ms_mean", "decode_step_ms_p99"));
  EXPECT_THAT(Keys(KvStatsJson({}, {})),
              ElementsAre("selected_ratio", "extra_ratio", "attended_ratio", "fetched_bytes", "fetched_bytes_per_step",
                          "hit_ratio", "evicted", "pool_bytes", "pool_peak_bytes", "sketch_bytes", "hot_bytes"));
  EXPECT_THAT(Keys(MemoryJson()), ElementsAre("host_peak_bytes", "device_peak_bytes"));
  Model model;
  EXPECT_THAT(Keys(ModelJson(model)), ElementsAre("name", "arch", "params", "dtype"));
}

TEST(Report, TimingOfNothingIsNull) {
  const auto empty = TimingJson({});
  for (const char* field : {"prefill_tok_s", "decode_tok_s", "decode_step_ms_mean", "decode_step_ms_p99"})
    EXPECT_TRUE(empty[field].is_null()) << field;
  const auto timing = TimingJson(
      {.load_s = 1, .prefill_tokens = 100, .prefill_s = 2, .decode_tokens = 6, .decode_s = 3, .step_ms = {1, 2, 3}});
  EXPECT_EQ(timing["prefill_tok_s"], 50.0);
  EXPECT_EQ(timing["decode_tok_s"], 2.0);
  EXPECT_EQ(timing["decode_step_ms_mean"], 2.0);
  EXPECT_EQ(timing["decode_step_ms_p99"], 3.0);
}

TEST(Report, PercentileIsTheNearestRank) {
  std::vector<float> values;
  for (int i = 200; i >= 1; --i) values.push_back(static_cast<float>(i));
  EXPECT_EQ(Percentile(values, 99), 198);
  EXPECT_EQ(Percentile(values, 50), 100);
  EXPECT_EQ(Percentile({7}, 99), 7);
  EXPECT_EQ(Percentile({}, 99), 0);
}

TEST(Report, BadTextNeverThrows) { EXPECT_THAT(Dump({{"name", "a\xff"}}), HasSubstr("a\xef\xbf\xbd")); }

TEST(Report, ErrorsStayOnOneLine) { EXPECT_EQ(OneLine("a\nb\r\x1b[2Jc\xc3\xa9"), "a b  [2Jc\xc3\xa9"); }

TEST(Report, ProgressLine) {
  EXPECT_EQ(ProgressLine(0.5, 1000, 10), "prefill  50 % [############------------] 1000 tokens  50 tok/s  ETA 0:10");
  EXPECT_THAT(ProgressLine(0, 1000, 1), HasSubstr("0 tok/s"));
  EXPECT_THAT(ProgressLine(0.01, 100000, 10), HasSubstr("ETA 16:30"));
}

// ---- the memory plan ----

ModelConfig SmallLlama() {
  ModelConfig config;
  config.name = "small";
  config.layers = 2;
  config.hidden = config.embed_dim = 64;
  config.heads = 8;
  config.kv_heads = 2;
  config.head_dim = 8;
  config.ffn = 48;
  config.vocab = 160;
  config.max_positions = 512;
  return config;
}

constexpr uint64_t kGiB = uint64_t{1} << 30;

TEST(MemoryPlanning, FitsAndLeavesTheRestToThePool) {
  const ModelConfig config = SmallLlama();
  const ExecutorOptions options{.max_tokens = 512, .max_batch = 2, .kv_type = DType::kF16};
  const RunPlan plan = PlanRun(config, 1000, options, std::nullopt, kGiB);
  EXPECT_EQ(plan.refusal, "");
  EXPECT_EQ(plan.parts.weights_bytes, 1000u);
  // 2 sequences × 512 tokens × 2 layers × 2 heads × (key, value) × 8 × 2 bytes
  EXPECT_EQ(plan.parts.pool_bytes, 2u * 512 * 2 * 2 * 2 * 8 * 2);
  EXPECT_EQ(plan.parts.prefill_bytes, 512u * 64 * sizeof(float)) << "one prompt prefills at a time";
  EXPECT_EQ(plan.parts.total_bytes() - plan.parts.pool_bytes + kMarginBytes + plan.options.pool_limit_bytes, kGiB);
  EXPECT_GT(plan.largest_context, 512) << "rope has no end";
}

TEST(MemoryPlanning, TheLargestContextIsExact) {
  ModelConfig config = SmallLlama();
  config.max_positions = 1 << 20;
  ExecutorOptions options{.max_tokens = 1 << 20, .max_batch = 4, .kv_type = DType::kF32};
  const uint64_t available = kMarginBytes + (uint64_t{300} << 20);
  const RunPlan plan = PlanRun(config, 0, options, std::nullopt, available);
  EXPECT_THAT(plan.refusal, HasSubstr("not enough memory"));
  EXPECT_THAT(plan.refusal, HasSubstr(std::to_string(plan.largest_context)));
  ASSERT_GT(plan.largest_context, 0);
  options.max_tokens = plan.largest_context;
  EXPECT_EQ(PlanRun(config, 0, options, std::nullopt, available).refusal, "");
  ++options.max_tokens;
  EXPECT_NE(PlanRun(config, 0, options, std::nullopt, available).refusal, "");
}

TEST(MemoryPlanning, LearnedPositionsEndTheContext) {
  ModelConfig config = SmallLlama();
  config.positions = PositionKind::kLearned;
  const ExecutorOptions options{.max_tokens = 10, .max_batch = 1};
  EXPECT_EQ(PlanRun(config, 0, options, std::nullopt, 64 * kGiB).largest_context, 512);
}

TEST(MemoryPlanning, AHardLimitMustHoldOneSequence) {
  const ModelConfig config = SmallLlama();
  const ExecutorOptions options{.max_tokens = 512, .max_batch = 8, .kv_type = DType::kF16};
  const uint64_t one = 512 * 2 * 2 * 2 * 8 * 2;
  const RunPlan enough = PlanRun(config, 0, options, one, kGiB);
  EXPECT_EQ(enough.refusal, "") << "the others wait";
  EXPECT_EQ(enough.parts.pool_bytes, one);
  EXPECT_EQ(enough.options.pool_limit_bytes, one);
  const RunPlan less = PlanRun(config, 0, options, one - 1, kGiB);
  EXPECT_THAT(less.refusal, HasSubstr("does not hold a sequence of 512 tokens"));
  EXPECT_EQ(less.largest_context, 511) << "to the row";
}

TEST(MemoryPlanning, NothingFits) {
  const RunPlan plan = PlanRun(SmallLlama(), kGiB, {.max_tokens = 1, .max_batch = 1}, std::nullopt, kGiB);
  EXPECT_EQ(plan.largest_context, 0);
  EXPECT_EQ(plan.options.pool_limit_bytes, 0u);
  EXPECT_THAT(plan.refusal, HasSubstr("no context fits"));
}

}  // namespace
}  // namespace infinigen
