// Llama 2, 3, 3.1 and 3.2: RMS norms before attention and MLP, rotary positions, grouped KV heads, a gated MLP.
#include "model/config_reader.h"
#include "model/families/families.h"

namespace infinigen {
namespace {

constexpr std::string_view kLlamaModelTypes[] = {"llama"};
constexpr std::string_view kLlamaClasses[] = {"LlamaForCausalLM", "LLaMAForCausalLM", "LlamaModel"};

constexpr PublishedShape kLlamaShapes[] = {
    {"llama-2-7b", R"({"model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
      "num_key_value_heads": 32, "intermediate_size": 11008, "vocab_size": 32000, "max_position_embeddings": 4096,
      "rms_norm_eps": 1e-5})"},
    {"llama-2-13b", R"({"model_type": "llama", "num_hidden_layers": 40, "hidden_size": 5120, "num_attention_heads": 40,
      "num_key_value_heads": 40, "intermediate_size": 13824, "vocab_size": 32000, "max_position_embeddings": 4096,
      "rms_norm_eps": 1e-5})"},
    {"llama-3-8b", R"({"model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
      "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 8192,
      "rms_norm_eps": 1e-5, "rope_theta": 500000.0})"},
    {"llama-3.1-8b", R"({"model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
      "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 131072,
      "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3", "factor": 8.0,
      "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}})"},
    {"llama-3.2-1b", R"({"model_type": "llama", "num_hidden_layers": 16, "hidden_size": 2048, "num_attention_heads": 32,
      "num_key_value_heads": 8, "intermediate_size": 8192, "vocab_size": 128256, "max_position_embeddings": 131072,
      "rms_norm_eps": 1e-5, "tie_word_embeddings": true, "rope_theta": 500000.0, "rope_scaling": {
      "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
      "original_max_position_embeddings": 8192}})"},
    {"llama-3.2-3b", R"({"model_type": "llama", "num_hidden_layers": 28, "hidden_size": 3072, "num_attention_heads": 24,
      "num_key_value_heads": 8, "intermediate_size": 8192, "vocab_size": 128256, "max_position_embeddings": 131072,
      "rms_norm_eps": 1e-5, "tie_word_embeddings": true, "rope_theta": 500000.0, "rope_scaling": {
      "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
      "original_max_position_embeddings": 8192}})"},
};

constexpr std::string_view kLlamaArchitectures[] = {"llama"};
constexpr GgufBias kLlamaBiases[] = {{WeightRole::kQuery, "attention_bias"}, {WeightRole::kUp, "mlp_bias"}};
constexpr GgufFamily kLlamaGguf = {.architectures = kLlamaArchitectures,
                                   .modules = kGgufNames,
                                   .extra_tensors = kGgufRopeTensors,
                                   .biases = kLlamaBiases,
                                   .fields = {},
                                   .rope_order = RopeOrder::kPairs};

void ReadLlama(FieldReader& fields, ModelConfig& config) {
  config.ffn = fields.Size("intermediate_size", kMaxFfn);
  ReadGroupedHeads(fields, config);
  config.embed_dim = config.hidden;
  fields.Only("hidden_act", "silu");
  config.tied_embeddings = fields.Bool("tie_word_embeddings", false);
  fields.Only("rope_interleaved", false);
  fields.Only("partial_rotary_factor", 1.0);
  config.ropes = {ReadRope(fields, {.max_positions = config.max_positions, .head_dim = config.head_dim})};
  LayerSpec spec = PlainLayer(config.head_dim);
  spec.qkv_bias = spec.o_bias = fields.Bool("attention_bias", false);
  spec.mlp.bias = fields.Bool("mlp_bias", false);
  spec.norm.eps = static_cast<float>(fields.Positive("rms_norm_eps", 1e-6));
  config.final_norm = spec.norm;
  config.SetLayers(config.layers, spec);
}

}  // namespace

constexpr ModelFamily kLlamaFamily = {.name = "llama",
                                      .model_types = kLlamaModelTypes,
                                      .classes = kLlamaClasses,
                                      .prefixes = kLlamaPrefixes,
                                      .modules = kLlamaModules,
                                      .extra_tensors = kRotaryTensors,
                                      .shapes = kLlamaShapes,
                                      .read = ReadLlama,
                                      .identity_number = 0,
                                      .gguf = &kLlamaGguf};

}  // namespace infinigen
