#include "runtime/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "base/size.h"

namespace infinigen {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

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
                    .select = &kSelectSketch,
                    .from = GuessSource::kPrevMid,
                    .rule = {.alpha = 5.0f, .cap = 0.2, .min_rows = 3, .sinks = 4, .window = 8},
                    .dense_layers = 2,
                    .sketch = {.dims = 24},
                    .ratio = 0.3};
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
  options.method.select = &kSelectAll;
  json = KvJson(options);
  EXPECT_EQ(json["select"], "all");
  EXPECT_EQ(json["cap"], 0.2) << "reported even if the context is too short to select";
  EXPECT_EQ(json["ratio"], 0.3);
  options.method.preset = "oracle";
  options.method.select = &kSelectOracle;
  EXPECT_TRUE(KvJson(options)["ratio"].is_null()) << "it reads keys";
  EXPECT_FALSE(KvJson(options).contains("page"));
  options.method.select = &kSelectQuest;
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
  EXPECT_EQ(KvStatsJson({}, stats, {.mass_recall = true})["mass_recall"]["mean"], 1.0)
      << "a full selection has recall 1";
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
  EXPECT_EQ(AttendedWords(stats, options), "") << "full reports nothing here";
  options.method.select = &kSelectSketch;
  EXPECT_THAT(AttendedWords(stats, options), HasSubstr("attended to 57.5 % of the cache (selected 10.0 %"));
  EXPECT_THAT(AttendedWords(stats, options), HasSubstr("75.0 % of the true attention was inside the selection"));
}

TEST(Report, MissedAttentionByEstimateAndInTruth) {
  KvStats stats = SomeStats();
  ExecutorOptions options;
  options.method.select = &kSelectSketch;
  for (const double share : {0.1, 0.3}) stats.layers[1].tail_mass.Add(share);
  auto json = KvStatsJson({}, stats, {.per_layer = true});
  EXPECT_DOUBLE_EQ(json["tail_mass"]["mean"], 0.2);
  EXPECT_FALSE(json.contains("missed_mass")) << "the truth was not measured";
  EXPECT_THAT(LayerTable(stats), Not(HasSubstr("missed")));
  EXPECT_THAT(AttendedWords(stats, options), Not(HasSubstr("in truth")));
  for (const double share : {0.5, 1.0}) stats.layers[1].mass.Add(share);
  json = KvStatsJson({}, stats, {.per_layer = true});
  EXPECT_DOUBLE_EQ(json["missed_mass"]["estimated"], 0.2);
  EXPECT_DOUBLE_EQ(json["missed_mass"]["true"], 0.25);
  EXPECT_EQ(json["layers"][1]["missed_mass"], json["missed_mass"]);
  EXPECT_FALSE(json["layers"][0].contains("missed_mass")) << "a dense layer misses nothing";
  EXPECT_THAT(LayerTable(stats), HasSubstr("| 75.0 % | 50.0 % | 20.00 % | 25.00 % |"));
  EXPECT_THAT(LayerTable(stats), HasSubstr("| all | all | none | none |"));
  EXPECT_THAT(AttendedWords(stats, options), HasSubstr("20.00 % of the attention by estimate, 25.00 % in truth"));
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

}  // namespace
}  // namespace infinigen
