// Phi-3 and Phi-4 without images and experts: Llama whose query, key and value matrices, and gate and up, are stored as
// one tensor each. Models for long contexts use longrope; Phi-4-mini rotates three quarters of each head.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "model/config_reader.h"
#include "model/families/families.h"

namespace infinigen {
namespace {

constexpr std::string_view kPhi3ModelTypes[] = {"phi3"};
constexpr std::string_view kPhi3Classes[] = {"Phi3ForCausalLM", "Phi3Model"};

constexpr RoleName kPhi3Modules[] = {
    {WeightRole::kEmbedding, "embed_tokens"},
    {WeightRole::kAttentionNorm, "layers.#.input_layernorm"},
    {WeightRole::kMlpNorm, "layers.#.post_attention_layernorm"},
    {WeightRole::kQuery, "layers.#.self_attn.qkv_proj"},
    {WeightRole::kKey, "layers.#.self_attn.qkv_proj"},
    {WeightRole::kValue, "layers.#.self_attn.qkv_proj"},
    {WeightRole::kOutput, "layers.#.self_attn.o_proj"},
    {WeightRole::kGate, "layers.#.mlp.gate_up_proj"},
    {WeightRole::kUp, "layers.#.mlp.gate_up_proj"},
    {WeightRole::kDown, "layers.#.mlp.down_proj"},
    {WeightRole::kFinalNorm, "norm"},
    {WeightRole::kLmHead, "lm_head"},
};

constexpr PublishedShape kPhi3Shapes[] = {
    {"phi-3-mini-4k", R"({"model_type": "phi3", "num_hidden_layers": 32, "hidden_size": 3072, "num_attention_heads": 32,
      "num_key_value_heads": 32, "intermediate_size": 8192, "vocab_size": 32064, "max_position_embeddings": 4096,
      "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "sliding_window": 2047})"},
    {"phi-3-medium-4k",
     R"({"model_type": "phi3", "num_hidden_layers": 40, "hidden_size": 5120, "num_attention_heads": 40,
      "num_key_value_heads": 10, "intermediate_size": 17920, "vocab_size": 32064, "max_position_embeddings": 4096,
      "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "sliding_window": 2047})"},
    {"phi-4", R"({"model_type": "phi3", "num_hidden_layers": 40, "hidden_size": 5120, "num_attention_heads": 40,
      "num_key_value_heads": 10, "intermediate_size": 17920, "vocab_size": 100352, "max_position_embeddings": 16384,
      "rms_norm_eps": 1e-5, "rope_theta": 250000.0, "sliding_window": null})"},
    {"phi-4-mini", R"({"model_type": "phi3", "num_hidden_layers": 32, "hidden_size": 3072, "num_attention_heads": 24,
      "num_key_value_heads": 8, "intermediate_size": 8192, "vocab_size": 200064, "max_position_embeddings": 131072,
      "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "partial_rotary_factor": 0.75, "tie_word_embeddings": true,
      "sliding_window": 262144})"},
};

constexpr std::string_view kPhi3Architectures[] = {"phi3"};
constexpr std::string_view kPhi3GgufExtraTensors[] = {"rope_factors_long.weight", "rope_factors_short.weight"};
constexpr RoleName kPhi3GgufModules[] = {
    {WeightRole::kEmbedding, "token_embd"},     {WeightRole::kAttentionNorm, "blk.#.attn_norm"},
    {WeightRole::kMlpNorm, "blk.#.ffn_norm"},   {WeightRole::kQuery, "blk.#.attn_qkv"},
    {WeightRole::kKey, "blk.#.attn_qkv"},       {WeightRole::kValue, "blk.#.attn_qkv"},
    {WeightRole::kOutput, "blk.#.attn_output"}, {WeightRole::kGate, "blk.#.ffn_up"},
    {WeightRole::kUp, "blk.#.ffn_up"},          {WeightRole::kDown, "blk.#.ffn_down"},
    {WeightRole::kFinalNorm, "output_norm"},    {WeightRole::kLmHead, "output"},
};
void CompletePhi3(nlohmann::json& tree, int64_t rotary_dims) {
  const int64_t head_dim =
      tree.value("head_dim", tree["hidden_size"].get<int64_t>() / tree["num_attention_heads"].get<int64_t>());
  if (rotary_dims > 0 && rotary_dims < head_dim)
    tree["partial_rotary_factor"] = static_cast<double>(rotary_dims) / static_cast<double>(head_dim);
}
constexpr GgufFamily kPhi3Gguf = {.architectures = kPhi3Architectures,
                                  .modules = kPhi3GgufModules,
                                  .extra_tensors = kPhi3GgufExtraTensors,
                                  .biases = {},
                                  .fields = {},
                                  .complete = CompletePhi3};

void ReadPhi3(FieldReader& fields, ModelConfig& config) {
  config.ffn = fields.Size("intermediate_size", kMaxFfn);
  ReadGroupedHeads(fields, config);
  config.embed_dim = config.hidden;
  fields.Only("hidden_act", "silu");
  for (const char* off : {"attention_bias", "mlp_bias", "lm_head_bias"}) fields.Only(off, false);
  for (const char* one : {"full_attn_mod", "interpolate_factor"}) fields.Only(one, 1);
  fields.Ignore("auto_map");  // names code of the same model for old versions of transformers
  config.tied_embeddings = fields.Bool("tie_word_embeddings", false);
  // transformers 5 writes it into rope_parameters.
  double part = fields.Positive("partial_rotary_factor", 1.0);
  if (const nlohmann::json* rope = fields.Get("rope_parameters"); rope != nullptr && rope->is_object())
    if (const auto inside = rope->find("partial_rotary_factor"); inside != rope->end() && inside->is_number())
      part = inside->get<double>();
  const auto dims = static_cast<int64_t>(static_cast<double>(config.head_dim) * std::clamp(part, 0.0, 1.0));
  if (part > 1) return fields.Fail(Invalid("{} is {}, expected at most 1", fields.At("partial_rotary_factor"), part));
  if (dims <= 0 || dims % 2 != 0)
    return fields.Fail(Invalid("{} {} rotates {} of {} dimensions, expected an even number",
                               fields.At("partial_rotary_factor"), part, dims, config.head_dim));
  const int64_t original = fields.Size("original_max_position_embeddings", kMaxPositions, config.max_positions);
  RopeConfig rope = ReadRope(fields, {.max_positions = config.max_positions,
                                      .head_dim = config.head_dim,
                                      .rotary_dims = dims,
                                      .original_positions = original});
  if (dims == config.head_dim) rope.rotary_dims = 0;
  config.ropes = {std::move(rope)};
  LayerSpec spec = PlainLayer(config.head_dim);
  spec.norm.eps = static_cast<float>(fields.Positive("rms_norm_eps", 1e-5));
  config.final_norm = spec.norm;
  config.SetLayers(config.layers, spec);
  const std::vector<bool> all(static_cast<size_t>(config.layers), true);
  const std::vector<bool> sliding = ReadLayerTypes(fields, config.layers).value_or(all);
  if (fields.Get("sliding_window") != nullptr)
    SetWindows(config, fields.Size("sliding_window", kMaxPositions), sliding);
}

}  // namespace

constexpr ModelFamily kPhi3Family = {.name = "phi3",
                                     .model_types = kPhi3ModelTypes,
                                     .classes = kPhi3Classes,
                                     .prefixes = kLlamaPrefixes,
                                     .modules = kPhi3Modules,
                                     .extra_tensors = kRotaryTensors,
                                     .shapes = kPhi3Shapes,
                                     .read = ReadPhi3,
                                     .identity_number = 6,
                                     .gguf = &kPhi3Gguf};

}  // namespace infinigen
