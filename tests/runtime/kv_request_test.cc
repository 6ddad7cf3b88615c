// The KV flags: accepted and refused values, and the method that results.
#include "runtime/kv_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "runtime/run_options.h"

namespace infinigen {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

using Arguments = std::vector<std::string>;

// A caller's options, one by one.
struct Line {
  KvRequest request;
  std::vector<const KvPreset*> presets = {FindPreset("infinigen")};

  // The error of the first wrong value, with its option; empty: none.
  std::string Parse(const Arguments& arguments, bool list = false) {
    for (size_t i = 0; i < arguments.size(); ++i) {
      const std::string name = arguments[i].substr(2);
      if (name == "kv") {
        if (std::string wrong = ParsePresets(arguments[++i], list, &presets); !wrong.empty()) return "--kv: " + wrong;
        continue;
      }
      const auto option =
          std::find_if(KvOptions().begin(), KvOptions().end(), [&](const auto& o) { return o.name == name; });
      if (option == KvOptions().end()) return "no option " + name;
      const std::string value = option->meta.empty() ? "" : arguments[++i];
      if (std::string wrong = option->set(value, &request); !wrong.empty()) return "--" + name + ": " + wrong;
    }
    return {};
  }
  std::vector<KvRequest> Requests() const {
    std::vector<KvRequest> requests;
    for (const KvPreset* preset : presets) {
      requests.push_back(request);
      requests.back().preset = preset;
      requests.back().one_of_several = presets.size() > 1;
    }
    return requests;
  }
};

KvRequest Request(const Arguments& arguments) {
  Line line;
  EXPECT_EQ(line.Parse(arguments), "");
  const KvRequest request = line.Requests()[0];
  const Status fine = CheckKvRequest(request);
  EXPECT_TRUE(fine.ok()) << (fine.ok() ? "" : fine.error().message);
  return request;
}

std::string Refusal(const Arguments& arguments, bool list = false) {
  Line line;
  EXPECT_EQ(line.Parse(arguments, list), "");
  for (const KvRequest& request : line.Requests())
    if (const Status fine = CheckKvRequest(request); !fine.ok()) return fine.error().message;
  return {};
}

ModelConfig ModelOf(int64_t layers, int64_t head_dim) {
  ModelConfig config;
  config.head_dim = head_dim;
  config.SetLayers(layers, PlainLayer(head_dim));
  return config;
}

Result<KvMethod> Resolve(const Arguments& arguments, const ModelConfig& config, int64_t max_tokens) {
  return ResolveMethod(Request(arguments), {.config = config, .max_tokens = max_tokens});
}

// The method for a model and context that allow every request.
KvMethod Method(const Arguments& arguments) { return Resolve(arguments, ModelOf(12, 64), 8192).value(); }

TEST(KvRequest, Defaults) {
  const KvRequest request = Request({});
  EXPECT_EQ(request.store_type(), std::nullopt);
  EXPECT_EQ(request.pool_limit(), std::nullopt);
  EXPECT_EQ(request.projection_kind(), ProjectionKind::kPair);
  EXPECT_EQ(request.skew_file, "");
  const KvMethod method = Method({});
  EXPECT_EQ(method.preset, "infinigen");
  EXPECT_EQ(method.select, &kSelectSketch);
  EXPECT_EQ(method.from, GuessSource::kSelf);
  EXPECT_EQ(method.rule.alpha, kDefaultAlpha);
  EXPECT_EQ(method.rule.cap, kTailCap);
  EXPECT_EQ(method.rule.min_rows, kTailMinRows);
  EXPECT_EQ(method.rule.whole_rows, kTailWholeRows);
  EXPECT_EQ(method.rule.sinks, kDefaultSinks);
  EXPECT_EQ(method.rule.window, kTailWindow);
  EXPECT_EQ(method.rule.force_count, 0);
  EXPECT_TRUE(method.rule.tail && method.has_tail());
  EXPECT_EQ(method.rule.mass, 0.0f);
  EXPECT_EQ(method.sketch.type, SketchType::kInt4);
  EXPECT_EQ(method.sketch.dims, 56);
  EXPECT_EQ(method.sketch.scale_dims, 0);
  EXPECT_EQ(method.sketch.value_dims, kTailValueDims);
  EXPECT_EQ(method.sketch.mean_dims, 64);
  EXPECT_FALSE(method.mean_counts || method.prompt_columns || method.measure_mass);
}

TEST(KvRequest, EveryFlagArrives) {
  const Arguments arguments = {"--kv-alpha",
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
                               "0"};
  const KvRequest choice = Request(arguments);
  EXPECT_EQ(choice.store_type(), StoreType::kBF16);
  EXPECT_EQ(choice.pool_limit(), 1572864u);
  EXPECT_EQ(choice.skew_file, "a.skew");
  const KvMethod method = Method(arguments);
  EXPECT_EQ(method.dense_layers, 3);
  EXPECT_EQ(method.projection, ProjectionKind::kNone);
  EXPECT_EQ(method.rule.alpha, 2.5f);
  EXPECT_EQ(method.rule.cap, 0.05);
  EXPECT_EQ(method.rule.min_rows, 7);
  EXPECT_EQ(method.rule.sinks, 1);
  EXPECT_EQ(method.rule.window, 9);
  EXPECT_EQ(method.rule.force_count, 11);
  EXPECT_EQ(method.from, GuessSource::kPrevMid);
  EXPECT_EQ(method.sketch.type, SketchType::kInt4);
  EXPECT_FLOAT_EQ(static_cast<float>(method.ratio), 0.25f);
  EXPECT_TRUE(method.mean_counts && method.prompt_columns && method.measure_mass);
  EXPECT_TRUE(std::isinf(Method({"--kv-alpha", "inf"}).rule.alpha));
  EXPECT_EQ(Method({"--kv-cap", "1"}).rule.cap, 1.0f);
  EXPECT_EQ(Method({"--kv-cap", "0.05"}).rule.cap, 0.05);
  EXPECT_EQ(Method({"--kv-projection", "pair"}).projection, ProjectionKind::kPair);
  EXPECT_EQ(Method({"--kv-sketch-type", "bf16"}).sketch.type, SketchType::kBF16);
  EXPECT_EQ(Method({"--kv-from", "prev-layer"}).from, GuessSource::kPrevLayer);
  EXPECT_EQ(Method({"--kv-from", "prev-step"}).from, GuessSource::kPrevStep);
}

TEST(KvRequest, PresetsAndTheAxisThatOverridesThem) {
  EXPECT_EQ(Method({"--kv", "full"}).select, &kSelectAll);
  EXPECT_EQ(Method({"--kv", "oracle"}).select, &kSelectOracle);
  EXPECT_EQ(Method({"--kv-select", "all"}).select, &kSelectAll);
  EXPECT_EQ(Method({"--kv-select", "oracle"}).select, &kSelectOracle);
  EXPECT_EQ(Method({"--kv", "quest"}).select, &kSelectQuest);
  EXPECT_EQ(Method({"--kv-select", "quest"}).select, &kSelectQuest);
  EXPECT_EQ(Method({"--kv", "quest", "--kv-select", "sketch"}).select, &kSelectSketch);
  EXPECT_EQ(Method({"--kv", "full", "--kv-select", "sketch"}).select, &kSelectSketch);
  EXPECT_EQ(Method({"--kv", "full", "--kv-select", "sketch"}).preset, "full") << "as the user calls it";
  Line line;
  ASSERT_EQ(line.Parse({"--kv", "oracle,full,infinigen"}, /*list=*/true), "");
  std::vector<std::string_view> names;
  for (const KvPreset* preset : line.presets) names.push_back(preset->name);
  EXPECT_THAT(names, ElementsAre("oracle", "full", "infinigen"));
}

TEST(KvRequest, StoredTypes) {
  for (const StoreType type : kStoreTypes)
    for (const char* preset : {"full", "infinigen", "oracle", "int8", "int4"}) {
      const KvRequest request = Request({"--kv", preset, "--kv-type", std::string(Name(type))});
      EXPECT_EQ(request.store_type(), type) << preset;
      EXPECT_EQ(request.preset->name, preset);
    }
  EXPECT_EQ(Request({"--kv-type", "auto"}).store_type(), std::nullopt);
  EXPECT_EQ(Request({"--kv", "int8"}).store_type(), StoreType::kInt8);
  EXPECT_EQ(Request({"--kv", "int4"}).store_type(), StoreType::kInt4);
  EXPECT_EQ(Method({"--kv", "int4"}).select, &kSelectAll);
  EXPECT_EQ(Method({"--kv", "int8", "--kv-select", "sketch"}).select, &kSelectSketch);
  EXPECT_EQ(Method({"--kv", "infinigen", "--kv-type", "int8"}).select, &kSelectSketch);
  Line line;
  ASSERT_EQ(line.Parse({"--kv", "int8,full,int4"}, /*list=*/true), "");
  const std::vector<KvRequest> requests = line.Requests();
  EXPECT_EQ(requests[0].store_type(), StoreType::kInt8);
  EXPECT_EQ(requests[1].store_type(), std::nullopt) << "a preset's type is its own";
  EXPECT_EQ(requests[2].store_type(), StoreType::kInt4);
}

TEST(KvRequest, LateRows) {
  for (const char* from : {"prev-layer", "prev-mid", "prev-step"}) {
    EXPECT_EQ(Method({"--kv-from", from}).rule.late, kTailLateRows);
    const KvMethod method = Method({"--kv-late", "7", "--kv-from", from});
    EXPECT_EQ(method.rule.late, 7);
    EXPECT_TRUE(method.has_late());
    EXPECT_FALSE(Method({"--kv-late", "0", "--kv-from", from}).has_late());
    EXPECT_FALSE(Method({"--kv-tail", "off", "--kv-from", from}).has_late());
  }
  EXPECT_FALSE(Method({}).has_late()) << "nothing is guessed";
  EXPECT_THAT(Refusal({"--kv-late", "16", "--kv-from", "self"}), HasSubstr("--kv-from self"));
  const Result<KvMethod> unnamed = Resolve({"--kv-late", "16"}, ModelOf(12, 64), 8192);
  ASSERT_FALSE(unnamed.ok()) << "self is the default where nothing is fetched";
  EXPECT_THAT(unnamed.error().message, HasSubstr("--kv-from self"));
  EXPECT_THAT(Refusal({"--kv-late", "16", "--kv-tail", "off", "--kv-from", "prev-mid"}), HasSubstr("--kv-tail off"));
  for (const Arguments& arguments : std::vector<Arguments>{{"--kv", "quest"},
                                                           {"--kv", "oracle"},
                                                           {"--kv-select", "page-mean"},
                                                           {"--kv", "full"},
                                                           {"--kv-projection", "none"}}) {
    Arguments asked = arguments;
    asked.insert(asked.end(), {"--kv-late", "16", "--kv-from", "prev-layer"});
    EXPECT_THAT(Refusal(asked), HasSubstr("--kv-late 16")) << arguments.back();
  }
}

TEST(KvRequest, Tails) {
  const KvMethod off = Method({"--kv-tail", "off"});
  EXPECT_FALSE(off.rule.tail || off.has_tail());
  EXPECT_EQ(off.rule.cap, kDefaultCap);
  EXPECT_EQ(off.rule.window, kDefaultWindow);
  EXPECT_EQ(off.rule.min_rows, kDefaultMinRows);
  EXPECT_EQ(off.rule.whole_rows, 0);
  EXPECT_EQ(off.sketch.type, SketchType::kInt8);
  EXPECT_EQ(off.sketch.scale_dims, 0);
  EXPECT_EQ(off.sketch.value_dims, 0);
  for (const Arguments& arguments : std::vector<Arguments>{{"--kv", "quest"},
                                                           {"--kv", "oracle"},
                                                           {"--kv", "full"},
                                                           {"--kv-projection", "none"},
                                                           {"--kv-columns", "prompt"}}) {
    EXPECT_FALSE(Method(arguments).rule.tail) << arguments.back();
    Arguments asked = arguments;
    asked.insert(asked.end(), {"--kv-tail", "on"});
    EXPECT_THAT(Refusal(asked), HasSubstr("--kv-tail on")) << arguments.back();
  }
  const KvMethod mass = Method({"--kv-mass", "0.95"});
  EXPECT_EQ(mass.rule.mass, 0.95f);
  EXPECT_TRUE(std::isinf(mass.rule.alpha));
  EXPECT_EQ(mass.rule.cap, kMassCap);
  EXPECT_EQ(Method({"--kv-mass", "95%", "--kv-cap", "10%"}).rule.cap, 0.1);
  EXPECT_GT(Method({"--kv-mass", "1e-50"}).rule.mass, 0.0f) << "0 is no mass at all";
  EXPECT_THAT(Refusal({"--kv-mass", "0.9", "--kv-alpha", "4"}), HasSubstr("--kv-alpha"));
  EXPECT_THAT(Refusal({"--kv-mass", "0.9", "--kv-counts", "mean"}), HasSubstr("--kv-counts"));
  EXPECT_THAT(Refusal({"--kv-mass", "0.9", "--kv", "quest"}), HasSubstr("no sketches"));
}

TEST(KvRequest, SketchesByOneDescription) {
  const auto sketch = [](const char* text) { return Resolve({"--kv-sketch", text}, ModelOf(12, 64), 8192)->sketch; };
  EXPECT_EQ(sketch("48x4/16").dims, 48);
  EXPECT_EQ(sketch("48x4/16").scale_dims, 16);
  EXPECT_EQ(sketch("3/4x4/16").dims, 48);
  EXPECT_EQ(sketch("0.3x8").dims, 24);
  EXPECT_EQ(sketch("24x8").type, SketchType::kInt8);
  EXPECT_EQ(sketch("24x8").scale_dims, 0);
  EXPECT_EQ(sketch("16x16").type, SketchType::kBF16);
  EXPECT_EQ(sketch("500x4").dims, 64) << "at most the whole key";
  EXPECT_EQ(sketch("16x4/16").scale_dims, 0) << "one group is one scale";
  for (const char* text : {"48", "x4", "48x5", "48x4/", "48x4/7", "0x4", "3/0x4", "5/4x4", "48x4/16/2", "-8x4"})
    EXPECT_NE(Line().Parse({"--kv-sketch", text}), "") << text;
  EXPECT_THAT(Refusal({"--kv-sketch", "24x8", "--kv-ratio", "0.3"}), HasSubstr("--kv-sketch"));
}

// Quest keeps its own values unless a flag sets them, even if the flag's value is the default of other presets.
TEST(KvRequest, QuestIsAsPublished) {
  const SelectRule published = Method({"--kv", "quest"}).rule;
  EXPECT_TRUE(std::isinf(published.alpha));
  EXPECT_EQ(published.cap, kDefaultCap);
  EXPECT_EQ(published.sinks, 0);
  EXPECT_EQ(published.window, 0);
  EXPECT_EQ(published.min_rows, 48) << "three pages";
  EXPECT_EQ(Resolve({"--kv", "quest"}, ModelOf(12, 64), 8192)->dense_layers, 2);
  EXPECT_EQ(Resolve({"--kv", "quest"}, ModelOf(12, 64), 8192)->select->page_rows, 16);
  EXPECT_EQ(Resolve({}, ModelOf(12, 64), 8192)->select->page_rows, 1);
  const KvMethod given = Method({"--kv", "quest", "--kv-alpha", "5", "--kv-sinks", "4", "--kv-window", "576",
                                 "--kv-min", "256", "--kv-dense-layers", "0", "--kv-cap", "5%"});
  EXPECT_EQ(given.rule.alpha, 5.0f);
  EXPECT_EQ(given.rule.cap, 0.05);
  EXPECT_EQ(given.rule.sinks, 4);
  EXPECT_EQ(given.rule.window, 576);
  EXPECT_EQ(given.rule.min_rows, 256);
  EXPECT_EQ(given.dense_layers, 0);
  const SelectRule axis = Method({"--kv-select", "quest"}).rule;
  EXPECT_EQ(axis.window, kDefaultWindow) << "one axis changes one thing";
}

TEST(KvRequest, UnknownWordsAreRefusedWhereTheyAreRead) {
  const std::vector<std::pair<Arguments, std::string>> cases = {
      {{"--kv", "nosuch"}, "full|infinigen|oracle"},
      {{"--kv", ""}, "'' is unknown"},
      {{"--kv", "full,infinigen"}, "'full,infinigen' is unknown"},
      {{"--kv-select", "some"}, "all|sketch|quest|page-mean|oracle"},
      {{"--kv-evict", "whoever"}, "none|counter|lru|fifo|h2o|streaming|random"},
      {{"--kv-from", "next"}, "self|prev-layer|prev-mid|prev-step"},
      {{"--kv-counts", "median"}, "ragged|mean"},
      {{"--kv-type", "f64"}, "auto|f32|f16|bf16|int8|int4"},
      {{"--kv-sketch-type", "f32"}, "bf16|int8|int4"},
      {{"--kv-projection", "svd"}, "rotation|pair|none"},
      {{"--kv-columns", "all"}, "fixed|prompt"},
      {{"--kv-home", "moon"}, "it can be host|device"},
      {{"--kv-alpha", "-1"}, "'-1' is not a number of at least 0, nor inf"},
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
      {{"--kv-hot", "0.5x"}, "'0.5x' is not a factor of at least 1x"},
      {{"--kv-hot", "x"}, "'x' is not a factor of at least 1x"},
      {{"--kv-force-count", "0"}, "too small"},
      {{"--kv-force-hits", "1.5"}, "too large"},
  };
  for (const auto& [arguments, expected] : cases) {
    EXPECT_THAT(Line().Parse(arguments), AllOf(HasSubstr(expected), HasSubstr(arguments[0]))) << arguments[1];
  }
  EXPECT_THAT(Line().Parse({"--kv", "full,,infinigen"}, /*list=*/true), HasSubstr("'' is unknown"));
}

TEST(KvRequest, WhatThisVersionLacksIsRefusedByName) {
  EXPECT_THAT(Refusal({"--kv-home", "disk:/tmp"}), HasSubstr("--kv-home disk:/tmp"));
  // Options that need a GPU are refused later, when the device is known (runtime/plan.cc).
  EXPECT_EQ(Refusal({"--kv-hot", "1GiB"}), "");
  EXPECT_EQ(Refusal({"--kv-hot", "2x"}), "");
  EXPECT_THAT(Refusal({"--kv-hot", "2x", "--kv-force-hits", "0.8"}), HasSubstr("--kv-hot 0"));
  EXPECT_EQ(Refusal({"--kv-force-hits", "0.8"}), "");
  EXPECT_THAT(Refusal({"--kv-force-hits", "1"}), HasSubstr("below 1"));
  EXPECT_EQ(Refusal({"--kv-home", "device"}), "");
  EXPECT_THAT(Refusal({"--kv-hot", "1GiB", "--kv-force-hits", "0.8"}), HasSubstr("--kv-hot 0"));
}

TEST(KvRequest, WhatContradictsItselfIsRefused) {
  for (const char* source : {"prev-layer", "prev-mid", "prev-step"}) {
    EXPECT_THAT(Refusal({"--kv-from", source, "--kv-dense-layers", "0"}),
                AllOf(HasSubstr(source), HasSubstr("--kv-dense-layers 1")));
    EXPECT_EQ(Refusal({"--kv-from", source, "--kv-dense-layers", "1"}), "");
    EXPECT_EQ(Refusal({"--kv", "full", "--kv-from", source, "--kv-dense-layers", "0"}), "") << "full never guesses";
  }
  EXPECT_EQ(Refusal({"--kv-from", "self", "--kv-dense-layers", "0"}), "");
  EXPECT_THAT(Refusal({"--kv-columns", "prompt", "--kv-projection", "pair"}), HasSubstr("--kv-projection rotation"));
  EXPECT_EQ(Refusal({"--kv", "full", "--kv-columns", "prompt", "--kv-projection", "pair"}), "");
  EXPECT_THAT(Refusal({"--kv", "quest", "--kv-columns", "prompt"}), HasSubstr("--kv-columns prompt"));
  EXPECT_THAT(Refusal({"--kv", "full,quest", "--kv-columns", "prompt"}, /*list=*/true), HasSubstr("quest"));
  EXPECT_THAT(Refusal({"--kv", "quest", "--kv-from", "prev-mid", "--kv-dense-layers", "0"}), HasSubstr("prev-mid"));
  EXPECT_EQ(Refusal({"--kv", "quest", "--mass-recall"}), "");
}

// ---- eviction ----

TEST(KvRequest, PresetsThatEvict) {
  const KvMethod h2o = Method({"--kv", "h2o"});
  EXPECT_EQ(h2o.retain, &kRetainH2o);
  EXPECT_EQ(h2o.select, &kSelectAll);
  EXPECT_EQ(h2o.limit.share, 0.2) << "nothing without a limit";
  EXPECT_EQ(h2o.rule.sinks, 0) << "as published";
  const KvMethod streaming = Method({"--kv", "streaming", "--kv-limit", "10%"});
  EXPECT_EQ(streaming.retain, &kRetainStreaming);
  EXPECT_EQ(streaming.limit.share, 0.1);
  EXPECT_EQ(streaming.rule.sinks, 4);
  EXPECT_EQ(Method({}).retain, nullptr) << "without a limit nothing is evicted";
  EXPECT_EQ(Method({"--kv-limit", "80%"}).retain, &kRetainCounter);
  EXPECT_EQ(Request({"--kv-limit", "80%"}).pool_limit(), std::nullopt) << "follows from the length";
  EXPECT_EQ(Method({"--kv-limit", "80%", "--kv-evict", "lru"}).retain, &kRetainLru);
  EXPECT_EQ(Method({"--kv", "h2o", "--kv-evict", "none"}).retain, nullptr);
}

TEST(KvRequest, ALimitInBytesEvictsOrRefuses) {
  const Arguments arguments = {"--kv-limit", "8MiB", "--kv-evict", "counter"};
  EXPECT_EQ(Method(arguments).retain, &kRetainCounter);
  EXPECT_EQ(Method(arguments).limit.bytes, 8u << 20);
  EXPECT_EQ(Request(arguments).pool_limit(), 8u << 20);
  EXPECT_EQ(Method({"--kv", "streaming", "--kv-limit", "8MiB"}).limit.bytes, 8u << 20);
  EXPECT_EQ(Method({"--kv-limit", "8MiB"}).retain, nullptr) << "no eviction was asked for";
  EXPECT_EQ(Request({"--kv-limit", "8MiB"}).pool_limit(), 8u << 20);
  EXPECT_EQ(Method({"--kv", "full", "--kv-limit", "8MiB"}).retain, nullptr);
}

TEST(KvRequest, EvictionThatMakesNoSenseIsRefused) {
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

TEST(ResolveMethod, SketchAndDenseLayers) {
  EXPECT_EQ(Resolve({"--kv-tail", "off"}, ModelOf(12, 64), 8192)->sketch.dims, 24);
  EXPECT_EQ(Resolve({"--kv-tail", "off"}, ModelOf(12, 128), 8192)->sketch.dims, 40);
  EXPECT_EQ(Resolve({}, ModelOf(12, 64), 8192)->sketch.dims, 56);
  EXPECT_EQ(Resolve({}, ModelOf(12, 128), 8192)->sketch.dims, 112);
  EXPECT_EQ(Resolve({"--kv-ratio", "1"}, ModelOf(12, 64), 8192)->sketch.dims, 64);
  EXPECT_EQ(Resolve({}, ModelOf(12, 64), 8192)->dense_layers, 0);
  for (const char* source : {"prev-layer", "prev-mid", "prev-step"})
    EXPECT_EQ(Resolve({"--kv-from", source}, ModelOf(12, 64), 8192)->dense_layers, 2) << source;
  EXPECT_EQ(Resolve({"--kv-dense-layers", "5"}, ModelOf(12, 64), 8192)->dense_layers, 5);
}

TEST(ResolveMethod, WhoEvictsSelectsHoweverShortTheContext) {
  EXPECT_EQ(Resolve({}, ModelOf(4, 64), 300)->select, &kSelectAll);
  EXPECT_EQ(Resolve({"--kv-limit", "80%"}, ModelOf(4, 64), 300)->select, &kSelectSketch);
  EXPECT_FALSE(Resolve({"--kv", "h2o", "--kv-dense-layers", "4"}, ModelOf(4, 64), 300).ok());
}

TEST(ResolveMethod, AForcedCountHoldsSinksAndWindow) {
  const auto rule = [](const char* count) { return Resolve({"--kv-force-count", count}, ModelOf(4, 64), 8192)->rule; };
  EXPECT_EQ(rule("819").window, kTailWindow);
  EXPECT_EQ(rule("50").sinks, kDefaultSinks);
  EXPECT_EQ(rule("50").window, 45) << "4 sinks, 45 in the window, the current token";
  EXPECT_EQ(rule("1").sinks, 0);
  EXPECT_EQ(rule("1").window, 0);
}

TEST(KvRequest, APromptChoosesAmongColumnsOfTheRotation) {
  EXPECT_EQ(Method({"--kv-columns", "prompt"}).projection, ProjectionKind::kRotation);
  EXPECT_EQ(Method({"--kv-columns", "prompt", "--kv-projection", "none"}).projection, ProjectionKind::kNone);
}

// Layers with a window keep only that, so a model of such layers runs every method as `full`.
TEST(ResolveMethod, NoMethodAppliesToLayersWithAWindow) {
  ModelConfig config = ModelOf(4, 64);
  config.specs[0].window = config.specs[1].window = config.specs[3].window = 512;
  EXPECT_EQ(Resolve({}, config, 8192)->select, &kSelectSketch);
  EXPECT_EQ(Resolve({"--kv-dense-layers", "3"}, config, 8192)->select, &kSelectAll);
  EXPECT_NE(Resolve({"--kv-evict", "lru", "--kv-limit", "50%"}, config, 8192)->retain, nullptr);
  EXPECT_FALSE(Resolve({"--kv-evict", "lru", "--kv-limit", "50%", "--kv-dense-layers", "3"}, config, 8192).ok());
  config.specs[2].window = 512;
  EXPECT_EQ(Resolve({}, config, 8192)->select, &kSelectAll);
  EXPECT_EQ(Resolve({"--kv-evict", "lru", "--kv-limit", "50%"}, config, 8192)->retain, nullptr);
}

TEST(ResolveMethod, WhereNothingCanBeLeftOutNothingIsSelected) {
  const auto select = [](const Arguments& arguments, int64_t max_tokens) {
    return Resolve(arguments, ModelOf(4, 64), max_tokens)->select;
  };
  EXPECT_EQ(select({"--kv-tail", "off"}, 581), &kSelectAll) << "4 sinks, 576 in the window, the current token";
  EXPECT_EQ(select({"--kv-tail", "off"}, 582), &kSelectSketch);
  EXPECT_EQ(select({}, 1024), &kSelectAll) << "short caches are attended to whole";
  EXPECT_EQ(select({}, 1025), &kSelectSketch);
  EXPECT_EQ(select({"--kv-min", "32"}, 69), &kSelectAll) << "4 sinks, 64 in the window, this token";
  EXPECT_EQ(select({"--kv-min", "32"}, 70), &kSelectSketch);
  EXPECT_EQ(select({"--kv-min", "600"}, 600), &kSelectAll);
  EXPECT_EQ(select({"--kv-min", "600"}, 601), &kSelectSketch);
  EXPECT_EQ(select({"--kv-force-count", "5"}, 10), &kSelectSketch) << "a forced count is never ignored";
  EXPECT_EQ(select({"--kv-dense-layers", "3"}, 8192), &kSelectSketch);
  EXPECT_EQ(select({"--kv-dense-layers", "4"}, 8192), &kSelectAll);
  EXPECT_EQ(select({"--kv-window", "2147483647", "--kv-sinks", "2147483647"}, 8192), &kSelectAll) << "no overflow";
  EXPECT_EQ(select({"--kv", "oracle"}, 8192), &kSelectOracle);
}

}  // namespace
}  // namespace infinigen
