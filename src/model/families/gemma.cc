// Gemma 2 and Gemma 3 (text): norms on the input and the output of attention and MLP, stored as weight − 1; GELU; a
// scaled embedding; local layers with a window between global ones. Gemma 2 has soft caps; Gemma 3 has norms on each
// head of queries and keys, and two RoPE bases.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "model/config_reader.h"
#include "model/families/families.h"

namespace infinigen {
namespace {

// Defaults of transformers' Gemma2Config and Gemma3TextConfig.
constexpr int64_t kGemmaHeadDim = 256;
constexpr int64_t kGemmaWindow = 4096;
constexpr double kGemma3Theta = 1000000.0;
constexpr double kGemma3LocalTheta = 10000.0;
constexpr int64_t kGemma3Pattern = 6;
// Range of caps and of query_pre_attn_scalar.
constexpr double kGemmaLeast = 1e-6, kGemmaMost = 1e6;

constexpr std::string_view kGemma2ModelTypes[] = {"gemma2"};
constexpr std::string_view kGemma2Classes[] = {"Gemma2ForCausalLM", "Gemma2Model"};
constexpr std::string_view kGemma2Prefixes[] = {"model.", ""};
// Rotary frequencies, which are computed from the config.
constexpr std::string_view kGemma2ExtraTensors[] = {"rotary_emb.inv_freq", "layers.#.self_attn.rotary_emb.inv_freq"};

constexpr RoleName kGemma2Modules[] = {
    {WeightRole::kEmbedding, "embed_tokens"},
    {WeightRole::kAttentionNorm, "layers.#.input_layernorm"},
    {WeightRole::kMlpNorm, "layers.#.pre_feedforward_layernorm"},
    {WeightRole::kQuery, "layers.#.self_attn.q_proj"},
    {WeightRole::kKey, "layers.#.self_attn.k_proj"},
    {WeightRole::kValue, "layers.#.self_attn.v_proj"},
    {WeightRole::kOutput, "layers.#.self_attn.o_proj"},
    {WeightRole::kAttentionOutNorm, "layers.#.post_attention_layernorm"},
    {WeightRole::kMlpOutNorm, "layers.#.post_feedforward_layernorm"},
    {WeightRole::kGate, "layers.#.mlp.gate_proj"},
    {WeightRole::kUp, "layers.#.mlp.up_proj"},
    {WeightRole::kDown, "layers.#.mlp.down_proj"},
    {WeightRole::kFinalNorm, "norm"},
    {WeightRole::kLmHead, "lm_head"},
};

constexpr std::string_view kGemma3ModelTypes[] = {"gemma3_text"};
constexpr std::string_view kGemma3Classes[] = {"Gemma3ForCausalLM", "Gemma3TextModel"};

constexpr RoleName kGemma3Modules[] = {
    {WeightRole::kEmbedding, "embed_tokens"},
    {WeightRole::kAttentionNorm, "layers.#.input_layernorm"},
    {WeightRole::kMlpNorm, "layers.#.pre_feedforward_layernorm"},
    {WeightRole::kQuery, "layers.#.self_attn.q_proj"},
    {WeightRole::kKey, "layers.#.self_attn.k_proj"},
    {WeightRole::kValue, "layers.#.self_attn.v_proj"},
    {WeightRole::kOutput, "layers.#.self_attn.o_proj"},
    {WeightRole::kAttentionOutNorm, "layers.#.post_attention_layernorm"},
    {WeightRole::kMlpOutNorm, "layers.#.post_feedforward_layernorm"},
    {WeightRole::kQueryNorm, "layers.#.self_attn.q_norm"},
    {WeightRole::kKeyNorm, "layers.#.self_attn.k_norm"},
    {WeightRole::kGate, "layers.#.mlp.gate_proj"},
    {WeightRole::kUp, "layers.#.mlp.up_proj"},
    {WeightRole::kDown, "layers.#.mlp.down_proj"},
    {WeightRole::kFinalNorm, "norm"},
    {WeightRole::kLmHead, "lm_head"},
};

constexpr PublishedShape kGemma3Shapes[] = {
    {"gemma-3-1b",
     R"({"model_type": "gemma3_text", "num_hidden_layers": 26, "hidden_size": 1152, "num_attention_heads": 4,
      "num_key_value_heads": 1, "intermediate_size": 6912, "vocab_size": 262144, "max_position_embeddings": 32768,
      "head_dim": 256, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0,
      "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 256, "sliding_window": 512})"},
    {"gemma-3-4b",
     R"({"model_type": "gemma3_text", "num_hidden_layers": 34, "hidden_size": 2560, "num_attention_heads": 8,
      "num_key_value_heads": 4, "intermediate_size": 10240, "vocab_size": 262208, "max_position_embeddings": 131072,
      "head_dim": 256, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0,
      "hidden_activation": "gelu_pytorch_tanh", "rope_scaling": {"rope_type": "linear", "factor": 8.0}, "query_pre_attn_scalar": 256, "sliding_window": 1024})"},
    {"gemma-3-12b",
     R"({"model_type": "gemma3_text", "num_hidden_layers": 48, "hidden_size": 3840, "num_attention_heads": 16,
      "num_key_value_heads": 8, "intermediate_size": 15360, "vocab_size": 262208, "max_position_embeddings": 131072,
      "head_dim": 256, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0,
      "hidden_activation": "gelu_pytorch_tanh", "rope_scaling": {"rope_type": "linear", "factor": 8.0}, "query_pre_attn_scalar": 256, "sliding_window": 1024})"},
    {"gemma-3-27b",
     R"({"model_type": "gemma3_text", "num_hidden_layers": 62, "hidden_size": 5376, "num_attention_heads": 32,
      "num_key_value_heads": 16, "intermediate_size": 21504, "vocab_size": 262208, "max_position_embeddings": 131072,
      "head_dim": 128, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0,
      "hidden_activation": "gelu_pytorch_tanh", "rope_scaling": {"rope_type": "linear", "factor": 8.0}, "query_pre_attn_scalar": 168, "sliding_window": 1024})"},
};

constexpr PublishedShape kGemma2Shapes[] = {
    {"gemma-2-2b", R"({"model_type": "gemma2", "num_hidden_layers": 26, "hidden_size": 2304, "num_attention_heads": 8,
      "num_key_value_heads": 4, "intermediate_size": 9216, "vocab_size": 256000, "max_position_embeddings": 8192,
      "head_dim": 256, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "sliding_window": 4096, "hidden_activation": "gelu_pytorch_tanh",
      "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "query_pre_attn_scalar": 256})"},
    {"gemma-2-9b", R"({"model_type": "gemma2", "num_hidden_layers": 42, "hidden_size": 3584, "num_attention_heads": 16,
      "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 256000, "max_position_embeddings": 8192,
      "head_dim": 256, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "sliding_window": 4096, "hidden_activation": "gelu_pytorch_tanh",
      "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "query_pre_attn_scalar": 256})"},
    {"gemma-2-27b", R"({"model_type": "gemma2", "num_hidden_layers": 46, "hidden_size": 4608, "num_attention_heads": 32,
      "num_key_value_heads": 16, "intermediate_size": 36864, "vocab_size": 256000, "max_position_embeddings": 8192,
      "head_dim": 128, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "sliding_window": 4096, "hidden_activation": "gelu_pytorch_tanh",
      "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "query_pre_attn_scalar": 144})"},
};

// What Gemma 2 and 3 share, except RoPE and windows.
LayerSpec ReadGemmaLayer(FieldReader& fields, ModelConfig& config) {
  config.ffn = fields.Size("intermediate_size", kMaxFfn);
  ReadGroupedHeads(fields, config, kGemmaHeadDim);
  config.embed_dim = config.hidden;
  config.embedding_scale = std::sqrt(static_cast<float>(config.hidden));
  config.norm_offset = 1;
  // Published files have both; transformers reads hidden_activation.
  fields.Ignore("hidden_act");
  fields.Only("hidden_activation", "gelu_pytorch_tanh");
  fields.Only("use_bidirectional_attention", false);
  fields.Ignore("cache_implementation");
  config.tied_embeddings = fields.Bool("tie_word_embeddings", true);
  LayerSpec spec;
  // Far beyond any head_dim, and small enough that the scale is a normal number.
  const double scalar = fields.Positive("query_pre_attn_scalar", static_cast<double>(kGemmaHeadDim));
  if (scalar < kGemmaLeast || scalar > kGemmaMost)
    fields.Fail(Invalid("{} is {}, expected a number from {} to {}", fields.At("query_pre_attn_scalar"), scalar,
                        kGemmaLeast, kGemmaMost));
  spec.attention_scale = static_cast<float>(1.0 / std::sqrt(std::clamp(scalar, kGemmaLeast, kGemmaMost)));
  spec.qkv_bias = spec.o_bias = fields.Bool("attention_bias", false);
  spec.norm.eps = static_cast<float>(fields.Positive("rms_norm_eps", 1e-6));
  spec.norm_placement = NormPlacement::kBothSides;
  spec.mlp.activation = Activation::kGeluTanh;
  config.final_norm = spec.norm;
  return spec;
}

// A soft cap: absent means `absent`, null means none.
float ReadSoftCap(FieldReader& fields, const char* name, double absent) {
  const nlohmann::json* value = fields.Find(name);
  if (value != nullptr && value->is_null()) return 0;
  if (value == nullptr && absent == 0) return 0;
  const double cap = fields.Positive(name, absent > 0 ? absent : 1);
  if (cap < kGemmaLeast || cap > kGemmaMost)
    fields.Fail(Invalid("{} is {}, expected a number from {} to {}", fields.At(name), cap, kGemmaLeast, kGemmaMost));
  return static_cast<float>(std::clamp(cap, kGemmaLeast, kGemmaMost));
}

// The scale of scores follows from the size in GGUF files: the largest models divide the residual stream by the heads.
constexpr int64_t kGemma2LargestLayers = 46, kGemma3LargestLayers = 62;
void CompleteGemma(nlohmann::json& tree, int64_t) {
  const int64_t layers = tree["num_hidden_layers"].get<int64_t>(), heads = tree["num_attention_heads"].get<int64_t>();
  const int64_t wide = std::max<int64_t>(1, tree["hidden_size"].get<int64_t>() / heads);
  const bool largest = layers == kGemma2LargestLayers || layers == kGemma3LargestLayers;
  tree["query_pre_attn_scalar"] = largest ? wide : tree.value("head_dim", wide);
}
constexpr std::string_view kGemma2Architectures[] = {"gemma2"}, kGemma3Architectures[] = {"gemma3"};
constexpr GgufField kGemmaGgufFields[] = {{"attn_logit_softcapping", "attn_logit_softcapping"},
                                          {"final_logit_softcapping", "final_logit_softcapping"}};
constexpr GgufField kGemma3GgufFields[] = {{"attn_logit_softcapping", "attn_logit_softcapping"},
                                           {"final_logit_softcapping", "final_logit_softcapping"},
                                           {"rope.freq_base_swa", "rope_local_base_freq"}};
constexpr GgufFamily kGemma2Gguf = {.architectures = kGemma2Architectures,
                                    .modules = kGgufNames,
                                    .extra_tensors = kGgufRopeTensors,
                                    .biases = {},
                                    .fields = kGemmaGgufFields,
                                    .complete = CompleteGemma};
constexpr GgufFamily kGemma3Gguf = {.architectures = kGemma3Architectures,
                                    .modules = kGgufNames,
                                    .extra_tensors = kGgufRopeTensors,
                                    .biases = {},
                                    .fields = kGemma3GgufFields,
                                    .complete = CompleteGemma};

// Every second layer is local, the first one too.
void ReadGemma2(FieldReader& fields, ModelConfig& config) {
  LayerSpec spec = ReadGemmaLayer(fields, config);
  spec.attention_soft_cap = ReadSoftCap(fields, "attn_logit_softcapping", 50.0);
  config.logit_soft_cap = ReadSoftCap(fields, "final_logit_softcapping", 30.0);
  config.ropes = {ReadRope(fields, {.max_positions = config.max_positions, .head_dim = config.head_dim})};
  config.SetLayers(config.layers, spec);
  std::vector<bool> sliding(static_cast<size_t>(config.layers));
  for (size_t layer = 0; layer < sliding.size(); layer += 2) sliding[layer] = true;
  const std::vector<bool> local = ReadLayerTypes(fields, config.layers).value_or(sliding);
  SetWindows(config, fields.Size("sliding_window", kMaxPositions, kGemmaWindow), local);
}

// Tables 0 and 1 are those of global and local layers. transformers 5 writes both in rope_parameters, by layer type.
void ReadGemma3Ropes(FieldReader& fields, ModelConfig& config) {
  RopeDefaults global{.max_positions = config.max_positions, .theta = kGemma3Theta, .head_dim = config.head_dim};
  RopeDefaults local = global;
  local.theta = fields.Positive("rope_local_base_freq", kGemma3LocalTheta);
  const nlohmann::json* both = fields.Get("rope_parameters");
  if (both == nullptr || !both->is_object() || !both->contains("full_attention")) {
    config.ropes = {ReadRope(fields, global), {.base = local.theta}};
    return;
  }
  fields.Ignore("rope_scaling");
  global.theta = fields.Positive("rope_theta", global.theta);
  config.ropes.assign(2, {});
  for (const auto& [name, object] : both->items()) {
    const bool is_local = name == "sliding_attention";
    if (!is_local && name != "full_attention")
      return fields.Fail(Unsupported("{} has unknown layer type '{}'", fields.At("rope_parameters"), name));
    Result<RopeConfig> rope = ParseRope(object, fields.where(), "rope_parameters." + name, is_local ? local : global);
    if (!rope.ok()) return fields.Fail(rope.error());
    config.ropes[is_local ? 1 : 0] = std::move(*rope);
  }
}

// Every sixth layer is global, the first one local.
void ReadGemma3(FieldReader& fields, ModelConfig& config) {
  LayerSpec spec = ReadGemmaLayer(fields, config);
  spec.qk_norm = QkNorm::kHead;
  spec.attention_soft_cap = ReadSoftCap(fields, "attn_logit_softcapping", 0);
  config.logit_soft_cap = ReadSoftCap(fields, "final_logit_softcapping", 0);
  ReadGemma3Ropes(fields, config);
  config.SetLayers(config.layers, spec);
  const int64_t stated = fields.Size("sliding_window_pattern", kMaxLayers, kGemma3Pattern);
  const int64_t pattern = fields.Size("_sliding_window_pattern", kMaxLayers, stated);
  std::vector<bool> sliding(static_cast<size_t>(config.layers), true);
  for (int64_t layer = pattern - 1; layer < config.layers; layer += pattern)
    sliding[static_cast<size_t>(layer)] = false;
  const std::vector<bool> local = ReadLayerTypes(fields, config.layers).value_or(sliding);
  for (size_t layer = 0; layer < config.specs.size(); ++layer)
    if (local[layer]) config.specs[layer].rope = 1;
  SetWindows(config, fields.Size("sliding_window", kMaxPositions, kGemmaWindow), local);
}

}  // namespace

constexpr ModelFamily kGemma2Family = {.name = "gemma2",
                                       .model_types = kGemma2ModelTypes,
                                       .classes = kGemma2Classes,
                                       .prefixes = kGemma2Prefixes,
                                       .modules = kGemma2Modules,
                                       .extra_tensors = kGemma2ExtraTensors,
                                       .shapes = kGemma2Shapes,
                                       .read = ReadGemma2,
                                       .identity_number = 7,
                                       .gguf = &kGemma2Gguf};

constexpr ModelFamily kGemma3Family = {.name = "gemma3",
                                       .model_types = kGemma3ModelTypes,
                                       .classes = kGemma3Classes,
                                       .prefixes = kGemma2Prefixes,
                                       .modules = kGemma3Modules,
                                       .extra_tensors = kGemma2ExtraTensors,
                                       .shapes = kGemma3Shapes,
                                       .read = ReadGemma3,
                                       .identity_number = 8,
                                       .gguf = &kGemma3Gguf};

}  // namespace infinigen
