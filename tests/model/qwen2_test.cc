// Qwen2's config.json: what is read, what is refused, and the published sizes. Its logits are in tests/golden.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "loader/model_files.h"
#include "model/config_reader.h"
#include "model/family.h"

namespace infinigen {
namespace {

using nlohmann::json;
using test::MessageOf;
using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

// The fields that Qwen/Qwen2.5-0.5B publishes, with small sizes and a window that begins inside the model.
json Qwen2() {
  return json::parse(R"({
    "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2,
    "hidden_act": "silu", "hidden_size": 8, "initializer_range": 0.02, "intermediate_size": 6,
    "max_position_embeddings": 64, "max_window_layers": 2, "model_type": "qwen2", "num_attention_heads": 4,
    "num_hidden_layers": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
    "sliding_window": 32, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
    "transformers_version": "4.40.1", "use_cache": true, "use_mrope": false, "use_sliding_window": false,
    "vocab_size": 20})");
}

Result<ModelConfig> ParseQwen2(const json& config) { return ParseModelConfig(config.dump(), "config.json"); }

// Qwen2() with the fields of `changes`; empty when it is accepted.
std::string Qwen2RefusalOf(const json& changes) {
  json config = Qwen2();
  config.update(changes);
  return MessageOf(ParseQwen2(config));
}

TEST(Qwen2, IsLlamaWithBiasesOnQueryKeyAndValue) {
  const Result<ModelConfig> config = ParseQwen2(Qwen2());
  ASSERT_TRUE(config.ok()) << MessageOf(config);
  EXPECT_EQ(config->family_name(), "qwen2");
  EXPECT_EQ(config->kv_heads, 2);
  EXPECT_EQ(config->head_dim, 2);
  EXPECT_EQ(config->ffn, 6);
  EXPECT_EQ(config->embed_dim, 8);
  EXPECT_TRUE(config->tied_embeddings);
  EXPECT_EQ(config->dtype, DType::kBF16);
  EXPECT_THAT(config->ropes, testing::ElementsAre(RopeConfig{.base = 1e6}));
  LayerSpec spec = PlainLayer(2);
  spec.qkv_bias = true;
  EXPECT_THAT(config->specs, Each(spec)) << "no bias on o, and no window while use_sliding_window is false";
  EXPECT_EQ(std::ssize(config->specs), 4);
  EXPECT_EQ(config->final_norm, spec.norm);
}

TEST(Qwen2, ReadsWhatTransformers5Writes) {
  json config = Qwen2();
  for (const char* old_spelling : {"rope_theta", "torch_dtype", "use_mrope"}) config.erase(old_spelling);
  config.update({{"rope_parameters", {{"rope_theta", 5e5}, {"rope_type", "default"}}},
                 {"dtype", "bfloat16"},
                 {"sliding_window", nullptr},
                 {"layer_types", json(4, "full_attention")},
                 {"head_dim", 6},
                 {"pad_token_id", nullptr},
                 {"tie_word_embeddings", false}});
  const Result<ModelConfig> parsed = ParseQwen2(config);
  ASSERT_TRUE(parsed.ok()) << MessageOf(parsed);
  EXPECT_EQ(parsed->ropes[0].base, 5e5);
  EXPECT_EQ(parsed->head_dim, 6);
  EXPECT_FALSE(parsed->tied_embeddings);
}

TEST(Qwen2, DefaultsAreThoseOfTransformers) {
  json config = Qwen2();
  for (const char* name : {"rms_norm_eps", "rope_theta", "hidden_act", "tie_word_embeddings", "use_sliding_window",
                           "sliding_window", "max_window_layers"})
    config.erase(name);
  const Result<ModelConfig> parsed = ParseQwen2(config);
  ASSERT_TRUE(parsed.ok()) << MessageOf(parsed);
  EXPECT_EQ(parsed->specs[0].norm.eps, 1e-6f);
  EXPECT_EQ(parsed->ropes[0].base, 10000.0);
  EXPECT_FALSE(parsed->tied_embeddings);
  // The window is 4096, from layer 28 on, once it is switched on.
  config["use_sliding_window"] = true;
  EXPECT_EQ(MessageOf(ParseQwen2(config)), "");
  config["num_hidden_layers"] = 29;
  const Result<ModelConfig> windowed = ParseQwen2(config);
  ASSERT_TRUE(windowed.ok()) << MessageOf(windowed);
  EXPECT_EQ(windowed->window(), 0) << "the model has fewer positions";
  config["max_position_embeddings"] = 8192;
  EXPECT_EQ(ParseQwen2(config)->specs[28].window, 4096);
  EXPECT_EQ(ParseQwen2(config)->specs[27].window, 0);
}

TEST(Qwen2, ReadsWindows) {
  json switched = Qwen2();
  switched.update({{"use_sliding_window", true}});
  EXPECT_EQ(ParseQwen2(switched)->specs[2].window, 32);
  EXPECT_EQ(ParseQwen2(switched)->specs[1].window, 0);
  EXPECT_EQ(Qwen2RefusalOf({{"use_sliding_window", true}, {"max_window_layers", 4}}), "");
  EXPECT_EQ(Qwen2RefusalOf({{"use_sliding_window", true}, {"sliding_window", nullptr}}), "");
  EXPECT_THAT(Qwen2RefusalOf({{"use_sliding_window", true}, {"sliding_window", 0}}),
              HasSubstr("'sliding_window' is 0"));
  EXPECT_THAT(Qwen2RefusalOf({{"use_sliding_window", true}, {"max_window_layers", -1}}),
              HasSubstr("'max_window_layers' must be from 0"));
  EXPECT_THAT(Qwen2RefusalOf({{"use_sliding_window", 1}}), HasSubstr("expected true or false"));
  EXPECT_THAT(Qwen2RefusalOf({{"layer_types", {"full_attention", "sliding_attention"}}}), HasSubstr("'layer_types'"));
}

TEST(Qwen2, RefusesWhatIsNotComputed) {
  EXPECT_THAT(Qwen2RefusalOf({{"hidden_act", "gelu"}}), HasSubstr("'hidden_act'"));
  EXPECT_THAT(Qwen2RefusalOf({{"use_mrope", true}}), HasSubstr("'use_mrope'"));
  EXPECT_THAT(Qwen2RefusalOf({{"attention_bias", false}}), HasSubstr("'attention_bias'")) << "Qwen2 has no such field";
  EXPECT_THAT(Qwen2RefusalOf({{"architectures", {"Qwen2ForSequenceClassification"}}}),
              HasSubstr("supported is Qwen2ForCausalLM"));
  EXPECT_THAT(Qwen2RefusalOf({{"model_type", "qwen2_moe"}}), HasSubstr("is a mixture of experts"));
}

TEST(Qwen2, ShapesHaveThePublishedParameterCounts) {
  const std::pair<const char*, int64_t> published[] = {{"qwen2.5-0.5b", 494032768},  {"qwen2.5-1.5b", 1543714304},
                                                       {"qwen2.5-3b", 3085938688},   {"qwen2.5-7b", 7615616512},
                                                       {"qwen2.5-14b", 14770033664}, {"qwen2.5-32b", 32763876352}};
  for (const auto& [name, count] : published) {
    const Result<ModelConfig> shape = ShapeByName(name);
    ASSERT_TRUE(shape.ok()) << MessageOf(shape);
    EXPECT_EQ(ParameterCount(*shape), count) << name;
  }
}

}  // namespace
}  // namespace infinigen
