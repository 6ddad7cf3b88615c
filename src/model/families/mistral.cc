// Mistral 7B, Nemo and Small without images: Llama, in version 0.1 of 7B with a sliding window in every layer.
#include <nlohmann/json.hpp>

#include "model/config_reader.h"
#include "model/families/families.h"

namespace infinigen {
namespace {

// Defaults of transformers' MistralConfig. Later models state that there is no window.
constexpr int64_t kMistralKvHeads = 8;
constexpr int64_t kMistralWindow = 4096;

constexpr std::string_view kMistralModelTypes[] = {"mistral"};
constexpr std::string_view kMistralClasses[] = {"MistralForCausalLM", "MistralModel"};

constexpr PublishedShape kMistralShapes[] = {
    {"mistral-7b-v0.1",
     R"({"model_type": "mistral", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
      "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 32000, "max_position_embeddings": 32768,
      "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "sliding_window": 4096})"},
    {"mistral-7b", R"({"model_type": "mistral", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
      "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 32768, "max_position_embeddings": 32768,
      "rms_norm_eps": 1e-5, "rope_theta": 1000000.0, "sliding_window": null})"},
    {"mistral-nemo-12b",
     R"({"model_type": "mistral", "num_hidden_layers": 40, "hidden_size": 5120, "num_attention_heads": 32,
      "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 131072, "max_position_embeddings": 131072,
      "head_dim": 128, "rms_norm_eps": 1e-5, "rope_theta": 1000000.0, "sliding_window": null})"},
    {"mistral-small-24b",
     R"({"model_type": "mistral", "num_hidden_layers": 40, "hidden_size": 5120, "num_attention_heads": 32,
      "num_key_value_heads": 8, "intermediate_size": 32768, "vocab_size": 131072, "max_position_embeddings": 32768,
      "head_dim": 128, "rms_norm_eps": 1e-5, "rope_theta": 100000000.0, "sliding_window": null})"},
};

// Converters write Mistral as llama. FindGgufFamily finds Llama's family first, so this is used for writing alone.
constexpr std::string_view kMistralArchitectures[] = {"llama"};
constexpr GgufFamily kMistralGguf = {.architectures = kMistralArchitectures,
                                     .modules = kGgufNames,
                                     .extra_tensors = kGgufRopeTensors,
                                     .biases = {},
                                     .fields = {},
                                     .rope_order = RopeOrder::kPairs};

void ReadMistral(FieldReader& fields, ModelConfig& config) {
  config.ffn = fields.Size("intermediate_size", kMaxFfn);
  ReadGroupedHeads(fields, config);
  if (fields.Find("num_key_value_heads") == nullptr && config.heads % kMistralKvHeads == 0)
    config.kv_heads = kMistralKvHeads;
  config.embed_dim = config.hidden;
  fields.Only("hidden_act", "silu");
  config.tied_embeddings = fields.Bool("tie_word_embeddings", false);
  config.ropes = {ReadRope(fields, {.max_positions = config.max_positions, .head_dim = config.head_dim})};
  LayerSpec spec = PlainLayer(config.head_dim);
  spec.norm.eps = static_cast<float>(fields.Positive("rms_norm_eps", 1e-6));
  config.final_norm = spec.norm;
  config.SetLayers(config.layers, spec);
  const nlohmann::json* window = fields.Find("sliding_window");
  const std::vector<bool> all(static_cast<size_t>(config.layers), true);
  const std::vector<bool> sliding = ReadLayerTypes(fields, config.layers).value_or(all);
  if (window == nullptr || !window->is_null())
    SetWindows(config, fields.Size("sliding_window", kMaxPositions, kMistralWindow), sliding);
}

}  // namespace

constexpr ModelFamily kMistralFamily = {.name = "mistral",
                                        .model_types = kMistralModelTypes,
                                        .classes = kMistralClasses,
                                        .prefixes = kLlamaPrefixes,
                                        .modules = kLlamaModules,
                                        .extra_tensors = kRotaryTensors,
                                        .shapes = kMistralShapes,
                                        .read = ReadMistral,
                                        .identity_number = 4,
                                        .gguf = &kMistralGguf};

}  // namespace infinigen
