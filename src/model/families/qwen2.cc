// Qwen1.5, Qwen2 and Qwen2.5 without experts: Llama with biases on q, k and v. config.json names a sliding window,
// which use_sliding_window switches on for the layers from max_window_layers on; the published models leave it off.
#include "model/config_reader.h"
#include "model/families/families.h"

namespace infinigen {
namespace {

// Defaults of transformers' Qwen2Config, which count once use_sliding_window is true.
constexpr int64_t kQwen2Window = 4096;
constexpr int64_t kQwen2FirstWindowLayer = 28;

constexpr std::string_view kQwen2ModelTypes[] = {"qwen2"};
constexpr std::string_view kQwen2Classes[] = {"Qwen2ForCausalLM", "Qwen2Model"};

constexpr PublishedShape kQwen2Shapes[] = {
    {"qwen2.5-0.5b", R"({"model_type": "qwen2", "num_hidden_layers": 24, "hidden_size": 896, "num_attention_heads": 14,
      "num_key_value_heads": 2, "intermediate_size": 4864, "vocab_size": 151936, "max_position_embeddings": 32768,
      "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "tie_word_embeddings": true})"},
    {"qwen2.5-1.5b", R"({"model_type": "qwen2", "num_hidden_layers": 28, "hidden_size": 1536, "num_attention_heads": 12,
      "num_key_value_heads": 2, "intermediate_size": 8960, "vocab_size": 151936, "max_position_embeddings": 131072,
      "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "tie_word_embeddings": true})"},
    {"qwen2.5-3b", R"({"model_type": "qwen2", "num_hidden_layers": 36, "hidden_size": 2048, "num_attention_heads": 16,
      "num_key_value_heads": 2, "intermediate_size": 11008, "vocab_size": 151936, "max_position_embeddings": 32768,
      "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "tie_word_embeddings": true})"},
    {"qwen2.5-7b", R"({"model_type": "qwen2", "num_hidden_layers": 28, "hidden_size": 3584, "num_attention_heads": 28,
      "num_key_value_heads": 4, "intermediate_size": 18944, "vocab_size": 152064, "max_position_embeddings": 131072,
      "rms_norm_eps": 1e-6, "rope_theta": 1000000.0})"},
    {"qwen2.5-14b", R"({"model_type": "qwen2", "num_hidden_layers": 48, "hidden_size": 5120, "num_attention_heads": 40,
      "num_key_value_heads": 8, "intermediate_size": 13824, "vocab_size": 152064, "max_position_embeddings": 131072,
      "rms_norm_eps": 1e-5, "rope_theta": 1000000.0})"},
    {"qwen2.5-32b", R"({"model_type": "qwen2", "num_hidden_layers": 64, "hidden_size": 5120, "num_attention_heads": 40,
      "num_key_value_heads": 8, "intermediate_size": 27648, "vocab_size": 152064, "max_position_embeddings": 131072,
      "rms_norm_eps": 1e-5, "rope_theta": 1000000.0})"},
};

constexpr std::string_view kQwen2Architectures[] = {"qwen2"};
constexpr GgufFamily kQwen2Gguf = {.architectures = kQwen2Architectures,
                                   .modules = kGgufNames,
                                   .extra_tensors = kGgufRopeTensors,
                                   .biases = {},
                                   .fields = {}};

void ReadQwen2(FieldReader& fields, ModelConfig& config) {
  config.ffn = fields.Size("intermediate_size", kMaxFfn);
  ReadGroupedHeads(fields, config);
  config.embed_dim = config.hidden;
  fields.Only("hidden_act", "silu");
  fields.Only("use_mrope", false);  // positions of images; Qwen2.5-Math and distilled models state that there are none
  config.tied_embeddings = fields.Bool("tie_word_embeddings", false);
  config.ropes = {ReadRope(fields, {.max_positions = config.max_positions, .head_dim = config.head_dim})};
  LayerSpec spec = PlainLayer(config.head_dim);
  spec.qkv_bias = true;
  spec.norm.eps = static_cast<float>(fields.Positive("rms_norm_eps", 1e-6));
  config.final_norm = spec.norm;
  config.SetLayers(config.layers, spec);
  ReadSwitchedWindows(fields, config, kQwen2Window, kQwen2FirstWindowLayer);
}

}  // namespace

constexpr ModelFamily kQwen2Family = {.name = "qwen2",
                                      .model_types = kQwen2ModelTypes,
                                      .classes = kQwen2Classes,
                                      .prefixes = kLlamaPrefixes,
                                      .modules = kLlamaModules,
                                      .extra_tensors = kRotaryTensors,
                                      .shapes = kQwen2Shapes,
                                      .read = ReadQwen2,
                                      .identity_number = 2,
                                      .gguf = &kQwen2Gguf};

}  // namespace infinigen
