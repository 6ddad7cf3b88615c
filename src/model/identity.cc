#include "model/identity.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>

#include "model/family.h"
#include "model/parameter_walk.h"

namespace infinigen {
namespace {

constexpr int64_t kSampleBytes = 64 << 10;  // of one tensor
// Part of what is hashed: raise it when the hash takes in other things.
constexpr std::string_view kRecipe = "infinigen model identity 1";

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

  // Rows 0, step, 2·step, ...; a parameter that the model does not have has no rows.
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

void AddConfig(const ModelConfig& config, Hasher& hash) {
  for (const int64_t value :
       {config.family == nullptr ? 0 : config.family->identity_number, config.layers, config.hidden, config.heads,
        config.kv_heads, config.head_dim, config.ffn, config.vocab, config.embed_dim, static_cast<int64_t>(config.norm),
        int64_t{config.pre_norm}, int64_t{config.final_norm}, static_cast<int64_t>(config.positions),
        config.position_offset, static_cast<int64_t>(config.mlp), int64_t{config.attention_bias},
        int64_t{config.mlp_bias}, int64_t{config.tied_embeddings}})
    hash.Number(value);
  hash.Real(static_cast<double>(config.norm_eps));
  if (config.positions != PositionKind::kRope) return;
  const RopeConfig& rope = config.rope;
  hash.Number(static_cast<int64_t>(rope.scaling));
  hash.Number(rope.original_max_positions);
  for (const double value : {rope.theta, rope.factor, rope.low_freq_factor, rope.high_freq_factor}) hash.Real(value);
}

// Parameters that queries and keys follow from, by the names that are hashed; empty: not hashed.
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
    default:
      return {};
  }
}

}  // namespace

ModelIdentity IdentifyModel(const ModelConfig& config, const Weights& weights) {
  Hasher hash;
  hash.Text(kRecipe);
  AddConfig(config, hash);
  VisitParameters(weights, [&](const Parameter& parameter, const auto& view) {
    const std::string_view name = HashedName(parameter.role);
    if (name.empty()) return;
    if (parameter.role == WeightRole::kAttentionNorm && parameter.part == WeightPart::kWeight)
      hash.Number(parameter.layer);  // a layer begins
    hash.Tensor(parameter.part == WeightPart::kWeight ? std::string(name) : fmt::format("{}.bias", name),
                WeightView(view));
  });
  return hash.Finish();
}

}  // namespace infinigen
