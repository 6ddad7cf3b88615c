#include "model/family.h"

#include <gtest/gtest.h>

#include <set>

namespace infinigen {
namespace {

const ModelFamily& LlamaFamily() { return *FindFamily("llama"); }
const ModelFamily& OptFamily() { return *FindFamily("opt"); }

TEST(ModelFamily, NamesParametersAsTheFilesDo) {
  EXPECT_EQ(TensorName(LlamaFamily(), "model.", {WeightRole::kQuery, WeightPart::kWeight, 12}),
            "model.layers.12.self_attn.q_proj.weight");
  EXPECT_EQ(TensorName(LlamaFamily(), "", {WeightRole::kFinalNorm}), "norm.weight");
  EXPECT_EQ(TensorName(OptFamily(), "model.decoder.", {WeightRole::kOutput, WeightPart::kBias, 3}),
            "model.decoder.layers.3.self_attn.out_proj.bias");
  EXPECT_EQ(TensorName(OptFamily(), "decoder.", {WeightRole::kFinalNorm, WeightPart::kBias}),
            "decoder.final_layer_norm.bias");
  EXPECT_EQ(TensorName(OptFamily(), "decoder.", {WeightRole::kMlpNorm, WeightPart::kBias}),
            "decoder.layers.0.final_layer_norm.bias");
  EXPECT_EQ(TensorName(OptFamily(), "decoder.", {WeightRole::kLmHead}), "lm_head.weight");
}

TEST(ModelFamily, KnowsTensorsWithoutParameters) {
  EXPECT_TRUE(IsExtraTensor(LlamaFamily(), "model.", "model.layers.31.self_attn.rotary_emb.inv_freq"));
  EXPECT_TRUE(IsExtraTensor(LlamaFamily(), "model.", "model.rotary_emb.inv_freq"));
  EXPECT_FALSE(IsExtraTensor(LlamaFamily(), "model.", "model.layers.x.self_attn.rotary_emb.inv_freq"));
  EXPECT_FALSE(IsExtraTensor(LlamaFamily(), "model.", "model.layers..self_attn.rotary_emb.inv_freq"));
  EXPECT_FALSE(IsExtraTensor(LlamaFamily(), "model.", "layers.1.self_attn.rotary_emb.inv_freq"));
  EXPECT_FALSE(IsExtraTensor(LlamaFamily(), "model.", "model.layers.1"));
  EXPECT_FALSE(IsExtraTensor(LlamaFamily(), "model.", "model.rotary_emb.inv_freq2"));
  EXPECT_FALSE(IsExtraTensor(OptFamily(), "model.decoder.", "model.decoder.rotary_emb.inv_freq"));
  EXPECT_TRUE(IsExtraTensor(OptFamily(), "model.decoder.", "model.decoder.version"));
}

// Detects an incomplete table here rather than when a model is opened.
TEST(ModelFamily, TablesAreComplete) {
  std::set<int64_t> numbers;
  std::set<std::string_view> types, shapes;
  for (const ModelFamily* family : Families()) {
    EXPECT_TRUE(numbers.insert(family->identity_number).second) << family->name;
    EXPECT_FALSE(family->classes.empty() || family->prefixes.empty()) << family->name;
    EXPECT_FALSE(family->shapes.empty()) << family->name;
    for (const std::string_view type : family->model_types) {
      EXPECT_TRUE(types.insert(type).second) << type;
      EXPECT_EQ(FindFamily(type), family);
    }
    std::set<WeightRole> roles;
    for (const RoleName& name : family->modules) {
      EXPECT_TRUE(roles.insert(name.role).second) << name.module;
      EXPECT_EQ(name.module.find('#') != std::string_view::npos, IsPerLayer(name.role)) << name.module;
    }
    for (const PublishedShape& shape : family->shapes) {
      EXPECT_TRUE(shapes.insert(shape.name).second) << shape.name;
      const Result<ModelConfig> config = ShapeByName(shape.name);
      ASSERT_TRUE(config.ok()) << config.error().message;
      EXPECT_EQ(config->family, family) << shape.name;
      EXPECT_EQ(config->name, shape.name);
      for (const WeightRole role : roles)
        EXPECT_FALSE(TensorName(*family, family->prefixes[0], {role}).empty()) << shape.name;
    }
  }
  EXPECT_EQ(FindFamily("gpt2"), nullptr);
}

}  // namespace
}  // namespace infinigen
