#include "loader/weight_map.h"

#include <gtest/gtest.h>

namespace infinigen {
namespace {

TEST(WeightMap, NamesParametersAsTheFilesDo) {
  EXPECT_EQ(TensorName(Architecture::kLlama, "model.", WeightRole::kQuery, WeightPart::kWeight, 12),
            "model.layers.12.self_attn.q_proj.weight");
  EXPECT_EQ(TensorName(Architecture::kLlama, "", WeightRole::kFinalNorm, WeightPart::kWeight), "norm.weight");
  EXPECT_EQ(TensorName(Architecture::kOpt, "model.decoder.", WeightRole::kOutput, WeightPart::kBias, 3),
            "model.decoder.layers.3.self_attn.out_proj.bias");
  EXPECT_EQ(TensorName(Architecture::kOpt, "decoder.", WeightRole::kFinalNorm, WeightPart::kBias),
            "decoder.final_layer_norm.bias");
  EXPECT_EQ(TensorName(Architecture::kOpt, "decoder.", WeightRole::kMlpNorm, WeightPart::kBias, 0),
            "decoder.layers.0.final_layer_norm.bias");
  EXPECT_EQ(TensorName(Architecture::kOpt, "decoder.", WeightRole::kLmHead, WeightPart::kWeight), "lm_head.weight");
}

TEST(WeightMap, KnowsTensorsWithoutParameters) {
  EXPECT_TRUE(IsHarmlessTensor(Architecture::kLlama, "model.", "model.layers.31.self_attn.rotary_emb.inv_freq"));
  EXPECT_TRUE(IsHarmlessTensor(Architecture::kLlama, "model.", "model.rotary_emb.inv_freq"));
  EXPECT_FALSE(IsHarmlessTensor(Architecture::kLlama, "model.", "model.layers.x.self_attn.rotary_emb.inv_freq"));
  EXPECT_FALSE(IsHarmlessTensor(Architecture::kLlama, "model.", "layers.1.self_attn.rotary_emb.inv_freq"));
  EXPECT_FALSE(IsHarmlessTensor(Architecture::kLlama, "model.", "model.layers.1"));
  EXPECT_FALSE(IsHarmlessTensor(Architecture::kOpt, "model.decoder.", "model.decoder.rotary_emb.inv_freq"));
  EXPECT_TRUE(IsHarmlessTensor(Architecture::kOpt, "model.decoder.", "model.decoder.version"));
}

}  // namespace
}  // namespace infinigen
