#include "model/config_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "loader/model_files.h"
#include "model/family.h"

namespace infinigen {
namespace {

using nlohmann::json;
using test::MessageOf;
using test::TempDir;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

json Llama() { return json::parse(test::kTinyConfig); }

json Opt() {
  return json::parse(R"({"model_type": "opt", "vocab_size": 20, "hidden_size": 8, "ffn_dim": 16,
    "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 32})");
}

Result<ModelConfig> Parse(const json& config) { return ParseModelConfig(config.dump(), "config.json"); }

// `base` with one field set or added.
std::string RefusalOf(json base, const std::string& field, const json& value) {
  base[field] = value;
  const std::string message = MessageOf(Parse(base));
  EXPECT_EQ(message.find('\n'), std::string::npos);
  return message;
}

TEST(ConfigReader, ReadsLlama) {
  const Result<ModelConfig> config = Parse(Llama());
  ASSERT_TRUE(config.ok()) << MessageOf(config);
  EXPECT_EQ(config->family, FindFamily("llama"));
  EXPECT_EQ(config->vocab, 8);
  EXPECT_EQ(config->hidden, 4);
  EXPECT_EQ(config->ffn, 6);
  EXPECT_EQ(config->kv_heads, 1);
  EXPECT_EQ(config->head_dim, 2);
  EXPECT_EQ(config->specs[0].norm.eps, 1e-5f);
  EXPECT_TRUE(config->tied_embeddings);
  EXPECT_EQ(config->dtype, DType::kF32);
  EXPECT_THAT(config->eos_ids, ElementsAre(2));
  EXPECT_EQ(config->bos_id, 1);
  EXPECT_THAT(config->ropes, ElementsAre(RopeConfig{}));
}

TEST(ConfigReader, DefaultsAreThoseOfTransformers) {
  json llama = Llama();
  for (const char* name : {"num_key_value_heads", "tie_word_embeddings", "rms_norm_eps", "rope_theta", "hidden_act",
                           "eos_token_id", "torch_dtype", "architectures"})
    llama.erase(name);
  const Result<ModelConfig> config = Parse(llama);
  ASSERT_TRUE(config.ok()) << MessageOf(config);
  EXPECT_EQ(config->kv_heads, 2);
  EXPECT_FALSE(config->tied_embeddings);
  EXPECT_EQ(config->specs[0].norm.eps, 1e-6f);
  EXPECT_EQ(config->ropes[0].base, 10000.0);
  EXPECT_TRUE(config->eos_ids.empty());

  const Result<ModelConfig> opt = Parse(Opt());
  ASSERT_TRUE(opt.ok()) << MessageOf(opt);
  EXPECT_TRUE(opt->tied_embeddings);
  EXPECT_TRUE(opt->specs[0].qkv_bias && opt->specs[1].o_bias);
  EXPECT_EQ(opt->specs[0].norm_placement, NormPlacement::kBefore);
  EXPECT_EQ(opt->embed_dim, 8);
  EXPECT_EQ(opt->head_dim, 4);
}

TEST(ConfigReader, RefusesOtherArchitecturesByName) {
  EXPECT_THAT(
      RefusalOf(Llama(), "model_type", "gpt_neox"),
      AllOf(HasSubstr("\"gpt_neox\""),
            HasSubstr("supported are llama, opt, qwen2, qwen3, mistral, smollm3, phi3, gemma2 and gemma3_text")));
  EXPECT_THAT(RefusalOf(Llama(), "model_type", nullptr), HasSubstr("'model_type' is missing"));
  EXPECT_THAT(RefusalOf(Llama(), "model_type", 3), HasSubstr("'model_type' is 3"));
  EXPECT_THAT(RefusalOf(Llama(), "architectures", {"LlamaForSequenceClassification"}),
              HasSubstr("LlamaForSequenceClassification"));
  EXPECT_THAT(RefusalOf(Llama(), "architectures", "LlamaForCausalLM"), HasSubstr("expected a list"));
}

TEST(ConfigReader, RefusesUnknownFieldsByName) {
  EXPECT_THAT(RefusalOf(Llama(), "logit_softcapping", 30.0),
              AllOf(HasSubstr("'logit_softcapping'"), HasSubstr("30.0")));
  EXPECT_THAT(RefusalOf(Llama(), "auto_map", json::object()), HasSubstr("'auto_map'"));
  EXPECT_THAT(RefusalOf(Opt(), "rope_theta", 1e4), HasSubstr("'rope_theta'")) << "OPT has no such field";
  EXPECT_THAT(RefusalOf(Opt(), "line\nbreak", 1), HasSubstr("'line\\x0abreak'"));
}

TEST(ConfigReader, IgnoresFieldsThatDoNotChangeTheResult) {
  for (const char* name : {"use_cache", "transformers_version", "_name_or_path", "attention_dropout", "pretraining_tp",
                           "pad_token_id", "initializer_range", "top_k", "max_length", "output_attentions", "id2label"})
    EXPECT_EQ(RefusalOf(Llama(), name, 1), "") << name;
  for (const char* name : {"dropout", "layerdrop", "init_std", "prefix", "activation_dropout", "output_projection"})
    EXPECT_EQ(RefusalOf(Opt(), name, 1), "") << name;
}

// config.json of facebook/opt-13b and meta-llama/Llama-3.2-1B, with smaller sizes.
TEST(ConfigReader, ReadsPublishedFiles) {
  const Result<ModelConfig> opt = ParseModelConfig(R"({
    "_name_or_path": "facebook/opt-13b", "_remove_final_layer_norm": false, "activation_dropout": 0.0,
    "activation_function": "relu", "architectures": ["OPTForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 2,
    "do_layer_norm_before": true, "dropout": 0.1, "eos_token_id": 2, "ffn_dim": 80, "hidden_size": 20,
    "init_std": 0.02, "layerdrop": 0.0, "max_position_embeddings": 2048, "model_type": "opt",
    "num_attention_heads": 4, "num_hidden_layers": 4, "output_projection": true, "pad_token_id": 1,
    "prefix": "</s>", "torch_dtype": "float16", "transformers_version": "4.21.0.dev0", "use_cache": true,
    "vocab_size": 50272, "word_embed_proj_dim": 20})",
                                                   "config.json");
  EXPECT_EQ(MessageOf(opt), "");
  const Result<ModelConfig> llama = ParseModelConfig(R"({
    "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009], "head_dim": 64, "hidden_act": "silu", "hidden_size": 2048,
    "initializer_range": 0.02, "intermediate_size": 8192, "max_position_embeddings": 131072, "mlp_bias": false,
    "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8,
    "pretraining_tp": 1, "rms_norm_eps": 1e-05,
    "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                     "original_max_position_embeddings": 8192, "rope_type": "llama3"},
    "rope_theta": 500000.0, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
    "transformers_version": "4.45.0.dev0", "use_cache": true, "vocab_size": 128256})",
                                                     "config.json");
  ASSERT_EQ(MessageOf(llama), "");
  EXPECT_EQ(llama->ropes[0], (RopeConfig{500000.0, RopeScaling::kLlama3, 32.0, 1.0, 4.0, 8192}));
  EXPECT_THAT(llama->eos_ids, ElementsAre(128001, 128008, 128009));
}

TEST(ConfigReader, RefusesFeaturesThatChangeTheResult) {
  EXPECT_THAT(RefusalOf(Llama(), "hidden_act", "gelu"), AllOf(HasSubstr("'hidden_act'"), HasSubstr("\"silu\"")));
  EXPECT_THAT(RefusalOf(Opt(), "activation_function", "gelu"), HasSubstr("only \"relu\" is supported"));
  EXPECT_THAT(RefusalOf(Llama(), "quantization_config", {{"bits", 4}}), HasSubstr("quantised safetensors"));
  EXPECT_THAT(RefusalOf(Llama(), "sliding_window", 4096), HasSubstr("'sliding_window' is 4096"));
  EXPECT_EQ(RefusalOf(Llama(), "sliding_window", nullptr), "");
  EXPECT_THAT(RefusalOf(Llama(), "pruned_heads", {{"1", {0}}}), HasSubstr("pruned_heads"));
  EXPECT_EQ(RefusalOf(Llama(), "pruned_heads", json::object()), "");
  EXPECT_THAT(RefusalOf(Llama(), "rope_interleaved", true), HasSubstr("rope_interleaved"));
  EXPECT_THAT(RefusalOf(Llama(), "partial_rotary_factor", 0.5), HasSubstr("partial_rotary_factor"));
  EXPECT_EQ(RefusalOf(Llama(), "layer_types", {"full_attention"}), "");
  EXPECT_THAT(RefusalOf(Llama(), "layer_types", {"sliding_attention"}), HasSubstr("layer_types"));
}

TEST(ConfigReader, ChecksSizes) {
  for (const char* name : {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                           "max_position_embeddings"}) {
    json config = Llama();
    config.erase(name);
    EXPECT_THAT(MessageOf(Parse(config)), AllOf(HasSubstr(name), HasSubstr("is missing")));
    for (const json& bad : {json(0), json(-4), json(4.5), json("4"), json(true), json(1e30), json(INT64_MAX)})
      EXPECT_THAT(RefusalOf(Llama(), name, bad), AllOf(HasSubstr(name), HasSubstr("expected a whole number"))) << bad;
  }
  EXPECT_THAT(RefusalOf(Llama(), "num_key_value_heads", 3), HasSubstr("does not divide"));
  EXPECT_THAT(RefusalOf(Llama(), "head_dim", 3), HasSubstr("even"));
  EXPECT_EQ(RefusalOf(Llama(), "head_dim", 16), "");
  EXPECT_EQ(RefusalOf(Llama(), "head_dim", nullptr), "");
  EXPECT_THAT(RefusalOf(Opt(), "num_attention_heads", 3), HasSubstr("'hidden_size' 8 does not divide"));
}

TEST(ConfigReader, ChecksTypes) {
  EXPECT_THAT(RefusalOf(Llama(), "tie_word_embeddings", 1), HasSubstr("expected true or false"));
  EXPECT_THAT(RefusalOf(Llama(), "rms_norm_eps", 0.0), HasSubstr("expected a number above 0"));
  EXPECT_THAT(RefusalOf(Llama(), "rms_norm_eps", "x"), HasSubstr("expected a number above 0"));
  EXPECT_THAT(RefusalOf(Llama(), "torch_dtype", 3), HasSubstr("expected a string"));
  EXPECT_THAT(RefusalOf(Llama(), "eos_token_id", -1), HasSubstr("'eos_token_id' is -1"));
  EXPECT_THAT(RefusalOf(Llama(), "eos_token_id", {2, "x"}), HasSubstr("'eos_token_id'"));
  EXPECT_EQ(RefusalOf(Llama(), "eos_token_id", 8), "") << "cannot be generated, so it does no harm";
  EXPECT_EQ(RefusalOf(Llama(), "eos_token_id", {2, 3}), "");
}

TEST(ConfigReader, RefusesWhatIsNotAJsonObject) {
  for (const char* text : {"", "{", "[]", "3", "null", "{\"a\":}", "{} {}"})
    EXPECT_NE(MessageOf(ParseModelConfig(text, "config.json")), "") << text;
  EXPECT_THAT(MessageOf(ParseModelConfig(std::string_view("{}\0", 3), "config.json")), HasSubstr("zero byte"));
  const std::string deep = "{\"id2label\":" + std::string(1000, '[') + std::string(1000, ']') + "}";
  EXPECT_THAT(MessageOf(ParseModelConfig(deep, "config.json")), HasSubstr("nested deeper"));
}

Result<ModelConfig> WithRope(const char* field, const json& rope) {
  json config = Llama();
  config.erase("rope_scaling");
  config.erase("rope_theta");
  config[field] = rope;
  return Parse(config);
}

TEST(ModelConfigRope, OldAndNewSpellingSayTheSame) {
  const json llama3 = {
      {"factor", 8.0}, {"low_freq_factor", 1.0}, {"high_freq_factor", 4.0}, {"original_max_position_embeddings", 32}};
  json old_way = llama3;
  old_way["rope_type"] = "llama3";
  json new_way = old_way;
  new_way["rope_theta"] = 500000.0;
  json config = Llama();
  config["rope_theta"] = 500000.0;
  config["rope_scaling"] = old_way;
  const Result<ModelConfig> from_old = Parse(config);
  const Result<ModelConfig> from_new = WithRope("rope_parameters", new_way);
  ASSERT_TRUE(from_old.ok()) << MessageOf(from_old);
  ASSERT_TRUE(from_new.ok()) << MessageOf(from_new);
  EXPECT_EQ(from_old->ropes[0], from_new->ropes[0]);
  EXPECT_EQ(from_new->ropes[0], (RopeConfig{500000.0, RopeScaling::kLlama3, 8.0, 1.0, 4.0, 32}));

  const Result<ModelConfig> linear = WithRope("rope_scaling", {{"type", "linear"}, {"factor", 2}});
  ASSERT_TRUE(linear.ok()) << MessageOf(linear);
  EXPECT_EQ(linear->ropes[0].scaling, RopeScaling::kLinear);
  EXPECT_EQ(linear->ropes[0].factor, 2.0);
}

TEST(ModelConfigRope, RefusesByName) {
  EXPECT_THAT(MessageOf(WithRope("rope_scaling", {{"type", "dynamic"}, {"factor", 2.0}})),
              AllOf(HasSubstr("dynamic"), HasSubstr("default, linear, llama3, yarn and longrope")));
  EXPECT_THAT(MessageOf(WithRope("rope_scaling", {{"type", "linear"}, {"factor", 2.0}, {"beta_fast", 1}})),
              HasSubstr("'rope_scaling.beta_fast'"));
  EXPECT_THAT(MessageOf(WithRope("rope_scaling", {{"type", "linear"}})), HasSubstr("'rope_scaling.factor' is missing"));
  EXPECT_THAT(MessageOf(WithRope("rope_scaling", {{"type", "linear"}, {"factor", -2}})), HasSubstr("above 0"));
  EXPECT_THAT(MessageOf(WithRope("rope_scaling", {{"type", "linear"}, {"rope_type", "llama3"}, {"factor", 2}})),
              HasSubstr("'type' beside it"));
  EXPECT_THAT(MessageOf(WithRope("rope_scaling", "linear")), HasSubstr("expected an object"));
  EXPECT_THAT(
      MessageOf(WithRope("rope_parameters",
                         {{"rope_type", "llama3"}, {"factor", 8}, {"low_freq_factor", 4}, {"high_freq_factor", 4}})),
      HasSubstr("more than low_freq_factor"));
  EXPECT_THAT(MessageOf(WithRope("rope_parameters", {{"rope_type", "default"}, {"partial_rotary_factor", 0.5}})),
              HasSubstr("partial_rotary_factor"));
}

TEST(ModelConfigRope, RefusesContradictions) {
  json config = Llama();
  config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 500.0}};
  EXPECT_THAT(MessageOf(Parse(config)), HasSubstr("'rope_theta' is 10000"));
  config["rope_theta"] = 500.0;
  EXPECT_EQ(MessageOf(Parse(config)), "");
  config["rope_scaling"] = {{"type", "linear"}, {"factor", 2.0}};
  EXPECT_THAT(MessageOf(Parse(config)), HasSubstr("disagree"));
}

TEST(ConfigReader, GenerationConfigReplacesTheEndIds) {
  const TempDir dir;
  dir.Write("config.json", test::kTinyConfig);
  dir.Write("generation_config.json", R"({"eos_token_id": [5, 3], "temperature": 0.6, "anything": {}})");
  const Result<ModelConfig> config = LoadModelConfig(dir.path());
  ASSERT_TRUE(config.ok()) << MessageOf(config);
  EXPECT_THAT(config->eos_ids, ElementsAre(5, 3));
  dir.Write("generation_config.json", R"({"eos_token_id": "x"})");
  EXPECT_THAT(MessageOf(LoadModelConfig(dir.path())),
              AllOf(HasSubstr("generation_config.json"), HasSubstr("eos_token_id")));
  for (const char* names_no_end : {R"({"eos_token_id": 8})", R"({"bos_token_id": 1})"}) {
    dir.Write("generation_config.json", names_no_end);
    EXPECT_THAT(LoadModelConfig(dir.path())->eos_ids, ElementsAre(2)) << names_no_end;
  }
}

TEST(ConfigReader, RefusesHeadsWiderThanAttentionSupports) {
  EXPECT_THAT(RefusalOf(Llama(), "head_dim", 514), HasSubstr("512"));
  EXPECT_EQ(RefusalOf(Llama(), "head_dim", 512), "");
}

TEST(ConfigReader, BoundsTheFile) {
  const TempDir dir;
  EXPECT_THAT(MessageOf(LoadModelConfig(dir.path())), AllOf(HasSubstr("config.json"), HasSubstr("No such file")));
  dir.Write("config.json", std::string((1 << 20) + 1, ' '));
  EXPECT_THAT(MessageOf(LoadModelConfig(dir.path())), HasSubstr("at most 1048576"));
}

}  // namespace
}  // namespace infinigen
