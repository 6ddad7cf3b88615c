// Qwen3 without experts: Llama with RMS norms on each head of queries and keys. Windows as in Qwen2; the published
// models have none.
#include "model/config_reader.h"
#include "model/families/families.h"

namespace infinigen {
namespace {

// Defaults of transformers' Qwen3Config.
constexpr int64_t kQwen3HeadDim = 128;
constexpr int64_t kQwen3Window = 4096;
constexpr int64_t kQwen3FirstWindowLayer = 28;

constexpr std::string_view kQwen3ModelTypes[] = {"qwen3"};
constexpr std::string_view kQwen3Classes[] = {"Qwen3ForCausalLM", "Qwen3Model"};

constexpr RoleName kQwen3Modules[] = {
    {WeightRole::kEmbedding, "embed_tokens"},
    {WeightRole::kAttentionNorm, "layers.#.input_layernorm"},
    {WeightRole::kMlpNorm, "layers.#.post_attention_layernorm"},
    {WeightRole::kQuery, "layers.#.self_attn.q_proj"},
    {WeightRole::kKey, "layers.#.self_attn.k_proj"},
    {WeightRole::kValue, "layers.#.self_attn.v_proj"},
    {WeightRole::kOutput, "layers.#.self_attn.o_proj"},
    {WeightRole::kQueryNorm, "layers.#.self_attn.q_norm"},
    {WeightRole::kKeyNorm, "layers.#.self_attn.k_norm"},
    {WeightRole::kGate, "layers.#.mlp.gate_proj"},
    {WeightRole::kUp, "layers.#.mlp.up_proj"},
    {WeightRole::kDown, "layers.#.mlp.down_proj"},
    {WeightRole::kFinalNorm, "norm"},
    {WeightRole::kLmHead, "lm_head"},
};

constexpr PublishedShape kQwen3Shapes[] = {
    {"qwen3-0.6b", R"({"model_type": "qwen3", "num_hidden_layers": 28, "hidden_size": 1024, "num_attention_heads": 16,
      "num_key_value_heads": 8, "intermediate_size": 3072, "vocab_size": 151936, "max_position_embeddings": 40960,
      "head_dim": 128, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "tie_word_embeddings": true})"},
    {"qwen3-1.7b", R"({"model_type": "qwen3", "num_hidden_layers": 28, "hidden_size": 2048, "num_attention_heads": 16,
      "num_key_value_heads": 8, "intermediate_size": 6144, "vocab_size": 151936, "max_position_embeddings": 40960,
      "head_dim": 128, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "tie_word_embeddings": true})"},
    {"qwen3-4b", R"({"model_type": "qwen3", "num_hidden_layers": 36, "hidden_size": 2560, "num_attention_heads": 32,
      "num_key_value_heads": 8, "intermediate_size": 9728, "vocab_size": 151936, "max_position_embeddings": 40960,
      "head_dim": 128, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "tie_word_embeddings": true})"},
    {"qwen3-8b", R"({"model_type": "qwen3", "num_hidden_layers": 36, "hidden_size": 4096, "num_attention_heads": 32,
      "num_key_value_heads": 8, "intermediate_size": 12288, "vocab_size": 151936, "max_position_embeddings": 40960,
      "head_dim": 128, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0})"},
    {"qwen3-14b", R"({"model_type": "qwen3", "num_hidden_layers": 40, "hidden_size": 5120, "num_attention_heads": 40,
      "num_key_value_heads": 8, "intermediate_size": 17408, "vocab_size": 151936, "max_position_embeddings": 40960,
      "head_dim": 128, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0})"},
    {"qwen3-32b", R"({"model_type": "qwen3", "num_hidden_layers": 64, "hidden_size": 5120, "num_attention_heads": 64,
      "num_key_value_heads": 8, "intermediate_size": 25600, "vocab_size": 151936, "max_position_embeddings": 40960,
      "head_dim": 128, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0})"},
};

constexpr std::string_view kQwen3Architectures[] = {"qwen3"};
constexpr GgufBias kQwen3Biases[] = {{WeightRole::kQuery, "attention_bias"}};
constexpr GgufFamily kQwen3Gguf = {.architectures = kQwen3Architectures,
                                   .modules = kGgufNames,
                                   .extra_tensors = kGgufRopeTensors,
                                   .biases = kQwen3Biases,
                                   .fields = {}};

void ReadQwen3(FieldReader& fields, ModelConfig& config) {
  config.ffn = fields.Size("intermediate_size", kMaxFfn);
  ReadGroupedHeads(fields, config, kQwen3HeadDim);
  config.embed_dim = config.hidden;
  fields.Only("hidden_act", "silu");
  config.tied_embeddings = fields.Bool("tie_word_embeddings", false);
  config.ropes = {ReadRope(fields, {.max_positions = config.max_positions, .head_dim = config.head_dim})};
  LayerSpec spec = PlainLayer(config.head_dim);
  spec.qk_norm = QkNorm::kHead;
  spec.qkv_bias = spec.o_bias = fields.Bool("attention_bias", false);
  spec.norm.eps = static_cast<float>(fields.Positive("rms_norm_eps", 1e-6));
  config.final_norm = spec.norm;
  config.SetLayers(config.layers, spec);
  ReadSwitchedWindows(fields, config, kQwen3Window, kQwen3FirstWindowLayer);
}

}  // namespace

constexpr ModelFamily kQwen3Family = {.name = "qwen3",
                                      .model_types = kQwen3ModelTypes,
                                      .classes = kQwen3Classes,
                                      .prefixes = kLlamaPrefixes,
                                      .modules = kQwen3Modules,
                                      .extra_tensors = kRotaryTensors,
                                      .shapes = kQwen3Shapes,
                                      .read = ReadQwen3,
                                      .identity_number = 3,
                                      .gguf = &kQwen3Gguf};

}  // namespace infinigen
