// Families that differ from Llama in a few fields: Qwen3, Mistral, SmolLM3, Phi-3, Gemma 2 and 3. Configs as they are
// published, in the spellings of several versions of transformers; what is refused; sizes of the published shapes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "model/config_reader.h"
#include "model/family.h"

namespace infinigen {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

json FamilyConfig(const char* type, json more) {
  json config = {{"model_type", type},       {"vocab_size", 100},
                 {"hidden_size", 64},        {"num_hidden_layers", 4},
                 {"num_attention_heads", 4}, {"num_key_value_heads", 2},
                 {"intermediate_size", 48},  {"max_position_embeddings", 512}};
  config.update(more);
  return config;
}
Result<ModelConfig> ParseFamily(const char* type, json more = json::object()) {
  return ParseModelConfig(FamilyConfig(type, std::move(more)).dump(), "config.json");
}
std::string FamilyRefusal(const char* type, json more) {
  const Result<ModelConfig> config = ParseFamily(type, std::move(more));
  return config.ok() ? "" : config.error().message;
}
std::vector<int64_t> WindowsOf(const ModelConfig& config) {
  std::vector<int64_t> windows;
  for (const LayerSpec& spec : config.specs) windows.push_back(spec.window);
  return windows;
}
std::vector<int32_t> RopesOf(const ModelConfig& config) {
  std::vector<int32_t> ropes;
  for (const LayerSpec& spec : config.specs) ropes.push_back(spec.rope);
  return ropes;
}

TEST(Qwen3, HasHeadNormsAndItsOwnHeadDim) {
  const Result<ModelConfig> config = ParseFamily("qwen3", {{"rope_theta", 1e6}, {"tie_word_embeddings", true}});
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->head_dim, 128) << "the default of transformers, not hidden / heads";
  EXPECT_EQ(config->specs[3].qk_norm, QkNorm::kHead);
  EXPECT_FALSE(config->specs[0].qkv_bias);
  EXPECT_TRUE(config->tied_embeddings);
  EXPECT_EQ(config->ropes[0].base, 1e6);
  EXPECT_THAT(WindowsOf(*config), ElementsAre(0, 0, 0, 0));
  const Result<ModelConfig> biased = ParseFamily("qwen3", {{"attention_bias", true}, {"head_dim", 16}});
  ASSERT_TRUE(biased.ok());
  EXPECT_TRUE(biased->specs[0].qkv_bias && biased->specs[0].o_bias);
}

TEST(Qwen3, ReadsYarn) {
  json yarn = {{"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 128}};
  const Result<ModelConfig> config = ParseFamily("qwen3", {{"rope_theta", 1e4}, {"rope_scaling", yarn}});
  ASSERT_TRUE(config.ok()) << config.error().message;
  const RopeConfig& rope = config->ropes[0];
  EXPECT_EQ(rope.scaling, RopeScaling::kYarn);
  EXPECT_EQ(rope.high_freq_factor, 32.0);
  EXPECT_EQ(rope.low_freq_factor, 1.0);
  EXPECT_NEAR(rope.magnitude, 0.1 * std::log(4.0) + 1, 1e-12);
  // The first planes turn often over 128 positions and are unchanged, the last ones are slowed down by the factor.
  const std::vector<float> scaled = RopeInverseFrequencies(rope, 64, 512), plain = RopeInverseFrequencies({}, 64, 512);
  EXPECT_EQ(scaled.front(), plain.front());
  EXPECT_NEAR(scaled.back() * 4, plain.back(), 1e-7f * plain.back());
  EXPECT_LT(scaled[10], plain[10]);
  EXPECT_GT(scaled[10] * 4, plain[10]);
  yarn.update({{"attention_factor", 1.5}, {"beta_fast", 16}, {"beta_slow", 2}, {"truncate", false}});
  const Result<ModelConfig> stated = ParseFamily("qwen3", {{"rope_scaling", yarn}});
  ASSERT_TRUE(stated.ok()) << stated.error().message;
  EXPECT_EQ(stated->ropes[0].magnitude, 1.5);
  EXPECT_FALSE(stated->ropes[0].truncate);
  yarn["beta_slow"] = 16;
  EXPECT_THAT(FamilyRefusal("qwen3", {{"rope_scaling", yarn}}), HasSubstr("more than beta_slow"));
  yarn.erase("factor");
  EXPECT_THAT(FamilyRefusal("qwen3", {{"rope_scaling", yarn}}), HasSubstr("'rope_scaling.factor' is missing"));
}

TEST(Mistral, HasAWindowUnlessItIsNull) {
  const Result<ModelConfig> stated = ParseFamily("mistral", {{"sliding_window", 128}});
  ASSERT_TRUE(stated.ok()) << stated.error().message;
  EXPECT_THAT(WindowsOf(*stated), ElementsAre(128, 128, 128, 128));
  const Result<ModelConfig> none = ParseFamily("mistral", {{"sliding_window", nullptr}, {"head_dim", nullptr}});
  ASSERT_TRUE(none.ok());
  EXPECT_EQ(none->window(), 0);
  EXPECT_EQ(none->head_dim, 16);
  // The default of 4096 is more than 512 positions: without effect.
  EXPECT_EQ(ParseFamily("mistral")->window(), 0);
  EXPECT_EQ(ParseFamily("mistral", {{"max_position_embeddings", 32768}})->window(), 4096);
  EXPECT_THAT(FamilyRefusal("mistral", {{"sliding_window", 0}}), HasSubstr("'sliding_window' is 0"));
  EXPECT_THAT(FamilyRefusal("mistral", {{"layer_types", {"full_attention", "chunked_attention"}}}),
              HasSubstr("'layer_types'"));
}

TEST(SmolLm3, SkipsRopeInSomeLayers) {
  EXPECT_THAT(RopesOf(*ParseFamily("smollm3")), ElementsAre(0, 0, 0, LayerSpec::kNoRope));
  EXPECT_THAT(RopesOf(*ParseFamily("smollm3", {{"no_rope_layer_interval", 2}})),
              ElementsAre(0, LayerSpec::kNoRope, 0, LayerSpec::kNoRope));
  // 1 means that the layer rotates.
  EXPECT_THAT(RopesOf(*ParseFamily("smollm3", {{"no_rope_layers", {0, 1, 1, 0}}})),
              ElementsAre(LayerSpec::kNoRope, 0, 0, LayerSpec::kNoRope));
  EXPECT_EQ(ParseFamily("smollm3")->ropes[0].base, 2e6);
  EXPECT_TRUE(ParseFamily("smollm3")->tied_embeddings);
  EXPECT_THAT(FamilyRefusal("smollm3", {{"no_rope_layers", {1, 1}}}), HasSubstr("'no_rope_layers'"));
  EXPECT_THAT(FamilyRefusal("smollm3", {{"no_rope_layers", {1, 1, 2, 1}}}), HasSubstr("'no_rope_layers'"));
}

TEST(Phi3, ReadsLongRope) {
  const std::vector<float> near(8, 1.5f), far = {1, 2, 3, 4, 5, 6, 7, 8};
  json rope = {{"type", "longrope"}, {"short_factor", near}, {"long_factor", far}};
  const json more = {{"rope_scaling", rope}, {"original_max_position_embeddings", 128}, {"sliding_window", 262144}};
  const Result<ModelConfig> config = ParseFamily("phi3", more);
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->window(), 0) << "no position leaves it";
  EXPECT_EQ(config->ropes[0].frequency_divisors, near);
  EXPECT_EQ(config->ropes[0].long_divisors, far);
  EXPECT_NEAR(config->ropes[0].magnitude, std::sqrt(1 + std::log(4.0) / std::log(128.0)), 1e-12);
  const std::vector<float> plain = RopeInverseFrequencies({}, 16, 0);
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(RopeInverseFrequencies(config->ropes[0], 16, 128)[i], plain[i] / 1.5f);
    EXPECT_EQ(RopeInverseFrequencies(config->ropes[0], 16, 129)[i], plain[i] / far[i]);
  }
  rope["type"] = "su";
  EXPECT_EQ(ParseFamily("phi3", {{"rope_scaling", rope}})->ropes[0].long_divisors, far);
  rope["long_factor"] = {1, 2, 3};
  EXPECT_THAT(FamilyRefusal("phi3", {{"rope_scaling", rope}}),
              AllOf(HasSubstr("'rope_scaling.long_factor'"), HasSubstr("8 numbers above 0")));
  rope["long_factor"] = {1, 2, 3, 4, 5, 6, 7, -1};
  EXPECT_THAT(FamilyRefusal("phi3", {{"rope_scaling", rope}}), HasSubstr("8 numbers above 0"));
}

TEST(Phi3, RotatesAPartOfAHead) {
  const Result<ModelConfig> config = ParseFamily("phi3", {{"partial_rotary_factor", 0.75}});
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->ropes[0].rotary_dims, 12);
  EXPECT_EQ(RopeInverseFrequencies(config->ropes[0], 16, 0).size(), 6u);
  EXPECT_EQ(ParseFamily("phi3", {{"rope_parameters", {{"rope_theta", 1e4}, {"partial_rotary_factor", 0.5}}}})
                ->ropes[0]
                .rotary_dims,
            8);
  EXPECT_EQ(ParseFamily("phi3")->ropes[0].rotary_dims, 0);
  EXPECT_THAT(FamilyRefusal("phi3", {{"partial_rotary_factor", 0.7}}), HasSubstr("rotates 11 of 16"));
  EXPECT_THAT(FamilyRefusal("phi3", {{"partial_rotary_factor", 1e300}}), HasSubstr("'partial_rotary_factor'"));
  EXPECT_THAT(FamilyRefusal("phi3", {{"attention_bias", true}}), HasSubstr("'attention_bias'"));
}

TEST(Gemma2, HasCapsScalesAndAlternatingWindows) {
  const Result<ModelConfig> config = ParseFamily(
      "gemma2", {{"head_dim", 32}, {"query_pre_attn_scalar", 25}, {"sliding_window", 64}, {"hidden_act", "gelu"}});
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_THAT(WindowsOf(*config), ElementsAre(64, 0, 64, 0));
  EXPECT_FLOAT_EQ(config->specs[1].attention_scale, 0.2f);
  EXPECT_EQ(config->specs[1].attention_soft_cap, 50);
  EXPECT_EQ(config->logit_soft_cap, 30);
  EXPECT_EQ(config->embedding_scale, 8);
  EXPECT_EQ(config->norm_offset, 1);
  EXPECT_EQ(config->specs[0].norm_placement, NormPlacement::kBothSides);
  EXPECT_EQ(config->specs[0].mlp.activation, Activation::kGeluTanh);
  EXPECT_TRUE(config->tied_embeddings);
  const Result<ModelConfig> other = ParseFamily(
      "gemma2", {{"attn_logit_softcapping", nullptr},
                 {"final_logit_softcapping", nullptr},
                 {"sliding_window", 64},
                 {"layer_types", {"full_attention", "sliding_attention", "full_attention", "full_attention"}}});
  ASSERT_TRUE(other.ok()) << other.error().message;
  EXPECT_EQ(other->specs[0].attention_soft_cap, 0);
  EXPECT_EQ(other->logit_soft_cap, 0);
  EXPECT_THAT(WindowsOf(*other), ElementsAre(0, 64, 0, 0));
  EXPECT_THAT(FamilyRefusal("gemma2", {{"hidden_activation", "gelu"}}), HasSubstr("'hidden_activation'"));
  EXPECT_THAT(FamilyRefusal("gemma2", {{"use_bidirectional_attention", true}}), HasSubstr("bidirectional"));
  EXPECT_THAT(FamilyRefusal("gemma2", {{"final_logit_softcapping", -1}}), HasSubstr("above 0"));
  EXPECT_THAT(FamilyRefusal("gemma2", {{"final_logit_softcapping", 1e300}}), HasSubstr("expected a number from"));
  EXPECT_THAT(FamilyRefusal("gemma2", {{"query_pre_attn_scalar", 1e300}}), HasSubstr("expected a number from"));
}

TEST(Gemma3, HasTwoRopesAndSixLayersPerGlobalOne) {
  json more = {{"num_hidden_layers", 7},
               {"rope_theta", 1e6},
               {"rope_local_base_freq", 1e4},
               {"sliding_window", 64},
               {"sliding_window_pattern", 6},
               {"head_dim", 16},
               {"rope_scaling", {{"rope_type", "linear"}, {"factor", 8.0}}}};
  const Result<ModelConfig> config = ParseFamily("gemma3_text", more);
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_THAT(WindowsOf(*config), ElementsAre(64, 64, 64, 64, 64, 0, 64));
  EXPECT_THAT(RopesOf(*config), ElementsAre(1, 1, 1, 1, 1, 0, 1));
  EXPECT_EQ(config->ropes[0].base, 1e6);
  EXPECT_EQ(config->ropes[0].factor, 8);
  EXPECT_EQ(config->ropes[1], RopeConfig());
  EXPECT_EQ(config->specs[0].qk_norm, QkNorm::kHead);
  EXPECT_EQ(config->specs[0].attention_soft_cap, 0);
  // transformers 5 says the same in another way.
  for (const char* old : {"rope_theta", "rope_local_base_freq", "rope_scaling", "sliding_window_pattern"})
    more.erase(old);
  more["layer_types"] = json(std::vector<std::string>(7, "sliding_attention"));
  more["layer_types"][5] = "full_attention";
  more["rope_parameters"] = {{"full_attention", {{"rope_type", "linear"}, {"factor", 8.0}, {"rope_theta", 1e6}}},
                             {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 1e4}}}};
  const Result<ModelConfig> same = ParseFamily("gemma3_text", more);
  ASSERT_TRUE(same.ok()) << same.error().message;
  EXPECT_EQ(same->ropes, config->ropes);
  EXPECT_EQ(same->specs, config->specs);
  more["rope_parameters"]["chunked_attention"] = json::object();
  EXPECT_THAT(FamilyRefusal("gemma3_text", more), HasSubstr("chunked_attention"));
}

TEST(Families, OtherKindsAreRefusedByName) {
  EXPECT_THAT(FamilyRefusal("mixtral", json::object()),
              AllOf(HasSubstr("\"mixtral\" is a mixture of experts"), HasSubstr("llama")));
  EXPECT_THAT(FamilyRefusal("qwen3_moe", json::object()), HasSubstr("is a mixture of experts, which is not supported"));
  for (const char* experts : {"deepseek_v3", "gpt_oss", "granitemoe", "phimoe", "qwen2_moe", "llama4_text"})
    EXPECT_THAT(FamilyRefusal(experts, json::object()), HasSubstr("is a mixture of experts, which is not supported"));
  for (const char* hybrid : {"jamba", "qwen3_next", "granitemoehybrid", "mamba2", "nemotron_h", "falcon_h1", "lfm2"})
    EXPECT_THAT(FamilyRefusal(hybrid, json::object()), HasSubstr("has layers without attention, which is not"));
  EXPECT_THAT(FamilyRefusal("gemma3", json::object()), HasSubstr("also takes images"));
}

TEST(Families, ShapesHaveThePublishedParameterCounts) {
  const std::pair<const char*, int64_t> published[] = {
      {"qwen3-0.6b", 596049920},          {"qwen3-1.7b", 1720574976}, {"qwen3-4b", 4022468096},
      {"qwen3-8b", 8190735360},           {"qwen3-14b", 14768307200}, {"qwen3-32b", 32762123264},
      {"mistral-7b-v0.1", 7241732096},    {"mistral-7b", 7248023552}, {"mistral-nemo-12b", 12247782400},
      {"mistral-small-24b", 23572403200}, {"smollm3-3b", 3075098624}, {"phi-3-mini-4k", 3821079552},
      {"phi-3-medium-4k", 13960238080},   {"phi-4", 14659507200},     {"phi-4-mini", 3836021760},
      {"gemma-2-2b", 2614341888},         {"gemma-2-9b", 9241705984}, {"gemma-2-27b", 27227128320},
      {"gemma-3-1b", 999885952},          {"gemma-3-4b", 3880263168}, {"gemma-3-12b", 11766034176},
      {"gemma-3-27b", 27009346304}};
  for (const auto& [name, count] : published) {
    const Result<ModelConfig> shape = ShapeByName(name);
    ASSERT_TRUE(shape.ok()) << shape.error().message;
    EXPECT_EQ(ParameterCount(*shape), count) << name;
  }
}

}  // namespace
}  // namespace infinigen
