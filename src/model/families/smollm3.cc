// SmolLM3: Llama in which every fourth layer does not rotate queries and keys.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "model/config_reader.h"
#include "model/families/families.h"

namespace infinigen {
namespace {

// Defaults of transformers' SmolLM3Config.
constexpr double kSmolLm3Theta = 2000000.0;
constexpr int64_t kSmolLm3Interval = 4;
constexpr int64_t kSmolLm3Window = 4096;
constexpr int64_t kSmolLm3FirstWindowLayer = 28;

constexpr std::string_view kSmolLm3ModelTypes[] = {"smollm3"};
constexpr std::string_view kSmolLm3Classes[] = {"SmolLM3ForCausalLM", "SmolLM3Model"};

constexpr PublishedShape kSmolLm3Shapes[] = {
    {"smollm3-3b", R"({"model_type": "smollm3", "num_hidden_layers": 36, "hidden_size": 2048, "num_attention_heads": 16,
      "num_key_value_heads": 4, "intermediate_size": 11008, "vocab_size": 128256, "max_position_embeddings": 65536,
      "rms_norm_eps": 1e-6, "rope_theta": 5000000.0, "tie_word_embeddings": true, "no_rope_layer_interval": 4})"},
};

// `no_rope_layers` is 1 for the layers that do rotate, in spite of its name. Without it, every layer rotates but each
// no_rope_layer_interval-th.
void ReadSmolLm3Ropes(FieldReader& fields, ModelConfig& config) {
  const int64_t interval = fields.Size("no_rope_layer_interval", kMaxLayers, kSmolLm3Interval);
  const nlohmann::json* rotates = fields.Get("no_rope_layers");
  if (rotates != nullptr) {
    const auto known = [](const nlohmann::json& value) { return value == 0 || value == 1; };
    if (!rotates->is_array() || std::ssize(*rotates) != config.layers ||
        !std::all_of(rotates->begin(), rotates->end(), known))
      return fields.Fail(
          Invalid("{} must be a list of 0 or 1 for {} layers", fields.At("no_rope_layers"), config.layers));
  }
  for (size_t layer = 0; layer < config.specs.size(); ++layer) {
    const bool skips = rotates != nullptr ? (*rotates)[layer] == 0 : (static_cast<int64_t>(layer) + 1) % interval == 0;
    if (skips) config.specs[layer].rope = LayerSpec::kNoRope;
  }
}

// The metadata does not say which layers rotate: all but every fourth.
constexpr std::string_view kSmolLm3Architectures[] = {"smollm3"};
constexpr GgufFamily kSmolLm3Gguf = {.architectures = kSmolLm3Architectures,
                                     .modules = kGgufNames,
                                     .extra_tensors = kGgufRopeTensors,
                                     .biases = {},
                                     .fields = {},
                                     .rope_order = RopeOrder::kPairs};

void ReadSmolLm3(FieldReader& fields, ModelConfig& config) {
  config.ffn = fields.Size("intermediate_size", kMaxFfn);
  ReadGroupedHeads(fields, config);
  config.embed_dim = config.hidden;
  fields.Only("hidden_act", "silu");
  config.tied_embeddings = fields.Bool("tie_word_embeddings", true);
  config.ropes = {
      ReadRope(fields, {.max_positions = config.max_positions, .theta = kSmolLm3Theta, .head_dim = config.head_dim})};
  LayerSpec spec = PlainLayer(config.head_dim);
  spec.qkv_bias = spec.o_bias = fields.Bool("attention_bias", false);
  spec.mlp.bias = fields.Bool("mlp_bias", false);
  spec.norm.eps = static_cast<float>(fields.Positive("rms_norm_eps", 1e-6));
  config.final_norm = spec.norm;
  config.SetLayers(config.layers, spec);
  ReadSmolLm3Ropes(fields, config);
  ReadSwitchedWindows(fields, config, kSmolLm3Window, kSmolLm3FirstWindowLayer);
}

}  // namespace

constexpr ModelFamily kSmolLm3Family = {.name = "smollm3",
                                        .model_types = kSmolLm3ModelTypes,
                                        .classes = kSmolLm3Classes,
                                        .prefixes = kLlamaPrefixes,
                                        .modules = kLlamaModules,
                                        .extra_tensors = kRotaryTensors,
                                        .shapes = kSmolLm3Shapes,
                                        .read = ReadSmolLm3,
                                        .identity_number = 5,
                                        .gguf = &kSmolLm3Gguf};

}  // namespace infinigen
