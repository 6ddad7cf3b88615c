#include "cli/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "base/size.h"
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
  const ExecutorOptions options{.kv_type = StoreType::kBF16, .pool_limit_bytes = 123};
  EXPECT_THAT(Keys(KvJson(options)),
              ElementsAre("preset", "alpha", "cap", "ratio", "from", "evict", "limit_bytes", "type", "home", "select"));
  EXPECT_EQ(KvJson(options)["limit_bytes"], 123);
  EXPECT_EQ(KvJson(options)["type"], "bf16");
  EXPECT_THAT(Keys(TimingJson({})), ElementsAre("load_s", "prefill_s", "prefill_tok_s", "decode_s", "decode_tok_s",
                                                "decode_step_ms_mean", "decode_step_ms_p99", "decode_step_ms_median"));
  EXPECT_THAT(Keys(KvStatsJson({}, {})), ElementsAre("selected_ratio", "extra_ratio", "attended_ratio", "fetched_bytes",
                                                     "fetched_bytes_per_step", "hit_ratio", "fetch_stall_s", "evicted",
                                                     "pool_bytes", "pool_peak_bytes", "sketch_bytes", "hot_bytes"));
  EXPECT_THAT(Keys(MemoryJson()), ElementsAre("host_peak_bytes", "device_peak_bytes"));
  Model model;
  EXPECT_THAT(Keys(ModelJson(model)), ElementsAre("name", "arch", "params", "dtype"));
}

TEST(Report, ParametersOfAMethod) {
  ExecutorOptions options;
  for (const char* field : {"alpha", "cap", "ratio", "from"})
    EXPECT_TRUE(KvJson(options)[field].is_null()) << "full has no " << field;
  options.method = {.preset = "infinigen",
                    .select = SelectKind::kSketch,
                    .from = GuessSource::kPrevMid,
                    .rule = {.alpha = 5.0f, .cap = 0.2, .min_rows = 3, .sinks = 4, .window = 8},
                    .dense_layers = 2,
                    .ratio = 0.3,
                    .sketch_dims = 24};
  auto json = KvJson(options);
  EXPECT_EQ(json["alpha"], 5.0);
  EXPECT_EQ(json["cap"], 0.2) << "the number that was written, not the nearest float";
  EXPECT_EQ(json["ratio"], 0.3);
  EXPECT_EQ(json["from"], "prev-mid");
  EXPECT_EQ(json["select"], "sketch");
  EXPECT_EQ(json["window"], 8);
  EXPECT_EQ(json["dense_layers"], 2);
  EXPECT_EQ(json["sketch_type"], "int8");
  EXPECT_FALSE(json.contains("force_count"));
  options.method.rule.alpha = std::numeric_limits<float>::infinity();
  EXPECT_EQ(KvJson(options)["alpha"], "inf");
  options.method.select = SelectKind::kAll;
  json = KvJson(options);
  EXPECT_EQ(json["select"], "all");
  EXPECT_EQ(json["cap"], 0.2) << "told also where the context is too short for it";
  EXPECT_EQ(json["ratio"], 0.3);
  options.method.preset = "oracle";
  options.method.select = SelectKind::kOracle;
  EXPECT_TRUE(KvJson(options)["ratio"].is_null()) << "it reads keys";
  EXPECT_FALSE(KvJson(options).contains("page"));
  options.method.select = SelectKind::kQuest;
  EXPECT_EQ(KvJson(options)["select"], "quest");
  EXPECT_EQ(KvJson(options)["page"], 16);
  EXPECT_EQ(KvJson(options)["cap"], 0.2);
}

// Two layers, the first dense; ten tokens' rows in the pool.
KvStats SomeStats() {
  KvStats stats;
  stats.layers.resize(2);
  stats.layers[0].totals = {.chosen = 0, .attended = 1000, .retained = 1000};
  stats.layers[1] = {.selects = true, .totals = {.chosen = 100, .attended = 150, .retained = 1000}, .mass = {}};
  for (LayerKvStats& layer : stats.layers) layer.seen = 1000;
  stats.evicted = 11;
  stats.steps = 7;
  stats.fetched_bytes = 70'001;
  stats.entry_row_bytes = 64;
  stats.sketch_row_bytes = 5;
  return stats;
}

TEST(Report, StatisticsOfASelectingRun) {
  const PoolUse pool{.bytes = 320, .peak_bytes = 640};
  const auto json = KvStatsJson(pool, SomeStats());
  EXPECT_EQ(json["selected_ratio"], 0.1);
  EXPECT_EQ(json["extra_ratio"], 0.05);
  EXPECT_EQ(json["attended_ratio"], 1150.0 / 2000) << "of all layers";
  EXPECT_EQ(json["fetched_bytes"], 70'001);
  EXPECT_EQ(json["evicted"], 11);
  EXPECT_EQ(json["fetched_bytes_per_step"], 10'000);
  EXPECT_EQ(json["pool_bytes"], 320);
  EXPECT_EQ(json["pool_peak_bytes"], 640);
  EXPECT_EQ(json["sketch_bytes"], 50);
  EXPECT_FALSE(json.contains("mass_recall"));
  EXPECT_FALSE(json.contains("layers"));
}

TEST(Report, StatisticsOnRequest) {
  KvStats stats = SomeStats();
  const auto layers = KvStatsJson({}, stats, {.per_layer = true})["layers"];
  ASSERT_EQ(layers.size(), 2u);
  EXPECT_EQ(layers[0]["selects"], false);
  EXPECT_EQ(layers[0]["attended_ratio"], 1.0);
  EXPECT_EQ(layers[1]["selected_ratio"], 0.1);
  EXPECT_EQ(KvStatsJson({}, stats, {.mass_recall = true})["mass_recall"]["mean"], 1.0) << "nothing is outside of all";
  EXPECT_TRUE(KvStatsJson({}, {}, {.mass_recall = true})["mass_recall"]["mean"].is_null()) << "no step";
  MassTotals& mass = stats.layers[1].mass;
  mass.count = 4;
  mass.sum = 3;
  mass.bins[250] = 1;
  mass.bins[900] = 3;
  EXPECT_EQ(KvStatsJson({}, stats)["mass_recall"]["mean"], 0.75);
  EXPECT_EQ(KvStatsJson({}, stats)["mass_recall"]["p5"], 0.25);
  EXPECT_THAT(LayerTable(stats), HasSubstr("| 1 | 10.0 % | 5.0 % | 15.0 % | 75.0 % | 25.0 % |"));
  ExecutorOptions options;
  EXPECT_EQ(AttendedWords(stats, options), "") << "full has nothing to say";
  options.method.select = SelectKind::kSketch;
  EXPECT_THAT(AttendedWords(stats, options), HasSubstr("attended to 57.5 % of the cache (selected 10.0 %"));
  EXPECT_THAT(AttendedWords(stats, options), HasSubstr("75.0 % lay inside"));
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

TEST(Report, CsvFieldsComeBackAsTheyWere) {
  EXPECT_EQ(CsvField("copa"), "copa");
  EXPECT_EQ(CsvField(""), "");
  EXPECT_EQ(CsvField("a,b"), "\"a,b\"");
  EXPECT_EQ(CsvField("\"a\" said"), "\"\"\"a\"\" said\"");
  EXPECT_EQ(CsvField("two\nlines"), "\"two\nlines\"");
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
  const RunPlan plan = PlanRun(config, 1000, options, std::nullopt, kGiB);
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
  const RunPlan without = PlanRun(config, 0, options, std::nullopt, kGiB);
  options.side_tokens = 100;
  const RunPlan with = PlanRun(config, 0, options, std::nullopt, kGiB);
  EXPECT_EQ(with.parts.prefill_bytes, (512u + 100) * 64 * sizeof(float));
  EXPECT_EQ(with.parts.total_bytes(), without.parts.total_bytes() + 100 * 64 * sizeof(float));
  EXPECT_EQ(with.options.pool_limit_bytes, without.options.pool_limit_bytes - 100 * 64 * sizeof(float));
  EXPECT_THAT(DescribePlan(config, with), HasSubstr("a prompt, and one of up to 100 tokens beside it"));
  EXPECT_THAT(DescribePlan(config, without), testing::Not(HasSubstr("beside it")));
  options.side_tokens = 512;  // nobody is longer
  EXPECT_EQ(PlanRun(config, 0, options, std::nullopt, kGiB).parts.total_bytes(), without.parts.total_bytes());
  options.side_tokens = 100;
  options.max_batch = 1;  // nobody is beside
  EXPECT_EQ(PlanRun(config, 0, options, std::nullopt, kGiB).parts.prefill_bytes, 512u * 64 * sizeof(float));
}

TEST(MemoryPlanning, TheLargestContextIsExact) {
  ModelConfig config = SmallLlama();
  config.max_positions = 1 << 20;
  ExecutorOptions options{.max_tokens = 1 << 20, .max_batch = 4, .kv_type = StoreType::kF32};
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
  const ExecutorOptions options{.max_tokens = 512, .max_batch = 8, .kv_type = StoreType::kF16};
  const uint64_t one = 512 * 2 * 2 * 2 * 8 * 2;
  const RunPlan enough = PlanRun(config, 0, options, one, kGiB);
  EXPECT_EQ(enough.refusal, "") << "the others wait";
  EXPECT_EQ(enough.parts.pool_bytes, one);
  EXPECT_EQ(enough.options.pool_limit_bytes, one);
  const RunPlan less = PlanRun(config, 0, options, one - 1, kGiB);
  EXPECT_THAT(less.refusal, HasSubstr("does not hold a sequence of 512 tokens"));
  EXPECT_EQ(less.largest_context, 511) << "to the row";
}

TEST(MemoryPlanning, CachedPrefixesHaveAShareThatIsPrinted) {
  const ModelConfig config = SmallLlama();
  ExecutorOptions options{.max_tokens = 512, .max_batch = 8, .kv_type = StoreType::kF16};
  const uint64_t one = 512 * 2 * 2 * 2 * 8 * 2;
  RunPlan plan = PlanRun(config, 0, options, std::nullopt, kGiB);
  PlanPrefixes(&plan);
  EXPECT_EQ(plan.prefix_bytes, 4 * one) << "half of the pool";
  EXPECT_EQ(plan.options.pool_limit_bytes, 12 * one) << "and beside it: all that the pool will ever take is planned";
  EXPECT_THAT(DescribePlan(config, plan), HasSubstr("prefixes     256.0 KiB   of at most 256.0 KiB for"));
  EXPECT_THAT(DescribePlan(config, plan),
              HasSubstr(fmt::format("total     {:>12}", FormatSize(plan.parts.total_bytes() + 4 * one))));
  // Within a limit that was given, and never less than a context.
  plan = PlanRun(config, 0, options, 2 * one, kGiB);
  PlanPrefixes(&plan);
  EXPECT_EQ(plan.prefix_bytes, one);
  EXPECT_EQ(plan.options.pool_limit_bytes, 2 * one);
  EXPECT_THAT(DescribePlan(config, plan), HasSubstr("0 B   of at most 64.0 KiB"));
  options.max_batch = 1;
  plan = PlanRun(config, 0, options, std::nullopt, kGiB);
  PlanPrefixes(&plan);
  EXPECT_EQ(plan.prefix_bytes, one);
  // Nothing is shared by sequences that evict.
  options.method.retain = &kRetainCounter;
  options.method.limit.share = 0.4;
  plan = PlanRun(config, 0, options, std::nullopt, kGiB);
  const uint64_t limit = plan.options.pool_limit_bytes;
  PlanPrefixes(&plan);
  EXPECT_EQ(plan.prefix_bytes, 0u);
  EXPECT_EQ(plan.options.pool_limit_bytes, limit);
}

TEST(MemoryPlanning, SketchesArePlannedFor) {
  ModelConfig config = SmallLlama();
  config.head_dim = 32;
  ExecutorOptions options{.max_tokens = 512, .max_batch = 2, .kv_type = StoreType::kF16};
  const RunPlan full = PlanRun(config, 0, options, std::nullopt, kGiB);
  EXPECT_EQ(full.parts.sketch_bytes, 0u);
  options.method = {.preset = "infinigen", .select = SelectKind::kSketch, .dense_layers = 1, .sketch_dims = 16};
  const RunPlan plan = PlanRun(config, 0, options, std::nullopt, kGiB);
  // 2 sequences x 1 layer x 2 heads x 512 rows x (16 numbers and a scale of 2 bytes)
  EXPECT_EQ(plan.parts.sketch_bytes, 2u * 2 * 512 * (16 + 2));
  EXPECT_LT(plan.options.pool_limit_bytes, full.options.pool_limit_bytes);
  EXPECT_LT(plan.largest_context, full.largest_context);
  EXPECT_THAT(DescribePlan(config, plan), HasSubstr("sketches      36.0 KiB"));
  EXPECT_EQ(PlanJson(plan)["sketch_bytes"], 36 * 1024);
  options.method.select = SelectKind::kQuest;
  options.max_tokens = 500;
  // 2 sequences x 1 layer x 2 heads x 32 pages, the last of them short, x 2 bounds of 32 numbers of 2 bytes
  EXPECT_EQ(PlanRun(config, 0, options, std::nullopt, kGiB).parts.sketch_bytes, 2u * 2 * 32 * 2 * 32 * 2);
}

TEST(MemoryPlanning, NothingFits) {
  const RunPlan plan = PlanRun(SmallLlama(), kGiB, {.max_tokens = 1, .max_batch = 1}, std::nullopt, kGiB);
  EXPECT_EQ(plan.largest_context, 0);
  EXPECT_EQ(plan.options.pool_limit_bytes, 0u);
  EXPECT_THAT(plan.refusal, HasSubstr("no context fits"));
}

}  // namespace
}  // namespace infinigen
