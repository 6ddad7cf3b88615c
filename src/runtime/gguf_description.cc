#include "runtime/gguf_description.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "model/config_reader.h"
#include "model/family.h"

namespace infinigen {
namespace {

using nlohmann::json;

bool IsLongRope(const RopeConfig& rope) { return !rope.frequency_divisors.empty(); }

// Numbers of metadata are float32.
double Rounded(double number) { return static_cast<double>(static_cast<float>(number)); }

// As the parser of config.json gives whole numbers.
uint64_t Whole(int64_t number) { return static_cast<uint64_t>(number); }

// The number of a key that only some families have (GgufFamily::fields); 0: the key is left out.
double FieldNumber(const ModelConfig& config, std::string_view field) {
  if (field == "attn_logit_softcapping") return static_cast<double>(config.specs.front().attention_soft_cap);
  if (field == "final_logit_softcapping") return static_cast<double>(config.logit_soft_cap);
  if (field == "rope_local_base_freq") return config.ropes.size() > 1 ? Rounded(config.ropes[1].base) : 0;
  return 0;
}

bool HasBias(const LayerSpec& spec, WeightRole role) {
  if (role == WeightRole::kQuery || role == WeightRole::kKey || role == WeightRole::kValue) return spec.qkv_bias;
  return role == WeightRole::kOutput ? spec.o_bias : spec.mlp.bias;
}

json ScalingTree(const RopeConfig& rope) {
  if (IsLongRope(rope)) {
    const std::vector<float>& far = rope.long_divisors.empty() ? rope.frequency_divisors : rope.long_divisors;
    return {{"rope_type", "longrope"},
            {"attention_factor", Rounded(rope.magnitude)},
            {"original_max_position_embeddings", Whole(rope.original_max_positions)},
            {"short_factor", rope.frequency_divisors},
            {"long_factor", far}};
  }
  if (rope.scaling == RopeScaling::kLinear) return {{"rope_type", "linear"}, {"factor", Rounded(rope.factor)}};
  if (rope.scaling == RopeScaling::kYarn)
    return {{"rope_type", "yarn"},
            {"factor", Rounded(rope.factor)},
            {"original_max_position_embeddings", Whole(rope.original_max_positions)}};
  return nullptr;  // none; llama3 is a tensor
}

// What the reader of the metadata (model/gguf_config.h) makes of it: the tree of config.json, and the model.
Result<ModelConfig> ReadBack(const ModelConfig& config) {
  const GgufFamily& gguf = *config.family->gguf;
  const ModelFamily& reader = *FindGgufFamily(gguf.architectures[0]);
  const LayerSpec& first = config.specs.front();
  json tree = {{"model_type", reader.model_types[0]},
               {"num_hidden_layers", Whole(config.layers)},
               {"hidden_size", Whole(config.hidden)},
               {"intermediate_size", Whole(config.ffn)},
               {"max_position_embeddings", Whole(config.max_positions)},
               {"num_attention_heads", Whole(config.heads)},
               {"num_key_value_heads", Whole(config.kv_heads)},
               {"head_dim", Whole(config.head_dim)},
               {"vocab_size", Whole(config.vocab)},
               {"tie_word_embeddings", config.tied_embeddings},
               {"rms_norm_eps", first.norm.eps}};
  for (const GgufBias& bias : reader.gguf->biases) tree[std::string(bias.field)] = HasBias(first, bias.role);
  for (const GgufField& field : reader.gguf->fields)
    if (const double number = FieldNumber(config, field.field); number != 0) tree[std::string(field.field)] = number;
  if (config.window() != 0) tree["sliding_window"] = Whole(config.window());
  int64_t rotary_dims = 0;
  if (!config.ropes.empty()) {
    const RopeConfig& rope = config.ropes.front();
    rotary_dims = rope.dims(config.head_dim);
    tree["rope_theta"] = Rounded(rope.base);
    if (json scaling = ScalingTree(rope); !scaling.is_null()) tree["rope_scaling"] = std::move(scaling);
  }
  if (reader.gguf->complete != nullptr) reader.gguf->complete(tree, rotary_dims);
  return ModelConfigOf(tree, "metadata");
}

bool Near(double a, double b) { return std::fabs(a - b) <= 1e-6 * std::fabs(a); }

bool SameRope(const ModelConfig& config, const RopeConfig& stated, const RopeConfig& read) {
  RopeConfig expected = stated;
  if (expected.scaling == RopeScaling::kLlama3) expected = {.base = stated.base, .rotary_dims = stated.rotary_dims};
  if (!Near(expected.base, read.base) || !Near(expected.factor, read.factor) ||
      !Near(expected.magnitude, read.magnitude) || expected.dims(config.head_dim) != read.dims(config.head_dim))
    return false;
  expected.base = read.base;
  expected.factor = read.factor;
  expected.magnitude = read.magnitude;
  expected.rotary_dims = read.rotary_dims;
  expected.order = read.order;
  if (expected.long_divisors.empty() && expected.frequency_divisors == read.long_divisors)
    expected.long_divisors = read.long_divisors;
  return expected == read;
}

// The feature in which two layers differ; empty: none.
std::string_view Difference(const LayerSpec& a, const LayerSpec& b) {
  if (a.window != b.window) return "its sliding windows";
  if (a.rope != b.rope) return "which of its layers use which RoPE";
  if (a.attention_scale != b.attention_scale) return "its scale of attention scores";
  if (a.attention_soft_cap != b.attention_soft_cap) return "its soft cap of attention scores";
  return a == b ? "" : "the form of its layers";
}

std::string_view Difference(const ModelConfig& a, const ModelConfig& b) {
  for (size_t layer = 0; layer < a.specs.size(); ++layer)
    if (const std::string_view what = Difference(a.specs[layer], b.specs[layer]); !what.empty()) return what;
  if (a.ropes.size() != b.ropes.size()) return "its RoPE";
  for (size_t i = 0; i < a.ropes.size(); ++i)
    if (!SameRope(a, a.ropes[i], b.ropes[i])) return "its RoPE";
  if (a.logit_soft_cap != b.logit_soft_cap) return "its soft cap of logits";
  if (a.embedding_scale != b.embedding_scale) return "its scale of embeddings";
  if (a.final_norm != b.final_norm || a.embed_dim != b.embed_dim || a.positions != b.positions)
    return "the form of its first or last layer";
  return "";
}

}  // namespace

Status CheckDescribable(const ModelConfig& config) {
  const Result<ModelConfig> read = ReadBack(config);
  if (!read.ok() && config.window() != 0)
    return Unsupported("GGUF metadata of the architecture {} cannot express its sliding windows",
                       config.family->gguf->architectures[0]);
  if (!read.ok()) return Unsupported("GGUF metadata cannot express it: {}", read.error().message);
  const std::string_view what = Difference(config, *read);
  if (what.empty()) return Ok();
  return Unsupported("GGUF metadata of the architecture {} cannot express {}", config.family->gguf->architectures[0],
                     what);
}

void DescribeModel(const ModelConfig& config, GgufWriter& writer) {
  const GgufFamily& gguf = *config.family->gguf;
  const auto key = [&](std::string_view name) { return fmt::format("{}.{}", gguf.architectures[0], name); };
  const auto size = [&](std::string_view name, int64_t value) {
    writer.AddUint32(key(name), static_cast<uint32_t>(value));
  };
  const auto number = [&](std::string_view name, double value) {
    writer.AddFloat(key(name), static_cast<float>(value));
  };
  writer.AddString("general.architecture", gguf.architectures[0]);
  writer.AddString("general.name", config.name);
  size("block_count", config.layers);
  size("context_length", config.max_positions);
  size("embedding_length", config.hidden);
  size("feed_forward_length", config.ffn);
  size("attention.head_count", config.heads);
  size("attention.head_count_kv", config.kv_heads);
  size("attention.key_length", config.head_dim);
  size("attention.value_length", config.head_dim);
  size("vocab_size", config.vocab);
  writer.AddFloat(key("attention.layer_norm_rms_epsilon"), config.specs.front().norm.eps);
  for (const GgufField& field : gguf.fields)
    if (const double value = FieldNumber(config, field.field); value != 0) number(field.key, value);
  if (config.window() != 0) size("attention.sliding_window", config.window());
  if (config.ropes.empty()) return;
  const RopeConfig& rope = config.ropes.front();
  size("rope.dimension_count", rope.dims(config.head_dim));
  number("rope.freq_base", rope.base);
  if (IsLongRope(rope)) {
    number("rope.scaling.attn_factor", rope.magnitude);
  } else if (rope.scaling == RopeScaling::kLinear || rope.scaling == RopeScaling::kYarn) {
    writer.AddString(key("rope.scaling.type"), rope.scaling == RopeScaling::kLinear ? "linear" : "yarn");
    number("rope.scaling.factor", rope.factor);
  }
  if (IsLongRope(rope) || rope.scaling == RopeScaling::kYarn)
    size("rope.scaling.original_context_length", rope.original_max_positions);
}

std::vector<GgufNumbers> DescribeRotation(const ModelConfig& config) {
  if (config.ropes.empty()) return {};
  RopeConfig rope = config.ropes.front();
  if (IsLongRope(rope)) {
    const std::vector<float>& far = rope.long_divisors.empty() ? rope.frequency_divisors : rope.long_divisors;
    return {{"rope_factors_long.weight", far}, {"rope_factors_short.weight", rope.frequency_divisors}};
  }
  // Files have no key for the scaling of Llama 3; they store what it divides each frequency by.
  if (rope.scaling != RopeScaling::kLlama3) return {};
  const std::vector<float> scaled = RopeInverseFrequencies(rope, config.head_dim, config.max_positions);
  rope.scaling = RopeScaling::kNone;
  std::vector<float> divisors = RopeInverseFrequencies(rope, config.head_dim, config.max_positions);
  for (size_t i = 0; i < divisors.size(); ++i) divisors[i] /= scaled[i];
  return {{"rope_freqs.weight", std::move(divisors)}};
}

}  // namespace infinigen
