// GGUF metadata as a ModelConfig.
#include "model/gguf_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "loader/gguf_files.h"
#include "loader/model_files.h"
#include "model/family.h"
#include "model/weights.h"

namespace infinigen {
namespace {

using test::F32;
using test::GgufKey;
using test::GgufRow;
using test::MessageOf;
using test::TempDir;
using test::Text;
using test::U32;
using testing::ElementsAre;
using testing::HasSubstr;

std::vector<GgufKey> Keys(const std::string& arch) {
  return {Text("general.architecture", arch),        U32(arch + ".block_count", 1),
          U32(arch + ".context_length", 64),         U32(arch + ".embedding_length", 8),
          U32(arch + ".feed_forward_length", 12),    U32(arch + ".attention.head_count", 2),
          U32(arch + ".attention.head_count_kv", 1), F32(arch + ".attention.layer_norm_rms_epsilon", 1e-5f),
          F32(arch + ".rope.freq_base", 5000.0f)};
}

// All tensors are F32; dimensions innermost first.
std::vector<GgufRow> Tensors() {
  return {{"token_embd.weight", {8, 10}},   {"output_norm.weight", {8}},          {"blk.0.attn_norm.weight", {8}},
          {"blk.0.ffn_norm.weight", {8}},   {"blk.0.attn_q.weight", {8, 8}},      {"blk.0.attn_k.weight", {8, 4}},
          {"blk.0.attn_v.weight", {8, 4}},  {"blk.0.attn_output.weight", {8, 8}}, {"blk.0.ffn_gate.weight", {8, 12}},
          {"blk.0.ffn_up.weight", {8, 12}}, {"blk.0.ffn_down.weight", {12, 8}}};
}

struct Opened {
  TempDir dir;
  Result<GgufSource> source;

  Opened(const std::vector<GgufKey>& keys, std::vector<GgufRow> tensors, const char* name = "tiny.Q8.gguf")
      : source(Error{}) {
    uint64_t offset = 0;
    std::string data;
    for (GgufRow& tensor : tensors) {
      uint64_t numbers = 1;
      for (const uint64_t extent : tensor.dims) numbers *= extent;
      tensor.offset = offset;
      offset += (numbers * 4 + 31) / 32 * 32;
      for (uint64_t i = 0; i < numbers; ++i) data += test::Raw(1.0f + static_cast<float>(i));
      data.resize(offset);
    }
    dir.Write(name, test::GgufBytes(keys, tensors, data));
    source = GgufSource::Open(dir.File(name));
    EXPECT_TRUE(source.ok()) << MessageOf(source);
  }
};

TEST(GgufConfig, Llama) {
  std::vector<GgufRow> tensors = Tensors();
  tensors.push_back({"rope_freqs.weight", {2}});
  std::vector<GgufKey> keys = Keys("llama");
  keys.push_back(U32("tokenizer.ggml.eos_token_id", 7));
  keys.push_back(U32("tokenizer.ggml.eot_token_id", 3));
  keys.push_back(U32("tokenizer.ggml.bos_token_id", UINT32_MAX));
  keys.push_back({"tokenizer.ggml.eom_token_id", GgufValueType::kInt32, test::Raw(int32_t{-1})});
  const Opened opened(keys, tensors);
  const Result<ModelConfig> config = ReadGgufConfig(*opened.source);
  ASSERT_TRUE(config.ok()) << MessageOf(config);
  EXPECT_EQ(config->name, "tiny.Q8");
  EXPECT_EQ(config->family_name(), "llama");
  EXPECT_EQ(config->layers, 1);
  EXPECT_EQ(config->hidden, 8);
  EXPECT_EQ(config->heads, 2);
  EXPECT_EQ(config->kv_heads, 1);
  EXPECT_EQ(config->head_dim, 4);
  EXPECT_EQ(config->ffn, 12);
  EXPECT_EQ(config->vocab, 10);
  EXPECT_EQ(config->max_positions, 64);
  EXPECT_TRUE(config->tied_embeddings);
  EXPECT_FALSE(config->specs[0].qkv_bias);
  EXPECT_EQ(config->specs[0].norm.eps, 1e-5f);
  ASSERT_EQ(config->ropes.size(), 1u);
  EXPECT_EQ(config->ropes[0].base, 5000.0);
  EXPECT_EQ(config->ropes[0].order, RopeOrder::kPairs);
  EXPECT_THAT(config->ropes[0].frequency_divisors, ElementsAre(1.0f, 2.0f));
  EXPECT_THAT(config->eos_ids, ElementsAre(3, 7));
  EXPECT_EQ(config->bos_id, std::nullopt) << "-1 is no token";
}

TEST(GgufConfig, Qwen2HasBiasesAndHalves) {
  std::vector<GgufRow> tensors = Tensors();
  tensors.push_back({"output.weight", {8, 10}});
  for (const auto& [name, length] : {std::pair("q", 8), {"k", 4}, {"v", 4}})
    tensors.push_back({fmt::format("blk.0.attn_{}.bias", name), {static_cast<uint64_t>(length)}});
  Opened opened(Keys("qwen2"), tensors);
  const Result<ModelConfig> config = ReadGgufConfig(*opened.source);
  ASSERT_TRUE(config.ok()) << MessageOf(config);
  EXPECT_TRUE(config->specs[0].qkv_bias);
  EXPECT_FALSE(config->tied_embeddings);
  EXPECT_EQ(config->ropes[0].order, RopeOrder::kHalves);
  const Result<Weights> weights = LoadWeights(std::make_unique<const GgufSource>(std::move(*opened.source)), *config);
  ASSERT_TRUE(weights.ok()) << MessageOf(weights);
  EXPECT_EQ(weights->layers[0].q.bias.cols, 8);
  EXPECT_FALSE(weights->has_tied_head());
}

TEST(GgufConfig, LlamaBiasesAreFoundByTheirTensors) {
  std::vector<GgufRow> tensors = Tensors();
  for (const auto& [name, length] : {std::pair("q", 8), {"k", 4}, {"v", 4}, {"output", 8}})
    tensors.push_back({fmt::format("blk.0.attn_{}.bias", name), {static_cast<uint64_t>(length)}});
  const Opened opened(Keys("llama"), tensors);
  const Result<ModelConfig> config = ReadGgufConfig(*opened.source);
  ASSERT_TRUE(config.ok()) << MessageOf(config);
  EXPECT_TRUE(config->specs[0].qkv_bias && config->specs[0].o_bias);
  EXPECT_FALSE(config->specs[0].mlp.bias);
}

TEST(GgufConfig, RopeScaling) {
  const auto rope = [](std::vector<GgufKey> more) {
    std::vector<GgufKey> keys = Keys("llama");
    keys.insert(keys.end(), more.begin(), more.end());
    const Opened opened(keys, Tensors());
    const Result<ModelConfig> config = ReadGgufConfig(*opened.source);
    EXPECT_TRUE(config.ok()) << MessageOf(config);
    return config.ok() ? config->ropes.at(0) : RopeConfig();
  };
  EXPECT_EQ(rope({}).scaling, RopeScaling::kNone);
  EXPECT_EQ(rope({Text("llama.rope.scaling.type", "none"), F32("llama.rope.scaling.factor", 4)}).scaling,
            RopeScaling::kNone);
  const RopeConfig linear = rope({Text("llama.rope.scaling.type", "linear"), F32("llama.rope.scaling.factor", 4)});
  EXPECT_EQ(linear.scaling, RopeScaling::kLinear);
  EXPECT_EQ(linear.factor, 4.0);
  EXPECT_EQ(rope({F32("llama.rope.scale_linear", 2)}).factor, 2.0) << "the old key";
  EXPECT_EQ(rope({U32("llama.rope.dimension_count", 2)}).rotary_dims, 2);
  EXPECT_EQ(rope({U32("llama.rope.dimension_count", 4)}).rotary_dims, 0) << "all";
}

TEST(GgufConfig, RefusesByKey) {
  const auto refused = [](const GgufKey& changed) {
    std::vector<GgufKey> keys = Keys("llama");
    std::erase_if(keys, [&](const GgufKey& key) { return key.key == changed.key; });
    keys.push_back(changed);
    const Opened opened(keys, Tensors());
    return MessageOf(ReadGgufConfig(*opened.source));
  };
  EXPECT_THAT(refused(U32("llama.block_count", 0)), HasSubstr("'llama.block_count' is 0"));
  EXPECT_THAT(refused(U32("llama.attention.head_count", 3)), HasSubstr("num_attention_heads"));
  EXPECT_THAT(refused(F32("llama.attention.layer_norm_rms_epsilon", NAN)), HasSubstr("layer_norm_rms_epsilon"));
  EXPECT_THAT(refused(U32("llama.rope.dimension_count", 6)), HasSubstr("rope.dimension_count"));
  EXPECT_THAT(refused(U32("llama.unheard_of", 6)), HasSubstr("'llama.unheard_of' (6) is not supported"));
  EXPECT_THAT(refused(test::Bool("llama.attention.causal", false)), HasSubstr("attention.causal"));
  EXPECT_THAT(refused(Text("general.architecture", "bloom")),
              HasSubstr("'bloom' is not supported; supported are llama"));
  for (const char* experts : {"qwen3moe", "deepseek2", "gpt-oss", "granitemoe", "phimoe"})
    EXPECT_THAT(refused(Text("general.architecture", experts)),
                HasSubstr(fmt::format("'{}' is a mixture of experts, which is not supported", experts)));
  for (const char* hybrid : {"mamba", "jamba", "granitehybrid", "nemotron_h", "lfm2", "qwen3next", "rwkv7"})
    EXPECT_THAT(refused(Text("general.architecture", hybrid)),
                HasSubstr(fmt::format("'{}' has layers without attention, which is not supported", hybrid)));
  EXPECT_THAT(refused(U32("llama.expert_count", 8)), HasSubstr("'llama.expert_count' is 8: mixture-of-experts"));
  EXPECT_THAT(refused(Text("tokenizer.ggml.eos_token_id", "x")), HasSubstr("eos_token_id"));
}

TEST(GgufConfig, EveryTableHasTheRolesOfItsFamily) {
  for (const ModelFamily* family : Families()) {
    if (family->gguf == nullptr) continue;
    for (const RoleName& name : family->modules)
      EXPECT_FALSE(TensorName(*family, "", {name.role}, TensorNaming::kGguf).empty()) << family->name;
  }
}

}  // namespace
}  // namespace infinigen
