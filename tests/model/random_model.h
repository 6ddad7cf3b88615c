// A small random model for any KV method, and functions to run it; shared by the tests of selection and retention.
#pragma once

#include <algorithm>
#include <limits>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "model/executor.h"
#include "model/selecting_model.h"

namespace infinigen {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Small, but with all features that a guess can get wrong: groups, rotation, biases, norms.
inline ModelConfig Llama() {
  ModelConfig config{.name = "test-llama",
                     .hidden = 48,
                     .heads = 6,
                     .kv_heads = 2,
                     .head_dim = 16,
                     .ffn = 64,
                     .vocab = 61,
                     .embed_dim = 48,
                     .max_positions = 2048,
                     .ropes = {RopeConfig()}};
  LayerSpec spec = PlainLayer(config.head_dim);
  spec.qkv_bias = spec.o_bias = true;
  config.SetLayers(4, spec);
  return config;
}
inline ModelConfig Opt() {
  ModelConfig config = Llama();
  config.name = "test-opt";
  config.heads = config.kv_heads = 3;
  config.ropes.clear();
  config.positions = PositionKind::kLearned;
  config.position_offset = 2;
  LayerSpec spec = config.specs.front();
  spec.rope = LayerSpec::kNoRope;
  spec.norm.kind = NormKind::kLayer;
  spec.mlp = {.gated = false, .activation = Activation::kRelu, .bias = true};
  config.final_norm = spec.norm;
  config.SetLayers(config.layers, spec);
  return config;
}
// Layers with different fields: norms on queries and keys, no RoPE, two RoPE tables, different scales, biases on some
// projections only.
inline ModelConfig Mixed() {
  ModelConfig config = Llama();
  config.name = "test-mixed";
  config.ropes.push_back({.base = 500.0});
  config.specs[0].attention_scale *= 1.5f;
  config.specs[0].qk_norm = QkNorm::kHead;
  config.specs[1].rope = LayerSpec::kNoRope;
  config.specs[1].o_bias = false;
  config.specs[1].qk_norm = QkNorm::kHead;
  config.specs[2].rope = 1;
  config.specs[2].attention_scale *= 0.5f;
  config.specs[2].mlp = {.gated = false, .activation = Activation::kRelu, .bias = true};
  config.specs[3].qkv_bias = false;
  config.specs[3].qk_norm = QkNorm::kHead;
  return config;
}

// Gemma's: norms on both sides, soft caps, a scaled embedding, gated GELU, windows in some layers.
inline ModelConfig Capped() {
  ModelConfig config = Llama();
  config.name = "test-capped";
  config.embedding_scale = 6;
  config.logit_soft_cap = 4;
  for (LayerSpec& spec : config.specs) {
    spec.norm_placement = NormPlacement::kBothSides;
    spec.attention_soft_cap = 3;
    spec.mlp.activation = Activation::kGeluTanh;
  }
  config.specs[0].window = config.specs[2].window = 21;
  return config;
}

inline constexpr int64_t kValueDims = 8;  // of the tails below

class RandomModelWithBases {
 public:
  RandomModelWithBases(const ModelConfig& model, int64_t dims, uint64_t seed) : config(model) {
    Result<Weights> random = RandomWeights(config, WeightType::kF32, seed, 1);
    CHECK(random.ok());
    weights = std::move(*random);
    std::mt19937_64 numbers(seed);
    std::normal_distribution<float> normal;
    // Norms that differ enough to detect the use of a wrong one.
    const auto set_norm = [&](ConstTensor& weight) {
      std::vector<float>& norm = norms_.emplace_back();
      for (int64_t i = 0; i < weight.cols; ++i) norm.push_back(1.0f + 0.5f * normal(numbers));
      weight.data = reinterpret_cast<const std::byte*>(norm.data());
    };
    for (LayerWeights& layer : weights.layers) {
      set_norm(layer.attention_norm.weight);
      for (ConstTensor* weight :
           {&layer.q_norm.weight, &layer.k_norm.weight, &layer.attention_out_norm.weight, &layer.mlp_out_norm.weight})
        if (*weight) set_norm(*weight);
    }
    for (int64_t layer = 0; layer < config.layers; ++layer) {
      SketchMatrices& basis = bases.emplace_back();
      for (int64_t i = 0; i < config.kv_heads * config.head_dim * dims; ++i) {
        basis.query.push_back(normal(numbers) / 4);
        basis.key.push_back(basis.query.back());  // not orthogonal, but the same for queries and keys
      }
      for (int64_t i = 0; i < config.kv_heads * dims; ++i) basis.key_offset.push_back(normal(numbers) / 10);
      const auto fill = [&](std::vector<float>& to, int64_t count) {
        for (int64_t i = 0; i < count; ++i) to.push_back(normal(numbers) / 4);
      };
      TailMatrices& tail = tails.emplace_back();
      fill(tail.key_mean, config.kv_heads * config.head_dim);
      fill(tail.value, config.kv_heads * config.head_dim * kValueDims);
      fill(tail.value_offset, config.kv_heads * kValueDims);
      fill(tail.value_mean, config.kv_heads * config.head_dim);
    }
  }
  std::unique_ptr<Executor> Make(const KvMethod& method, Device device = Device::kCpu, int threads = 2,
                                 int64_t batch = 1, StoreType type = StoreType::kF32) const {
    Result<std::unique_ptr<Executor>> executor = MakeExecutor(config, weights,
                                                              {.device = device,
                                                               .threads = threads,
                                                               .max_tokens = 1024,
                                                               .max_batch = batch,
                                                               .kv_type = type,
                                                               .method = method},
                                                              {.bases = bases, .tails = tails});
    CHECK(executor.ok());
    return std::move(*executor);
  }
  std::vector<int32_t> Ids(size_t count, uint32_t seed) const {
    std::mt19937 random(seed);
    std::vector<int32_t> ids(count);
    for (int32_t& id : ids) id = static_cast<int32_t>(random() % static_cast<uint32_t>(config.vocab));
    return ids;
  }

  ModelConfig config;
  Weights weights;
  std::vector<SketchMatrices> bases;
  std::vector<TailMatrices> tails;

 private:
  std::vector<std::vector<float>> norms_;
};

inline KvMethod Sparse(GuessSource from, const SelectMethod* select = &kSelectSketch) {
  KvMethod method{.preset = "infinigen", .select = select, .from = from};
  method.rule = {.alpha = 2.0f, .cap = 0.2, .min_rows = 4, .sinks = 2, .window = 3};
  if (select->page_rows > 1) method.rule = {.alpha = kInfinity, .cap = 0.4, .min_rows = 4, .sinks = 2};
  method.dense_layers = from == GuessSource::kSelf ? 0 : 1;
  method.sketch.dims = 8;
  return method;
}

// The method with a tail and late rows, and with sketches whose numbers do not all share a scale.
inline KvMethod WithTail(KvMethod method, int32_t late = 0, int64_t mean_dims = 0) {
  method.rule.tail = true;
  method.rule.late = late;
  method.sketch.value_dims = kValueDims;
  method.sketch.scale_dims = 8;
  method.sketch.mean_dims = mean_dims;
  return method;
}

// Logits after ids[prefill..], each by a decode step.
inline std::vector<float> Decode(Executor& executor, std::span<const int32_t> ids, size_t prefill,
                                 const SelectRule* rule = nullptr) {
  const size_t vocab = static_cast<size_t>(executor.config().vocab);
  const SeqSlot slot = executor.Admit(static_cast<int64_t>(ids.size())).value();
  if (rule != nullptr) executor.SetRule(slot, *rule);
  if (prefill > 0) {
    CHECK(executor.BeginPrefill(slot, 0, ids.first(prefill)).ok());
    while (!executor.RunPrefillUnit(slot)) {
    }
    executor.EndPrefill(slot);
  }
  std::vector<float> logits((ids.size() - prefill) * vocab);
  for (size_t row = prefill; row < ids.size(); ++row) {
    const StepItem item{.slot = slot, .token = ids[row], .row = static_cast<int64_t>(row)};
    executor.Step({&item, 1}, std::span(logits).subspan((row - prefill) * vocab, vocab));
  }
  executor.Release(slot);
  return logits;
}

// Logits after all ids, by a prefill.
inline std::vector<float> AsSteps(Executor& executor, std::span<const int32_t> ids) {
  const SeqSlot slot = executor.Admit(static_cast<int64_t>(ids.size())).value();
  CHECK(executor.BeginPrefill(slot, 0, ids, PrefillKind::kSteps).ok());
  while (!executor.RunPrefillUnit(slot)) {
  }
  std::vector<float> logits(ids.size() * static_cast<size_t>(executor.config().vocab));
  executor.PrefillLogits(slot, 0, static_cast<int64_t>(ids.size()), logits);
  executor.Release(slot);
  return logits;
}

inline std::vector<float> Independent(const RandomModelWithBases& model, const KvMethod& method,
                                      std::span<const int32_t> ids, size_t prefill, GuessMistakes mistakes = {}) {
  SelectingModel plain(model.config, model.weights, method, model.bases, model.tails, mistakes);
  plain.Limit(std::ssize(ids), static_cast<int64_t>(prefill));
  std::vector<float> logits;
  for (size_t row = 0; row < ids.size(); ++row) {
    const std::vector<float> next = plain.Next(ids[row], row >= prefill);
    if (row >= prefill) logits.insert(logits.end(), next.begin(), next.end());
  }
  return logits;
}

// Largest difference, relative to the largest logit.
inline double Difference(const std::vector<float>& a, const std::vector<float>& b) {
  CHECK(a.size() == b.size());
  float most = 0, largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, std::fabs(a[i]));
    most = std::max(most, std::fabs(a[i] - b[i]));
  }
  return static_cast<double>(most / largest);
}
// Rounding errors are below this; one row more or less in a selection is far above it.
inline constexpr double kRounding = 2e-5;

}  // namespace infinigen
