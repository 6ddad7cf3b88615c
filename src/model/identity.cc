#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>

#include "model/calibrate.h"
#include "model/family.h"
#include "model/parameters.h"

namespace infinigen {
namespace {

constexpr int64_t kSampleBytes = 64 << 10;  // hashed bytes of one tensor
// Hashed first; must change whenever the hash covers other data.
constexpr std::string_view kRecipe = "infinigen model identity 2";

class Hasher {
 public:
  Hasher() : state_(XXH3_createState(), &XXH3_freeState) {
    CHECK(state_ != nullptr);
    XXH3_128bits_reset(state_.get());
  }

  void Text(std::string_view text) {
    Number(static_cast<int64_t>(text.size()));
    Bytes(text.data(), text.size());
  }
  void Number(int64_t value) { Bytes(&value, sizeof(value)); }
  void Real(double value) { Bytes(&value, sizeof(value)); }

  // Hashes rows 0, step, 2·step, …; an absent parameter has no rows.
  void Tensor(std::string_view role, const WeightView& tensor) {
    Text(role);
    Number(tensor.rows);
    Number(tensor.cols);
    Number(static_cast<int64_t>(tensor.type));
    const int64_t rows = std::max<int64_t>(kSampleBytes / std::max<int64_t>(tensor.row_bytes, 1), 1);
    const int64_t step = std::max<int64_t>((tensor.rows + rows - 1) / rows, 1);
    for (int64_t row = 0; tensor && row < tensor.rows; row += step)
      Bytes(tensor.row(row), static_cast<size_t>(std::min(tensor.row_bytes, kSampleBytes)));
  }

  ModelIdentity Finish() const {
    const XXH128_hash_t hash = XXH3_128bits_digest(state_.get());
    return {.high = hash.high64, .low = hash.low64};
  }

 private:
  void Bytes(const void* data, size_t size) { XXH3_128bits_update(state_.get(), data, size); }

  std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state_;
};

void AddRope(const RopeConfig& rope, Hasher& hash) {
  hash.Number(static_cast<int64_t>(rope.scaling));
  hash.Number(rope.original_max_positions);
  for (const double value : {rope.base, rope.factor, rope.low_freq_factor, rope.high_freq_factor}) hash.Real(value);
}

void AddNorm(const NormSpec& norm, Hasher& hash) {
  hash.Number(static_cast<int64_t>(norm.kind));
  hash.Number(int64_t{norm.affine});
  hash.Real(static_cast<double>(norm.eps));
}

void AddLayer(const LayerSpec& spec, Hasher& hash) {
  for (const int64_t value :
       {int64_t{spec.rope}, spec.window, int64_t{spec.qkv_bias}, int64_t{spec.o_bias},
        static_cast<int64_t>(spec.qk_norm), static_cast<int64_t>(spec.norm_placement), int64_t{spec.mlp.gated},
        static_cast<int64_t>(spec.mlp.activation), int64_t{spec.mlp.bias}})
    hash.Number(value);
  hash.Real(static_cast<double>(spec.attention_scale));
  hash.Real(static_cast<double>(spec.attention_soft_cap));
  AddNorm(spec.norm, hash);
}

// The layer that AddConfig hashes for all layers. For models whose layers are alike and have only features of Llama and
// OPT it is complete; existing skew files depend on their hash. AddRest hashes what differs from it in other models.
LayerSpec CommonLayer(const ModelConfig& config) {
  LayerSpec spec = PlainLayer(config.head_dim);
  const LayerSpec& first = config.specs.front();
  if (config.ropes.empty()) spec.rope = LayerSpec::kNoRope;
  spec.qkv_bias = spec.o_bias = first.qkv_bias;
  spec.norm = first.norm;
  if (first.norm_placement != NormPlacement::kBefore) spec.norm_placement = NormPlacement::kAfterResidual;
  if (!first.mlp.gated) spec.mlp = {.gated = false, .activation = Activation::kRelu};
  spec.mlp.bias = first.mlp.bias;
  return spec;
}

void AddConfig(const ModelConfig& config, Hasher& hash) {
  const LayerSpec spec = CommonLayer(config);
  for (const int64_t value :
       {config.family == nullptr ? 0 : config.family->identity_number, config.layers, config.hidden, config.heads,
        config.kv_heads, config.head_dim, config.ffn, config.vocab, config.embed_dim,
        static_cast<int64_t>(spec.norm.kind), int64_t{spec.norm_placement == NormPlacement::kBefore},
        int64_t{config.final_norm.has_value()}, static_cast<int64_t>(config.positions), config.position_offset,
        int64_t{spec.mlp.gated ? 0 : 1}, int64_t{spec.qkv_bias}, int64_t{spec.mlp.bias},
        int64_t{config.tied_embeddings}})
    hash.Number(value);
  hash.Real(static_cast<double>(spec.norm.eps));
  if (!config.ropes.empty()) AddRope(config.ropes.front(), hash);
}

void AddRest(const ModelConfig& config, Hasher& hash) {
  const LayerSpec common = CommonLayer(config);
  for (size_t layer = 0; layer < config.specs.size(); ++layer) {
    if (config.specs[layer] == common) continue;
    hash.Text("layer");
    hash.Number(static_cast<int64_t>(layer));
    AddLayer(config.specs[layer], hash);
  }
  for (size_t i = 0; i < config.ropes.size(); ++i) {
    const RopeConfig& rope = config.ropes[i];
    const RopeConfig hashed_before{.base = rope.base,
                                   .scaling = rope.scaling,
                                   .factor = rope.factor,
                                   .low_freq_factor = rope.low_freq_factor,
                                   .high_freq_factor = rope.high_freq_factor,
                                   .original_max_positions = rope.original_max_positions};
    if (i == 0 && rope == hashed_before) continue;
    hash.Text("rope");
    AddRope(rope, hash);
    hash.Number(static_cast<int64_t>(rope.order));
    hash.Number(rope.rotary_dims);
    if (rope.frequency_divisors.empty() && rope.magnitude == 1 && rope.truncate) continue;
    for (const std::vector<float>* divisors : {&rope.frequency_divisors, &rope.long_divisors})
      for (const float divisor : *divisors) hash.Real(static_cast<double>(divisor));
    hash.Real(rope.magnitude);
    hash.Number(int64_t{rope.truncate});
  }
  if (config.final_norm && *config.final_norm != common.norm) {
    hash.Text("final norm");
    AddNorm(*config.final_norm, hash);
  }
  if (config.embedding_scale == 1 && config.logit_soft_cap == 0) return;
  hash.Text("ends");
  hash.Real(static_cast<double>(config.embedding_scale));
  hash.Real(static_cast<double>(config.logit_soft_cap));
}

// The hashed name of a parameter that queries, keys or values depend on; empty: not hashed.
std::string_view HashedName(WeightRole role) {
  switch (role) {
    case WeightRole::kEmbedding:
      return "embedding";
    case WeightRole::kAttentionNorm:
      return "attention_norm";
    case WeightRole::kQuery:
      return "q";
    case WeightRole::kKey:
      return "k";
    case WeightRole::kValue:
      return "v";
    case WeightRole::kQueryNorm:
      return "q_norm";
    case WeightRole::kKeyNorm:
      return "k_norm";
    default:
      return {};
  }
}

}  // namespace

ModelIdentity IdentifyModel(const ModelConfig& config, const Weights& weights) {
  Hasher hash;
  hash.Text(kRecipe);
  AddConfig(config, hash);
  AddRest(config, hash);
  VisitParameters(weights, [&](const Parameter& parameter, const auto& view) {
    const std::string_view name = HashedName(parameter.role);
    if (name.empty()) return;
    const bool head_norm = parameter.role == WeightRole::kQueryNorm || parameter.role == WeightRole::kKeyNorm;
    if (head_norm && !view) return;  // hashes of models without head norms must stay as they were before these existed
    if (parameter.role == WeightRole::kAttentionNorm && parameter.part == WeightPart::kWeight)
      hash.Number(parameter.layer);  // the first parameter of a layer
    hash.Tensor(parameter.part == WeightPart::kWeight ? std::string(name) : fmt::format("{}.bias", name),
                WeightView(view));
  });
  return hash.Finish();
}

}  // namespace infinigen
