#include "model/parameters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <tuple>

namespace infinigen {
namespace {

Weights Small() {
  ModelConfig config = ShapeByName("opt-125m").value();
  config.SetLayers(3, config.specs.front());
  config.hidden = config.embed_dim = 12;
  config.heads = config.kv_heads = 2;
  config.head_dim = 6;
  config.ffn = 8;
  config.vocab = 5;
  config.max_positions = 4;
  return RandomWeights(config, WeightType::kF32, 1, 1).value();
}

// A member that VisitParameters omits would be neither loaded nor placed nor counted.
TEST(ParameterWalk, LeavesOutNoMember) {
  size_t layer_bytes = 0, end_bytes = 0;
  LayerWeights layer;
  VisitLayer(0, layer, [&](const Parameter& parameter, const auto& view) {
    EXPECT_TRUE(IsPerLayer(parameter.role));
    layer_bytes += sizeof(view);
  });
  EXPECT_EQ(layer_bytes, sizeof(LayerWeights));
  const WeightViews without_layers;
  VisitParameters(without_layers, [&](const Parameter& parameter, const auto& view) {
    EXPECT_FALSE(IsPerLayer(parameter.role));
    end_bytes += sizeof(view);
  });
  EXPECT_EQ(end_bytes + sizeof(std::vector<LayerWeights>), sizeof(WeightViews));
}

TEST(ParameterWalk, VisitsEachMemberOnceInTheOrderOfRoles) {
  const ModelConfig config = ShapeByName("opt-125m").value();
  const Weights weights = Small();
  std::set<const void*> places;
  std::set<std::tuple<WeightRole, WeightPart, int64_t>> names;
  WeightRole last = WeightRole::kEmbedding;
  int64_t layer = 0;
  VisitParameters(weights, [&](const Parameter& parameter, const auto& view) {
    EXPECT_TRUE(places.insert(&view).second);
    EXPECT_TRUE(names.emplace(parameter.role, parameter.part, parameter.layer).second);
    if (parameter.layer == layer) {
      EXPECT_GE(parameter.role, last);
    }
    last = parameter.role;
    layer = parameter.layer;
    EXPECT_EQ(static_cast<bool>(ExpectedShape(config, parameter)), static_cast<bool>(view))
        << static_cast<int>(parameter.role);
  });
  EXPECT_EQ(places.count(&weights.layers[2].down.bias), 1u);
  EXPECT_EQ(places.count(&weights.lm_head.weight), 1u);
}

TEST(ParameterWalk, EndsAtTheFirstError) {
  Weights weights = Small();
  int visits = 0;
  const Status status = VisitParameters(weights, [&](const Parameter& parameter, auto&) -> Status {
    ++visits;
    if (parameter.role == WeightRole::kPositions) return Invalid("no positions");
    return Ok();
  });
  EXPECT_EQ(visits, 2);
  EXPECT_THAT(status.error().message, testing::HasSubstr("no positions"));
}

}  // namespace
}  // namespace infinigen
