// Which type each matrix of a quantised file gets. Whole files are tested in tests/cli/gguf_cli_test.py.
#include "runtime/quantize.h"

#include <gtest/gtest.h>

#include <map>

namespace infinigen {
namespace {

// Number of matrices by role and type, in a file of `type` of a published shape.
std::map<std::pair<WeightRole, WeightType>, int> Types(std::string_view type, const ModelConfig& config) {
  std::map<std::pair<WeightRole, WeightType>, int> counts;
  VisitShapes(config, [&](const Parameter& parameter, const ParameterShape& shape) {
    if (parameter.is_matrix() && shape.stored)
      ++counts[{parameter.role, QuantizedType(type, config, parameter, shape.cols)}];
  });
  return counts;
}

using Counts = std::map<std::pair<WeightRole, WeightType>, int>;
using enum WeightRole;
using enum WeightType;

TEST(Quantize, Q4KMGivesTheOutputAndHalfOfVAndDownMoreBits) {
  // 16 layers: 0, 1, 14, 15, and 4, 7, 10, 13 between.
  EXPECT_EQ(Types("q4_k_m", ShapeByName("llama-3.2-1b").value()),
            (Counts{{{kEmbedding, kQ6_K}, 1},  // tied: also the output matrix
                    {{kQuery, kQ4_K}, 16},
                    {{kKey, kQ4_K}, 16},
                    {{kValue, kQ4_K}, 8},
                    {{kValue, kQ6_K}, 8},
                    {{kOutput, kQ4_K}, 16},
                    {{kGate, kQ4_K}, 16},
                    {{kUp, kQ4_K}, 16},
                    {{kDown, kQ4_K}, 8},
                    {{kDown, kQ6_K}, 8}}));
  const Counts untied = Types("q4_k_m", ShapeByName("llama-3.1-8b").value());
  EXPECT_EQ(untied.at({kEmbedding, kQ4_K}), 1);
  EXPECT_EQ(untied.at({kLmHead, kQ6_K}), 1);
}

TEST(Quantize, RowsThatAreNoMultipleOf256TakeBlocksOf32) {
  ModelConfig config = ShapeByName("llama-3.2-1b").value();
  config.hidden = config.embed_dim = 576;
  config.ffn = 1536;
  config.heads = 9;
  config.kv_heads = 3;
  config.head_dim = 64;
  const Counts counts = Types("q4_k_m", config);
  EXPECT_EQ(counts.at({kEmbedding, kQ8_0}), 1);
  EXPECT_EQ(counts.at({kQuery, kQ5_0}), 16);
  EXPECT_EQ(counts.at({kValue, kQ5_0}), 8);
  EXPECT_EQ(counts.at({kValue, kQ8_0}), 8);
  EXPECT_EQ(counts.at({kDown, kQ4_K}), 8) << "1536 is a multiple of 256";
  EXPECT_EQ(counts.at({kDown, kQ6_K}), 8);
  EXPECT_EQ(Types("q6_k", config).at({kGate, kQ8_0}), 16);
  EXPECT_EQ(QuantizedType("q4_k_m", config, {kQuery, WeightPart::kWeight, 0}, 40), kF16);
}

TEST(Quantize, OneTensorOfQueriesKeysAndValuesTakesFiveBits) {
  const ModelConfig config = ShapeByName("phi-3-mini-4k").value();
  EXPECT_EQ(QuantizedType("q4_k_m", config, {kQuery, WeightPart::kWeight, 0}, config.hidden), kQ5_K);
  EXPECT_EQ(QuantizedType("q4_k_m", config, {kQuery, WeightPart::kWeight, 0}, 96), kQ5_1);
  EXPECT_EQ(QuantizedType("q8_0", config, {kQuery, WeightPart::kWeight, 0}, config.hidden), kQ8_0);
  EXPECT_EQ(QuantizedType("q4_k_m", config, {kOutput, WeightPart::kWeight, 0}, config.hidden), kQ4_K);
}

TEST(Quantize, PlainTypesAreTheSameEverywhere) {
  const ModelConfig config = ShapeByName("llama-3.1-8b").value();
  for (const auto& [key, count] : Types("f16", config)) EXPECT_EQ(key.second, kF16);
  for (const auto& [key, count] : Types("q8_0", config)) EXPECT_EQ(key.second, kQ8_0);
}

}  // namespace
}  // namespace infinigen
