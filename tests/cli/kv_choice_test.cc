// The KV flags: every word that is taken, every one that is refused, and what they come to.
#include "cli/kv_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "cli/console.h"

namespace infinigen {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

using Arguments = std::vector<std::string>;

struct Line {
  KvFlags kv;
  std::string said;  // on stderr

  std::optional<int> Parse(const Arguments& arguments, bool list = false) {
    Flags flags("test", "A test.");
    AddKvFlags(flags, &kv, list);
    testing::internal::CaptureStderr();
    const std::optional<int> exit_code = flags.Parse(arguments);
    said = testing::internal::GetCapturedStderr();
    return exit_code;
  }
};

KvChoice Choice(const Arguments& arguments) {
  Line line;
  EXPECT_EQ(line.Parse(arguments), std::nullopt) << line.said;
  Result<KvChoice> choice = ResolveKv(line.kv);
  EXPECT_TRUE(choice.ok()) << (choice.ok() ? "" : choice.error().message);
  return choice.ok() ? std::move(choice).value() : KvChoice();
}

std::string Refusal(const Arguments& arguments, bool list = false) {
  Line line;
  EXPECT_EQ(line.Parse(arguments, list), std::nullopt) << line.said;
  const Result<std::vector<KvChoice>> choices = ResolveKvList(line.kv);
  return choices.ok() ? std::string() : choices.error().message;
}

ModelConfig ModelOf(int64_t layers, int64_t head_dim) {
  ModelConfig config;
  config.layers = layers;
  config.head_dim = head_dim;
  return config;
}

TEST(KvChoice, Defaults) {
  const KvChoice choice = Choice({});
  EXPECT_EQ(choice.type, std::nullopt);
  EXPECT_EQ(choice.limit_bytes, std::nullopt);
  EXPECT_EQ(choice.dense_layers, std::nullopt);
  EXPECT_EQ(choice.projection, ProjectionKind::kPair);
  EXPECT_EQ(choice.skew_file, "");
  const KvMethod& method = choice.method;
  EXPECT_EQ(method.preset, "infinigen");
  EXPECT_EQ(method.select, SelectKind::kSketch);
  EXPECT_EQ(method.from, GuessSource::kSelf);
  EXPECT_EQ(method.rule.alpha, kDefaultAlpha);
  EXPECT_EQ(method.rule.cap, kDefaultCap);
  EXPECT_EQ(method.rule.min_rows, kDefaultMinRows);
  EXPECT_EQ(method.rule.sinks, kDefaultSinks);
  EXPECT_EQ(method.rule.window, kDefaultWindow);
  EXPECT_EQ(method.rule.force_count, 0);
  EXPECT_EQ(method.sketch_type, SketchType::kInt8);
  EXPECT_FALSE(method.mean_counts || method.prompt_columns || method.measure_mass);
}

TEST(KvChoice, EveryFlagArrives) {
  const KvChoice choice = Choice({"--kv-alpha",
                                  "2.5",
                                  "--kv-cap",
                                  "5%",
                                  "--kv-min",
                                  "7",
                                  "--kv-sinks",
                                  "1",
                                  "--kv-window",
                                  "9",
                                  "--kv-from",
                                  "prev-mid",
                                  "--kv-counts",
                                  "mean",
                                  "--kv-dense-layers",
                                  "3",
                                  "--kv-ratio",
                                  "25%",
                                  "--kv-sketch-type",
                                  "int4",
                                  "--kv-columns",
                                  "prompt",
                                  "--kv-projection",
                                  "none",
                                  "--kv-skew",
                                  "a.skew",
                                  "--kv-type",
                                  "bf16",
                                  "--kv-limit",
                                  "1.5MiB",
                                  "--kv-force-count",
                                  "11",
                                  "--mass-recall",
                                  "--kv-evict",
                                  "none",
                                  "--kv-home",
                                  "host",
                                  "--kv-hot",
                                  "0"});
  EXPECT_EQ(choice.type, StoreType::kBF16);
  EXPECT_EQ(choice.limit_bytes, 1572864u);
  EXPECT_EQ(choice.dense_layers, 3);
  EXPECT_EQ(choice.projection, ProjectionKind::kNone);
  EXPECT_EQ(choice.skew_file, "a.skew");
  const KvMethod& method = choice.method;
  EXPECT_EQ(method.rule.alpha, 2.5f);
  EXPECT_EQ(method.rule.cap, 0.05);
  EXPECT_EQ(method.rule.min_rows, 7);
  EXPECT_EQ(method.rule.sinks, 1);
  EXPECT_EQ(method.rule.window, 9);
  EXPECT_EQ(method.rule.force_count, 11);
  EXPECT_EQ(method.from, GuessSource::kPrevMid);
  EXPECT_EQ(method.sketch_type, SketchType::kInt4);
  EXPECT_FLOAT_EQ(static_cast<float>(method.ratio), 0.25f);
  EXPECT_TRUE(method.mean_counts && method.prompt_columns && method.measure_mass);
  EXPECT_TRUE(std::isinf(Choice({"--kv-alpha", "inf"}).method.rule.alpha));
  EXPECT_EQ(Choice({"--kv-cap", "1"}).method.rule.cap, 1.0f);
  EXPECT_EQ(Choice({"--kv-cap", "0.05"}).method.rule.cap, 0.05);
  EXPECT_EQ(Choice({"--kv-projection", "pair"}).projection, ProjectionKind::kPair);
  EXPECT_EQ(Choice({"--kv-sketch-type", "bf16"}).method.sketch_type, SketchType::kBF16);
  EXPECT_EQ(Choice({"--kv-from", "prev-layer"}).method.from, GuessSource::kPrevLayer);
  EXPECT_EQ(Choice({"--kv-from", "prev-step"}).method.from, GuessSource::kPrevStep);
}

TEST(KvChoice, PresetsAndTheAxisThatOverridesThem) {
  EXPECT_EQ(Choice({"--kv", "full"}).method.select, SelectKind::kAll);
  EXPECT_EQ(Choice({"--kv", "oracle"}).method.select, SelectKind::kOracle);
  EXPECT_EQ(Choice({"--kv-select", "all"}).method.select, SelectKind::kAll);
  EXPECT_EQ(Choice({"--kv-select", "oracle"}).method.select, SelectKind::kOracle);
  EXPECT_EQ(Choice({"--kv", "quest"}).method.select, SelectKind::kQuest);
  EXPECT_EQ(Choice({"--kv-select", "quest"}).method.select, SelectKind::kQuest);
  EXPECT_EQ(Choice({"--kv", "quest", "--kv-select", "sketch"}).method.select, SelectKind::kSketch);
  EXPECT_EQ(Choice({"--kv", "full", "--kv-select", "sketch"}).method.select, SelectKind::kSketch);
  EXPECT_EQ(Choice({"--kv", "full", "--kv-select", "sketch"}).method.preset, "full") << "as the user calls it";
  Line line;
  ASSERT_EQ(line.Parse({"--kv", "oracle,full,infinigen"}, /*list=*/true), std::nullopt);
  std::vector<std::string_view> names;
  const std::vector<KvChoice> choices = ResolveKvList(line.kv).value();
  for (const KvChoice& choice : choices) names.push_back(choice.method.preset);
  EXPECT_THAT(names, ElementsAre("oracle", "full", "infinigen"));
}

TEST(KvChoice, StoredTypes) {
  for (const StoreType type : kStoreTypes)
    for (const char* preset : {"full", "infinigen", "oracle", "int8", "int4"}) {
      const KvChoice choice = Choice({"--kv", preset, "--kv-type", std::string(Name(type))});
      EXPECT_EQ(choice.type, type) << preset;
      EXPECT_EQ(choice.method.preset, preset);
    }
  EXPECT_EQ(Choice({"--kv-type", "auto"}).type, std::nullopt);
  EXPECT_EQ(Choice({"--kv", "int8"}).type, StoreType::kInt8);
  EXPECT_EQ(Choice({"--kv", "int4"}).type, StoreType::kInt4);
  EXPECT_EQ(Choice({"--kv", "int4"}).method.select, SelectKind::kAll);
  EXPECT_EQ(Choice({"--kv", "int8", "--kv-select", "sketch"}).method.select, SelectKind::kSketch);
  EXPECT_EQ(Choice({"--kv", "infinigen", "--kv-type", "int8"}).method.select, SelectKind::kSketch);
  Line line;
  ASSERT_EQ(line.Parse({"--kv", "int8,full,int4"}, /*list=*/true), std::nullopt);
  const std::vector<KvChoice> choices = ResolveKvList(line.kv).value();
  EXPECT_EQ(choices[0].type, StoreType::kInt8);
  EXPECT_EQ(choices[1].type, std::nullopt) << "a preset's type is its own";
  EXPECT_EQ(choices[2].type, StoreType::kInt4);
}

// Its own where no flag says otherwise, even one that says what is the default of others.
TEST(KvChoice, QuestIsAsPublished) {
  const SelectRule published = Choice({"--kv", "quest"}).method.rule;
  EXPECT_TRUE(std::isinf(published.alpha));
  EXPECT_EQ(published.cap, kDefaultCap);
  EXPECT_EQ(published.sinks, 0);
  EXPECT_EQ(published.window, 0);
  EXPECT_EQ(published.min_rows, 48) << "three pages";
  EXPECT_EQ(FitMethod(Choice({"--kv", "quest"}), ModelOf(12, 64), 8192)->dense_layers, 2);
  EXPECT_EQ(FitMethod(Choice({"--kv", "quest"}), ModelOf(12, 64), 8192)->page(), 16);
  EXPECT_EQ(FitMethod(Choice({}), ModelOf(12, 64), 8192)->page(), 1);
  const KvChoice given = Choice({"--kv", "quest", "--kv-alpha", "5", "--kv-sinks", "4", "--kv-window", "576",
                                 "--kv-min", "256", "--kv-dense-layers", "0", "--kv-cap", "5%"});
  EXPECT_EQ(given.method.rule.alpha, 5.0f);
  EXPECT_EQ(given.method.rule.cap, 0.05);
  EXPECT_EQ(given.method.rule.sinks, 4);
  EXPECT_EQ(given.method.rule.window, 576);
  EXPECT_EQ(given.method.rule.min_rows, 256);
  EXPECT_EQ(given.dense_layers, 0);
  const SelectRule axis = Choice({"--kv-select", "quest"}).method.rule;
  EXPECT_EQ(axis.window, kDefaultWindow) << "one axis changes one thing";
}

TEST(KvChoice, UnknownWordsAreUsage) {
  const std::vector<std::pair<Arguments, std::string>> cases = {
      {{"--kv", "nosuch"}, "full|infinigen|oracle"},
      {{"--kv", ""}, "'' is unknown"},
      {{"--kv", "full,infinigen"}, "'full,infinigen' is unknown"},
      {{"--kv-select", "some"}, "all|sketch|quest|oracle"},
      {{"--kv-evict", "whoever"}, "none|counter|lru|fifo|h2o|streaming|random"},
      {{"--kv-from", "next"}, "self|prev-layer|prev-mid|prev-step"},
      {{"--kv-counts", "median"}, "ragged|mean"},
      {{"--kv-type", "f64"}, "auto|f32|f16|bf16|int8|int4"},
      {{"--kv-sketch-type", "f32"}, "bf16|int8|int4"},
      {{"--kv-projection", "svd"}, "rotation|pair|none"},
      {{"--kv-columns", "all"}, "fixed|prompt"},
      {{"--kv-home", "moon"}, "host|device|disk:PATH"},
      {{"--kv-alpha", "-1"}, "'-1' is neither a number of at least 0 nor inf"},
      {{"--kv-alpha", "nan"}, "'nan'"},
      {{"--kv-alpha", "5x"}, "'5x'"},
      {{"--kv-cap", "1.5"}, "'1.5' is not a share"},
      {{"--kv-cap", "101%"}, "'101%' is not a share"},
      {{"--kv-cap", "%"}, "'%' is not a share"},
      {{"--kv-cap", ""}, "'' is not a share"},
      {{"--kv-ratio", "0"}, "above 0"},
      {{"--kv-ratio", "2"}, "'2' is not a share"},
      {{"--kv-min", "-1"}, "too small"},
      {{"--kv-sinks", "many"}, "'many' is not a whole number"},
      {{"--kv-window", "2147483648"}, "too large"},
      {{"--kv-dense-layers", "-1"}, "too small"},
      {{"--kv-limit", "many"}, "many"},
      {{"--kv-limit", "0%"}, "'0%' is not a share"},
      {{"--kv-hot", "warm"}, "warm"},
      {{"--kv-hot", "0.5x"}, "'0.5x' is not 1x or more"},
      {{"--kv-hot", "x"}, "'x' is not 1x or more"},
      {{"--kv-force-count", "0"}, "too small"},
      {{"--kv-force-hits", "1.5"}, "too large"},
  };
  for (const auto& [arguments, expected] : cases) {
    Line line;
    EXPECT_EQ(line.Parse(arguments), kExitUsage) << arguments[0] << " " << arguments[1];
    EXPECT_THAT(line.said, AllOf(HasSubstr(expected), HasSubstr(arguments[0]))) << arguments[1];
    EXPECT_EQ(std::count(line.said.begin(), line.said.end(), '\n'), 1) << line.said;
  }
  Line list;
  EXPECT_EQ(list.Parse({"--kv", "full,,infinigen"}, /*list=*/true), kExitUsage);
}

TEST(KvChoice, WhatThisVersionLacksIsRefusedByName) {
  EXPECT_THAT(Refusal({"--kv-home", "disk:/tmp"}), HasSubstr("--kv-home disk:/tmp"));
  // What only a GPU has is refused where the device is known (cli/launch.cc).
  EXPECT_EQ(Refusal({"--kv-hot", "1GiB"}), "");
  EXPECT_EQ(Refusal({"--kv-hot", "2x"}), "");
  EXPECT_THAT(Refusal({"--kv-hot", "2x", "--kv-force-hits", "0.8"}), HasSubstr("--kv-hot 0"));
  EXPECT_EQ(Refusal({"--kv-force-hits", "0.8"}), "");
  EXPECT_THAT(Refusal({"--kv-force-hits", "1"}), HasSubstr("below 1"));
  EXPECT_EQ(Refusal({"--kv-home", "device"}), "");
  EXPECT_THAT(Refusal({"--kv-hot", "1GiB", "--kv-force-hits", "0.8"}), HasSubstr("--kv-hot 0"));
}

TEST(KvChoice, WhatContradictsItselfIsRefused) {
  for (const char* source : {"prev-layer", "prev-mid", "prev-step"}) {
    EXPECT_THAT(Refusal({"--kv-from", source, "--kv-dense-layers", "0"}),
                AllOf(HasSubstr(source), HasSubstr("--kv-dense-layers 1")));
    EXPECT_EQ(Refusal({"--kv-from", source, "--kv-dense-layers", "1"}), "");
    EXPECT_EQ(Refusal({"--kv", "full", "--kv-from", source, "--kv-dense-layers", "0"}), "") << "nobody guesses";
  }
  EXPECT_EQ(Refusal({"--kv-from", "self", "--kv-dense-layers", "0"}), "");
  EXPECT_THAT(Refusal({"--kv-columns", "prompt", "--kv-projection", "pair"}), HasSubstr("--kv-projection rotation"));
  EXPECT_EQ(Refusal({"--kv", "full", "--kv-columns", "prompt", "--kv-projection", "pair"}), "");
  EXPECT_THAT(Refusal({"--kv", "quest", "--kv-columns", "prompt"}), HasSubstr("--kv-columns prompt"));
  EXPECT_THAT(Refusal({"--kv", "full,quest", "--kv-columns", "prompt"}, /*list=*/true), HasSubstr("quest"));
  EXPECT_THAT(Refusal({"--kv", "quest", "--kv-from", "prev-mid", "--kv-dense-layers", "0"}), HasSubstr("prev-mid"));
  EXPECT_EQ(Refusal({"--kv", "quest", "--mass-recall"}), "");
}

// ---- who leaves ----

TEST(KvChoice, PresetsThatEvict) {
  const KvChoice h2o = Choice({"--kv", "h2o"});
  EXPECT_EQ(h2o.method.retain, &kRetainH2o);
  EXPECT_EQ(h2o.method.select, SelectKind::kAll);
  EXPECT_EQ(h2o.method.limit.share, 0.2) << "nothing without a limit";
  EXPECT_EQ(h2o.method.rule.sinks, 0) << "as published";
  const KvChoice streaming = Choice({"--kv", "streaming", "--kv-limit", "10%"});
  EXPECT_EQ(streaming.method.retain, &kRetainStreaming);
  EXPECT_EQ(streaming.method.limit.share, 0.1);
  EXPECT_EQ(streaming.method.rule.sinks, 4);
  EXPECT_EQ(Choice({}).method.retain, nullptr) << "without a limit all stay";
  EXPECT_EQ(Choice({"--kv-limit", "80%"}).method.retain, &kRetainCounter);
  EXPECT_EQ(Choice({"--kv-limit", "80%"}).limit_bytes, std::nullopt) << "follows from the length";
  EXPECT_EQ(Choice({"--kv-limit", "80%", "--kv-evict", "lru"}).method.retain, &kRetainLru);
  EXPECT_EQ(Choice({"--kv", "h2o", "--kv-evict", "none"}).method.retain, nullptr);
}

TEST(KvChoice, ALimitInBytesEvictsOrRefuses) {
  const KvChoice evicts = Choice({"--kv-limit", "8MiB", "--kv-evict", "counter"});
  EXPECT_EQ(evicts.method.retain, &kRetainCounter);
  EXPECT_EQ(evicts.method.limit.bytes, 8u << 20);
  EXPECT_EQ(evicts.limit_bytes, 8u << 20);
  EXPECT_EQ(Choice({"--kv", "streaming", "--kv-limit", "8MiB"}).method.limit.bytes, 8u << 20);
  const KvChoice refuses = Choice({"--kv-limit", "8MiB"});
  EXPECT_EQ(refuses.method.retain, nullptr) << "nobody asked for other answers";
  EXPECT_EQ(refuses.limit_bytes, 8u << 20);
  EXPECT_EQ(Choice({"--kv", "full", "--kv-limit", "8MiB"}).method.retain, nullptr);
}

TEST(KvChoice, EvictionThatMakesNoSenseIsRefused) {
  EXPECT_THAT(Refusal({"--kv-evict", "lru"}), HasSubstr("--kv-limit"));
  EXPECT_THAT(Refusal({"--kv", "full", "--kv-limit", "20%"}), HasSubstr("--kv-evict"));
  EXPECT_EQ(Refusal({"--kv", "full,h2o", "--kv-limit", "20%"}, /*list=*/true), "") << "meant for the second";
  for (const char* policy : {"counter", "lru"})
    EXPECT_THAT(Refusal({"--kv", "full", "--kv-limit", "20%", "--kv-evict", policy}), HasSubstr("--kv-select all"));
  EXPECT_EQ(Refusal({"--kv", "full", "--kv-limit", "20%", "--kv-evict", "fifo"}), "");
  EXPECT_EQ(Refusal({"--kv", "int8", "--kv-limit", "20%", "--kv-evict", "h2o"}), "") << "axes are independent";
  EXPECT_THAT(Refusal({"--kv-limit", "20%", "--kv-evict", "h2o"}), HasSubstr("--kv-select all"));
  EXPECT_THAT(Refusal({"--kv", "quest", "--kv-limit", "20%", "--kv-evict", "fifo"}), HasSubstr("page"));
  EXPECT_THAT(Refusal({"--kv-limit", "20%", "--kv-columns", "prompt"}), HasSubstr("--kv-columns prompt"));
}

// ---- fitted to a model ----

TEST(FitMethod, SketchAndDenseLayers) {
  EXPECT_EQ(FitMethod(Choice({}), ModelOf(12, 64), 8192)->sketch_dims, 24);
  EXPECT_EQ(FitMethod(Choice({}), ModelOf(12, 128), 8192)->sketch_dims, 40);
  EXPECT_EQ(FitMethod(Choice({"--kv-ratio", "1"}), ModelOf(12, 64), 8192)->sketch_dims, 64);
  EXPECT_EQ(FitMethod(Choice({}), ModelOf(12, 64), 8192)->dense_layers, 0);
  for (const char* source : {"prev-layer", "prev-mid", "prev-step"})
    EXPECT_EQ(FitMethod(Choice({"--kv-from", source}), ModelOf(12, 64), 8192)->dense_layers, 2) << source;
  EXPECT_EQ(FitMethod(Choice({"--kv-dense-layers", "5"}), ModelOf(12, 64), 8192)->dense_layers, 5);
}

TEST(FitMethod, WhoEvictsSelectsHoweverShortTheContext) {
  EXPECT_EQ(FitMethod(Choice({}), ModelOf(4, 64), 300)->select, SelectKind::kAll);
  EXPECT_EQ(FitMethod(Choice({"--kv-limit", "80%"}), ModelOf(4, 64), 300)->select, SelectKind::kSketch);
  EXPECT_FALSE(FitMethod(Choice({"--kv", "h2o", "--kv-dense-layers", "4"}), ModelOf(4, 64), 300).ok());
}

TEST(FitMethod, AForcedCountHoldsSinksAndWindow) {
  const auto rule = [](const char* count) {
    return FitMethod(Choice({"--kv-force-count", count}), ModelOf(4, 64), 8192)->rule;
  };
  EXPECT_EQ(rule("819").window, kDefaultWindow);
  EXPECT_EQ(rule("100").sinks, kDefaultSinks);
  EXPECT_EQ(rule("100").window, 95) << "4 sinks, 95 in the window, the current token";
  EXPECT_EQ(rule("1").sinks, 0);
  EXPECT_EQ(rule("1").window, 0);
}

TEST(KvChoice, APromptChoosesAmongColumnsOfTheRotation) {
  EXPECT_EQ(Choice({"--kv-columns", "prompt"}).projection, ProjectionKind::kRotation);
  EXPECT_EQ(Choice({"--kv-columns", "prompt", "--kv-projection", "none"}).projection, ProjectionKind::kNone);
}

TEST(FitMethod, WhereNothingCanBeLeftOutNothingIsSelected) {
  const auto select = [](const Arguments& arguments, int64_t max_tokens) {
    return FitMethod(Choice(arguments), ModelOf(4, 64), max_tokens)->select;
  };
  EXPECT_EQ(select({}, 581), SelectKind::kAll) << "4 sinks, 576 in the window, the current token";
  EXPECT_EQ(select({}, 582), SelectKind::kSketch);
  EXPECT_EQ(select({"--kv-min", "600"}, 600), SelectKind::kAll);
  EXPECT_EQ(select({"--kv-min", "600"}, 601), SelectKind::kSketch);
  EXPECT_EQ(select({"--kv-force-count", "5"}, 10), SelectKind::kSketch) << "a benchmark gets what it asks for";
  EXPECT_EQ(select({"--kv-dense-layers", "3"}, 8192), SelectKind::kSketch);
  EXPECT_EQ(select({"--kv-dense-layers", "4"}, 8192), SelectKind::kAll);
  EXPECT_EQ(select({"--kv-window", "2147483647", "--kv-sinks", "2147483647"}, 8192), SelectKind::kAll) << "no overflow";
  EXPECT_EQ(select({"--kv", "oracle"}, 8192), SelectKind::kOracle);
}

}  // namespace
}  // namespace infinigen
