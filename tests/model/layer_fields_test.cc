// Fields that may differ between layers: each supported field is compared with the independent forward pass, and each
// unsupported field is rejected by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "model/random_model.h"

namespace infinigen {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// ---- supported fields ----

struct Field {
  std::string name;
  std::function<void(ModelConfig&)> set;
  bool in_weights = false;  // the field changes the set of parameters
};

// Changed in some layers only, to detect a decoder that uses one layer's fields for all.
const Field kFields[] = {
    {"qk_norm", [](ModelConfig& config) { config.specs[1].qk_norm = config.specs[3].qk_norm = QkNorm::kHead; }},
    {"no_rope", [](ModelConfig& config) { config.specs[0].rope = config.specs[2].rope = LayerSpec::kNoRope; }},
    {"second_rope",
     [](ModelConfig& config) {
       config.ropes.push_back({.base = 300.0});
       config.specs[1].rope = 1;
     }},
    {"adjacent_pairs", [](ModelConfig& config) { config.ropes[0].order = RopeOrder::kPairs; }},
    {"part_of_a_head",
     [](ModelConfig& config) {
       config.ropes.push_back({.rotary_dims = 6});
       config.ropes.push_back({.order = RopeOrder::kPairs, .rotary_dims = 10});
       config.specs[1].rope = 1;
       config.specs[2].rope = 2;
     }},
    {"frequency_divisors", [](ModelConfig& config) { config.ropes[0].frequency_divisors = {1, 1, 2, 2, 4, 4, 8, 32}; }},
    {"magnitude", [](ModelConfig& config) { config.ropes[0].magnitude = 1.25; }},
    {"window", [](ModelConfig& config) { config.specs[0].window = config.specs[2].window = 17; }},
    {"window_of_one", [](ModelConfig& config) { config.specs[1].window = 1; }},
    {"attention_soft_cap", [](ModelConfig& config) { config.specs[1].attention_soft_cap = 0.7f; }},
    {"logit_soft_cap", [](ModelConfig& config) { config.logit_soft_cap = 1.5f; }},
    {"embedding_scale", [](ModelConfig& config) { config.embedding_scale = 3; }},
    {"gelu", [](ModelConfig& config) { config.specs[2].mlp.activation = Activation::kGeluTanh; }},
    {"norms_on_both_sides",
     [](ModelConfig& config) {
       for (LayerSpec& spec : config.specs) spec.norm_placement = NormPlacement::kBothSides;
     },
     true},
    {"scale", [](ModelConfig& config) { config.specs[2].attention_scale *= 3; }},
    {"eps", [](ModelConfig& config) { config.specs[2].norm.eps = 0.5f; }},
    {"final_eps", [](ModelConfig& config) { config.final_norm->eps = 0.5f; }},
    {"no_qkv_bias", [](ModelConfig& config) { config.specs[1].qkv_bias = false; }, true},
    {"no_o_bias", [](ModelConfig& config) { config.specs[3].o_bias = false; }, true},
    {"layer_norm", [](ModelConfig& config) { config.specs[1].norm.kind = NormKind::kLayer; }, true},
    {"relu",
     [](ModelConfig& config) { config.specs[0].mlp = {.gated = false, .activation = Activation::kRelu, .bias = true}; },
     true},
};

class LayerFields : public testing::TestWithParam<Field> {};

TEST_P(LayerFields, AreComputedAsTheIndependentForwardPassDoes) {
  ModelConfig config = Llama();
  GetParam().set(config);
  ASSERT_TRUE(CheckSupported(config).ok());
  RandomModelWithBases model(config, 8, 11);
  const std::vector<int32_t> ids = model.Ids(90, 1);
  const std::vector<float> want = Independent(model, {}, ids, 70);
  for (const Device device : {Device::kReference, Device::kCpu})
    EXPECT_LT(Difference(Decode(*model.Make({}, device), ids, 70), want), kRounding);
  if (GetParam().in_weights) return;
  model.config = Llama();
  EXPECT_GT(Difference(Independent(model, {}, ids, 70), want), 100 * kRounding) << "the field changes nothing";
}

INSTANTIATE_TEST_SUITE_P(Each, LayerFields, testing::ValuesIn(kFields), [](const auto& of) { return of.param.name; });

// ---- unsupported fields ----

std::string Refusal(const std::function<void(ModelConfig&)>& set) {
  ModelConfig config = Llama();
  set(config);
  const Status status = CheckSupported(config);
  if (status.ok()) return "";
  EXPECT_EQ(status.error().kind, ErrorKind::kUnsupported);
  return status.error().message;
}

TEST(CheckSupported, AcceptsSupportedFields) {
  EXPECT_TRUE(CheckSupported(Llama()).ok());
  EXPECT_TRUE(CheckSupported(Opt()).ok());
  EXPECT_TRUE(CheckSupported(Mixed()).ok());
  EXPECT_TRUE(CheckSupported(Capped()).ok());
  EXPECT_EQ(Refusal([](ModelConfig& config) { config.ropes[0].rotary_dims = config.head_dim; }), "");
  EXPECT_EQ(Refusal([](ModelConfig& config) {
              for (LayerSpec& spec : config.specs) spec.norm_placement = NormPlacement::kAfterResidual;
            }),
            "");
  // A RoPE table that no layer uses is accepted.
  EXPECT_EQ(Refusal([](ModelConfig& config) { config.ropes.push_back({.rotary_dims = 2}); }), "");
}

TEST(CheckSupported, NamesLayerAndField) {
  EXPECT_THAT(Refusal([](ModelConfig& config) {
                config.specs[1].window = 512;
                config.specs[2].window = 4096;
              }),
              AllOf(HasSubstr("layer 2: window 4096"), HasSubstr("512")));
  EXPECT_THAT(Refusal([](ModelConfig& config) { config.specs[1].qk_norm = QkNorm::kWhole; }),
              HasSubstr("layer 1: qk_norm whole"));
  EXPECT_THAT(Refusal([](ModelConfig& config) { config.specs[3].norm_placement = NormPlacement::kAfterResidual; }),
              HasSubstr("layer 3: norm_placement unlike layer 0"));
  EXPECT_THAT(Refusal([](ModelConfig& config) { config.specs[0].mlp.activation = Activation::kRelu; }),
              HasSubstr("layer 0: mlp.gated"));
  EXPECT_THAT(Refusal([](ModelConfig& config) { config.specs[0].mlp.gated = false; }),
              HasSubstr("layer 0: mlp.activation"));
  EXPECT_THAT(Refusal([](ModelConfig& config) {
                config.ropes.push_back({.rotary_dims = 18});
                config.specs[2].rope = 1;
              }),
              HasSubstr("layer 2: rope.rotary_dims 18"));
  EXPECT_THAT(Refusal([](ModelConfig& config) { config.ropes[0].rotary_dims = 7; }),
              HasSubstr("layer 0: rope.rotary_dims 7"));
  EXPECT_THAT(Refusal([](ModelConfig& config) {
                config.ropes[0].frequency_divisors = {1, 2, 3};
              }),
              HasSubstr("layer 0: rope has 3 frequency divisors for 8 planes"));
}

TEST(CheckSupported, MakeExecutorRejectsUnsupportedFields) {
  const RandomModelWithBases model(Llama(), 8, 11);
  ModelConfig config = model.config;
  config.specs[2].qk_norm = QkNorm::kWhole;
  const Result<std::unique_ptr<Executor>> executor = MakeExecutor(config, model.weights, {.max_tokens = 64});
  ASSERT_FALSE(executor.ok());
  EXPECT_THAT(executor.error().message, HasSubstr("test-llama: layer 2: qk_norm whole"));
}

// ---- owned heads ----

// Weights of the KV heads [first, first + count) and their query heads.
class OwnedWeights {
 public:
  OwnedWeights(const ModelConfig& config, const WeightViews& all, const OwnedHeads& owned) {
    static_cast<WeightViews&>(weights) = all;
    const int64_t d = config.head_dim, group = config.heads / config.kv_heads;
    for (LayerWeights& layer : weights.layers) {
      Cut(layer.q, owned.first_kv_head * group * d, owned.heads * d);
      Cut(layer.k, owned.first_kv_head * d, owned.kv_heads * d);
      Cut(layer.v, owned.first_kv_head * d, owned.kv_heads * d);
      CutColumns(layer.o.weight, owned.first_kv_head * group * d, owned.heads * d);
    }
  }

  Weights weights;

 private:
  static void Cut(Linear& linear, int64_t first, int64_t count) {
    linear.weight = WeightView(linear.weight.row(first), linear.weight.type, count, linear.weight.cols);
    linear.bias =
        ConstTensor(reinterpret_cast<const std::byte*>(linear.bias.as<float>() + first), DType::kF32, 1, count);
  }
  void CutColumns(WeightView& weight, int64_t first, int64_t count) {
    std::vector<float>& cut = columns_.emplace_back();
    for (int64_t r = 0; r < weight.rows; ++r)
      cut.insert(cut.end(), weight.as<float>(r) + first, weight.as<float>(r) + first + count);
    weight = WeightView(reinterpret_cast<const std::byte*>(cut.data()), WeightType::kF32, weight.rows, count);
  }

  std::vector<std::vector<float>> columns_;
};

// A process that owns some heads computes the same as a model that has only these heads.
TEST(OwnedHeads, ComputeTheSameAsAModelWithOnlyTheseHeads) {
  ModelConfig config = Llama();
  config.heads = 12;
  config.kv_heads = 4;
  const RandomModelWithBases model(config, 8, 11);
  const OwnedHeads owned{.first_kv_head = 1, .kv_heads = 2, .heads = 6};
  const OwnedWeights part(config, model.weights, owned);
  std::vector<SketchMatrices> bases = model.bases;
  const auto cut = [&](std::vector<float>& numbers) {  // KV heads 1 and 2 of 4
    const auto head = static_cast<ptrdiff_t>(numbers.size() / 4);
    numbers = {numbers.begin() + head, numbers.begin() + 3 * head};
  };
  for (SketchMatrices& basis : bases) {
    cut(basis.query);
    cut(basis.key);
    cut(basis.key_offset);
  }
  ModelConfig alone = config;
  alone.heads = 6;
  alone.kv_heads = 2;
  const std::vector<int32_t> ids = model.Ids(200, 1);
  for (const KvMethod& method : {KvMethod(), Sparse(GuessSource::kPrevLayer), Sparse(GuessSource::kSelf)}) {
    ExecutorOptions options{.threads = 2, .max_tokens = 256, .method = method};
    const std::unique_ptr<Executor> want = MakeExecutor(alone, part.weights, options, {.bases = bases}).value();
    const MemoryPlan plan = PlanMemory(alone, options, 0);
    options.owned = owned;
    const std::unique_ptr<Executor> got = MakeExecutor(config, part.weights, options, {.bases = bases}).value();
    std::vector<int64_t> heads;
    got->instruments().ObserveSelection(
        [&](LayerId, SeqSlot, KvHead head, std::span<const int32_t>) { heads.push_back(head.value()); });
    EXPECT_EQ(Decode(*got, ids, 150), Decode(*want, ids, 150));
    if (method.selects()) {
      EXPECT_THAT(heads, testing::IsSupersetOf({1, 2}));
      EXPECT_THAT(heads, testing::Each(testing::AnyOf(1, 2))) << "heads are named as the model numbers them";
    }
    EXPECT_EQ(PlanMemory(config, options, 0).total_bytes(), plan.total_bytes());
  }
}

}  // namespace
}  // namespace infinigen
