#include "model/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "loader/model_files.h"

namespace infinigen {
namespace {

using test::MessageOf;
using testing::HasSubstr;

std::string Golden(const std::string& name) { return std::string(INFINIGEN_TEST_DATA) + "/golden/models/" + name; }

TEST(ModelConfig, DescribesLlama) {
  const Result<ModelConfig> config = LoadModelConfig(Golden("llama_gqa_tied") + "/");
  ASSERT_TRUE(config.ok()) << MessageOf(config);
  EXPECT_EQ(config->name, "llama_gqa_tied");
  EXPECT_EQ(config->family_name(), "llama");
  EXPECT_EQ(config->heads, 8);
  EXPECT_EQ(config->kv_heads, 2);
  EXPECT_EQ(config->head_dim, 8);
  EXPECT_EQ(config->embed_dim, config->hidden);
  LayerSpec spec = PlainLayer(8);
  spec.norm.eps = 1e-5f;
  EXPECT_THAT(config->specs, testing::Each(spec));
  EXPECT_EQ(std::ssize(config->specs), config->layers);
  EXPECT_EQ(spec.attention_scale, 1.0f / std::sqrt(8.0f));
  EXPECT_EQ(config->final_norm, spec.norm);
  EXPECT_EQ(config->positions, PositionKind::kNone);
  EXPECT_EQ(config->ropes.size(), 1u);
  EXPECT_TRUE(config->rotates() && config->has_gate());
  EXPECT_TRUE(config->tied_embeddings);
  EXPECT_FALSE(config->has_projections());
  EXPECT_EQ(config->eos_ids.size(), 2u);
}

TEST(ModelConfig, DescribesOptAndItsVariants) {
  const Result<ModelConfig> post = LoadModelConfig(Golden("opt_post_norm"));
  ASSERT_TRUE(post.ok()) << MessageOf(post);
  const LayerSpec& spec = post->specs.back();
  EXPECT_EQ(spec.norm, (NormSpec{.kind = NormKind::kLayer, .eps = 1e-5f}));
  EXPECT_EQ(post->positions, PositionKind::kLearned);
  EXPECT_EQ(post->position_offset, 2);
  EXPECT_EQ(spec.rope, LayerSpec::kNoRope);
  EXPECT_EQ(spec.mlp, (MlpSpec{.gated = false, .activation = Activation::kRelu, .bias = true}));
  EXPECT_EQ(spec.norm_placement, NormPlacement::kAfterResidual);
  EXPECT_FALSE(post->final_norm) << "a post-norm model has none";
  EXPECT_TRUE(post->has_projections());
  EXPECT_TRUE(spec.qkv_bias && spec.o_bias);
  EXPECT_FALSE(post->rotates() || post->has_gate());

  const Result<ModelConfig> bare = LoadModelConfig(Golden("opt_bare"));
  ASSERT_TRUE(bare.ok()) << MessageOf(bare);
  const LayerSpec& plain = bare->specs[0];
  EXPECT_EQ(plain.norm_placement, NormPlacement::kBefore);
  EXPECT_FALSE(bare->final_norm);
  EXPECT_FALSE(plain.norm.affine);
  EXPECT_FALSE(plain.qkv_bias || plain.o_bias || plain.mlp.bias);
}

TEST(ModelConfig, ShapesHaveThePublishedParameterCounts) {
  const std::pair<const char*, int64_t> published[] = {{"llama-2-7b", 6738415616},   {"llama-2-13b", 13015864320},
                                                       {"llama-3-8b", 8030261248},   {"llama-3.1-8b", 8030261248},
                                                       {"llama-3.2-1b", 1235814400}, {"llama-3.2-3b", 3212749824},
                                                       {"opt-125m", 125239296},      {"opt-1.3b", 1315758080},
                                                       {"opt-6.7b", 6658473984},     {"opt-13b", 12853473280}};
  for (const auto& [name, count] : published) {
    const Result<ModelConfig> shape = ShapeByName(name);
    ASSERT_TRUE(shape.ok()) << MessageOf(shape);
    EXPECT_EQ(ParameterCount(*shape), count) << name;
  }
  for (const std::string_view name : ShapeNames()) EXPECT_TRUE(ShapeByName(name).ok()) << name;
  EXPECT_EQ(ShapeByName("opt-30b")->heads, 56);
  EXPECT_THAT(MessageOf(ShapeByName("gpt-5")), testing::AllOf(HasSubstr("'gpt-5'"), HasSubstr("opt-13b")));
}

// Expected values: LlamaRotaryEmbedding of transformers 5.22, whose vectorised pow may differ from ours in the last
// bit.
void ExpectFrequencies(const std::vector<float>& expected, const std::vector<float>& actual, size_t stride) {
  ASSERT_EQ(actual.size(), expected.size() * stride);
  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_NEAR(actual[i * stride] / expected[i], 1.0f, 2.5e-7f) << "frequency " << i * stride;
}

TEST(RopeInverseFrequencies, AreThoseOfTransformers) {
  ExpectFrequencies({0x1.000000p+0f, 0x1.43d136p-2f, 0x1.99999ap-4f, 0x1.030dc6p-5f, 0x1.47ae14p-7f, 0x1.9e7c70p-9f,
                     0x1.0624dep-10f, 0x1.4b96c0p-12f},
                    RopeInverseFrequencies({}, 16, 0), 1);
  RopeConfig linear;
  linear.scaling = RopeScaling::kLinear;
  linear.factor = 3.0;
  ExpectFrequencies({0x1.555556p-2f, 0x1.afc19ep-4f, 0x1.111112p-5f, 0x1.5967b2p-7f, 0x1.b4e81ap-9f, 0x1.1452f6p-10f,
                     0x1.5d867ep-12f, 0x1.ba1e56p-14f},
                    RopeInverseFrequencies(linear, 16, 0), 1);
  // Three ranges: the first unchanged, some interpolated (index 32 and around), the last divided by 8.
  const RopeConfig llama3{500000.0, RopeScaling::kLlama3, 8.0, 1.0, 4.0, 8192};
  ExpectFrequencies({0x1.000000p+0f, 0x1.c2ef78p-2f, 0x1.8d2760p-3f, 0x1.5dc95ap-4f, 0x1.341190p-5f, 0x1.0f5386p-6f,
                     0x1.ddee9ep-8f, 0x1.a4ee40p-9f, 0x1.132ba4p-11f, 0x1.46831ap-14f, 0x1.1f91f0p-15f, 0x1.fa8b86p-17f,
                     0x1.be2188p-18f, 0x1.88ec20p-19f, 0x1.5a0f4ep-20f, 0x1.30c94ep-21f},
                    RopeInverseFrequencies(llama3, 128, 0), 4);
}

}  // namespace
}  // namespace infinigen
