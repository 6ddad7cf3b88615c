#include "loader/hf_config.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "base/mmap_file.h"
#include "json/fields.h"
#include "json/tree.h"
#include "loader/hf_config_fields.h"

namespace infinigen {
namespace {

using nlohmann::json;

constexpr size_t kMaxFileBytes = size_t{1} << 20;  // real files have about 1 KiB
constexpr size_t kMaxConfigDepth = 16;

// Far above any model, and small enough that layers · hidden · heads · head_dim, the largest product anywhere, stays
// below 2^60.
constexpr int64_t kMaxVocab = int64_t{1} << 24;
constexpr int64_t kMaxHidden = int64_t{1} << 20;
constexpr int64_t kMaxFfn = int64_t{1} << 22;
constexpr int64_t kMaxLayers = int64_t{1} << 12;
constexpr int64_t kMaxHeads = int64_t{1} << 14;
constexpr int64_t kMaxPositions = int64_t{1} << 30;

Result<json> ParseTree(std::string_view text, const std::string& path) {
  ASSIGN_OR_RETURN(json tree, ParseJson(text, path, {.max_depth = kMaxConfigDepth}));
  if (!tree.is_object()) return Invalid("{}: expected a JSON object, found {}", path, tree.type_name());
  return tree;
}

// The type of a rope object: `rope_type`, or `type` before transformers 4.43. Some versions write both.
std::string RopeType(FieldReader& fields) {
  const std::string old_type = fields.String("type", "");
  std::string type = fields.String("rope_type", old_type.empty() ? "default" : old_type);
  if (!old_type.empty() && type != old_type)
    fields.Fail(Invalid("{} is '{}', but 'type' beside it is '{}'", fields.At("rope_type"), type, old_type));
  return type;
}

// `object` is rope_scaling (old spelling) or rope_parameters (new, with rope_theta inside).
Result<RopeConfig> ParseRope(const json& object, const std::string& path, const std::string& name, double theta,
                             int64_t max_positions) {
  if (!object.is_object()) return Invalid("{}: field '{}' is {}, expected an object", path, name, Shown(object));
  FieldReader fields(object, path, name + ".");
  RopeConfig rope;
  const std::string type = RopeType(fields);
  rope.theta = fields.Positive("rope_theta", theta);
  fields.Only("partial_rotary_factor", 1.0);
  if (type == "linear") {
    rope.scaling = RopeScaling::kLinear;
    rope.factor = fields.Positive("factor");
    fields.Get("original_max_position_embeddings");  // written by some exporters; linear scaling has no use for it
  } else if (type == "llama3") {
    rope.scaling = RopeScaling::kLlama3;
    rope.factor = fields.Positive("factor");
    rope.low_freq_factor = fields.Positive("low_freq_factor");
    rope.high_freq_factor = fields.Positive("high_freq_factor");
    rope.original_max_positions = fields.Size("original_max_position_embeddings", kMaxPositions, max_positions);
    if (fields.status().ok() && rope.high_freq_factor <= rope.low_freq_factor)
      fields.Fail(Invalid("{} is {}, expected more than low_freq_factor {}", fields.At("high_freq_factor"),
                          rope.high_freq_factor, rope.low_freq_factor));
  } else if (type != "default") {
    fields.Fail(Unsupported("{} {} is not supported; supported are default, linear and llama3", fields.At("rope_type"),
                            Shown(json(type))));
  }
  fields.RefuseUnknown([](std::string_view) { return false; });
  RETURN_IF_ERROR(fields.status());
  return rope;
}

void ReadRope(FieldReader& fields, const std::string& path, HfConfig& config) {
  const double theta = fields.Positive("rope_theta", RopeConfig{}.theta);
  config.rope.theta = theta;
  const char* spelling_seen = nullptr;
  for (const char* spelling : {"rope_scaling", "rope_parameters"}) {
    const json* object = fields.Get(spelling);
    if (object == nullptr) continue;
    const Result<RopeConfig> rope = ParseRope(*object, path, spelling, theta, config.max_position_embeddings);
    if (!rope.ok()) return fields.Fail(rope.error());
    if (spelling_seen != nullptr && !(*rope == config.rope))
      return fields.Fail(Invalid("{} and '{}' say different things", fields.At(spelling), spelling_seen));
    config.rope = *rope;
    spelling_seen = spelling;
  }
  if (fields.Has("rope_theta") && config.rope.theta != theta)
    fields.Fail(Invalid("{} is {}, but the rope_theta of rope_parameters is {}", fields.At("rope_theta"), theta,
                        config.rope.theta));
}

void ReadLlama(FieldReader& fields, const std::string& path, HfConfig& config) {
  config.ffn_size = fields.Size("intermediate_size", kMaxFfn);
  config.num_key_value_heads = fields.Size("num_key_value_heads", kMaxHeads, config.num_attention_heads);
  if (config.num_attention_heads % config.num_key_value_heads != 0)
    fields.Fail(Invalid("{} is {}, which does not divide num_attention_heads {}", fields.At("num_key_value_heads"),
                        config.num_key_value_heads, config.num_attention_heads));
  const int64_t head_dim = config.hidden_size / config.num_attention_heads;
  if (!fields.Has("head_dim") && config.hidden_size % config.num_attention_heads != 0)
    fields.Fail(Invalid("{} {} is not a multiple of num_attention_heads {}, and head_dim is not given",
                        fields.At("hidden_size"), config.hidden_size, config.num_attention_heads));
  config.head_dim = fields.Size("head_dim", kHeadDimLimit, head_dim);
  if (config.head_dim % 2 != 0 || config.head_dim > kHeadDimLimit)
    fields.Fail(Invalid("{} is {}, expected an even number up to {} (RoPE turns pairs)", fields.At("head_dim"),
                        config.head_dim, kHeadDimLimit));
  fields.Only("hidden_act", "silu");
  config.tie_word_embeddings = fields.Bool("tie_word_embeddings", false);
  config.attention_bias = fields.Bool("attention_bias", false);
  config.mlp_bias = fields.Bool("mlp_bias", false);
  config.rms_norm_eps = fields.Positive("rms_norm_eps", 1e-6);
  config.word_embed_proj_dim = config.hidden_size;
  fields.Only("rope_interleaved", false);
  fields.Only("partial_rotary_factor", 1.0);
  ReadRope(fields, path, config);
}

void ReadOpt(FieldReader& fields, HfConfig& config) {
  config.ffn_size = fields.Size("ffn_dim", kMaxFfn);
  config.num_key_value_heads = config.num_attention_heads;
  config.head_dim = config.hidden_size / config.num_attention_heads;
  if (config.hidden_size % config.num_attention_heads != 0 || config.head_dim > kHeadDimLimit)
    fields.Fail(Invalid("{} {} does not divide into num_attention_heads {} of at most {} dimensions",
                        fields.At("hidden_size"), config.hidden_size, config.num_attention_heads, kHeadDimLimit));
  fields.Only("activation_function", "relu");
  config.tie_word_embeddings = fields.Bool("tie_word_embeddings", true);
  const bool bias = fields.Bool("enable_bias", true);
  config.attention_bias = bias;
  config.mlp_bias = bias;
  config.do_layer_norm_before = fields.Bool("do_layer_norm_before", true);
  config.remove_final_layer_norm = fields.Bool("_remove_final_layer_norm", false);
  config.layer_norm_affine = fields.Bool("layer_norm_elementwise_affine", true);
  config.word_embed_proj_dim = fields.Size("word_embed_proj_dim", kMaxHidden, config.hidden_size);
}

// `architectures` names the class that wrote the weights: a classifier, say, has no output matrix.
void CheckArchitectures(FieldReader& fields, Architecture architecture) {
  const json* names = fields.Get("architectures");
  if (names == nullptr) return;
  const std::vector<std::string_view> known =
      architecture == Architecture::kLlama
          ? std::vector<std::string_view>{"LlamaForCausalLM", "LLaMAForCausalLM", "LlamaModel"}
          : std::vector<std::string_view>{"OPTForCausalLM", "OPTModel"};
  if (!names->is_array())
    return fields.Fail(Invalid("{} is {}, expected a list", fields.At("architectures"), Shown(*names)));
  for (const json& name : *names) {
    if (!name.is_string() || std::find(known.begin(), known.end(), name.get_ref<const std::string&>()) == known.end())
      fields.Fail(Unsupported("{} names {}; supported is {}", fields.At("architectures"), Shown(name), known[0]));
  }
}

// Features that no field of HfConfig describes: absent, or set to what leaves them off.
void RefuseFeatures(FieldReader& fields) {
  for (const char* name : {"quantization_config", "compression_config"}) {
    if (fields.Get(name) != nullptr)
      fields.Fail(
          Unsupported("{}: quantised weights are not supported; use the f32, f16 or bf16 model", fields.At(name)));
  }
  fields.Only("sliding_window", nullptr);
  fields.Only("use_sliding_window", false);
  fields.Only("is_encoder_decoder", false);
  fields.Only("add_cross_attention", false);
  fields.Only("cross_attention_hidden_size", nullptr);
  fields.Only("tie_encoder_decoder", false);
  fields.Only("pruned_heads", json::object());
  fields.Only("per_layer_config", json::object());
  if (const json* types = fields.Get("layer_types"); types != nullptr) {
    const bool full = types->is_array() && std::all_of(types->begin(), types->end(),
                                                       [](const json& type) { return type == "full_attention"; });
    if (!full)
      fields.Fail(Unsupported("{} is {}; only full_attention is supported", fields.At("layer_types"), Shown(*types)));
  }
}

std::optional<DType> StatedType(FieldReader& fields) {
  const std::string old_name = fields.String("torch_dtype", "");
  std::string name = fields.String("dtype", old_name);
  if (name.compare(0, 6, "torch.") == 0) name.erase(0, 6);
  if (name == "float32") return DType::kF32;
  if (name == "float16") return DType::kF16;
  if (name == "bfloat16") return DType::kBF16;
  return std::nullopt;
}

void ReadTokenIds(FieldReader& fields, HfConfig& config) {
  const std::vector<int64_t> bos = fields.TokenIds("bos_token_id");
  if (!bos.empty()) config.bos_token_id = bos[0];
  config.eos_token_ids = fields.TokenIds("eos_token_id");
}

// An id outside the vocabulary can never be generated, so it ends nothing: exporters that shrink a model leave such
// ids.
void DropUnreachable(std::vector<int64_t>& ids, int64_t vocab) {
  std::erase_if(ids, [vocab](int64_t id) { return id >= vocab; });
}

}  // namespace

Result<HfConfig> ParseHfConfig(std::string_view text, const std::string& path) {
  ASSIGN_OR_RETURN(const json tree, ParseTree(text, path));
  FieldReader fields(tree, path);
  HfConfig config;

  const std::string type = fields.String("model_type", "");
  if (type != "llama" && type != "opt") {
    RETURN_IF_ERROR(fields.status());
    if (type.empty()) return Invalid("{}: field 'model_type' is missing; supported are llama and opt", path);
    return Unsupported("{}: model_type {} is not supported; supported are llama and opt", path, Shown(json(type)));
  }
  config.architecture = type == "llama" ? Architecture::kLlama : Architecture::kOpt;
  CheckArchitectures(fields, config.architecture);
  RefuseFeatures(fields);
  config.vocab_size = fields.Size("vocab_size", kMaxVocab);
  config.hidden_size = fields.Size("hidden_size", kMaxHidden);
  config.num_hidden_layers = fields.Size("num_hidden_layers", kMaxLayers);
  config.num_attention_heads = fields.Size("num_attention_heads", kMaxHeads);
  config.max_position_embeddings = fields.Size("max_position_embeddings", kMaxPositions);
  config.dtype = StatedType(fields);
  ReadTokenIds(fields, config);
  if (config.architecture == Architecture::kLlama)
    ReadLlama(fields, path, config);
  else
    ReadOpt(fields, config);
  fields.RefuseUnknown(IsHarmlessConfigField);
  RETURN_IF_ERROR(fields.status());
  DropUnreachable(config.eos_token_ids, config.vocab_size);
  return config;
}

Result<std::vector<int64_t>> ParseGenerationEosIds(std::string_view text, const std::string& path) {
  ASSIGN_OR_RETURN(const json tree, ParseTree(text, path));
  FieldReader fields(tree, path);
  std::vector<int64_t> ids = fields.TokenIds("eos_token_id");
  RETURN_IF_ERROR(fields.status());
  return ids;
}

Result<HfConfig> LoadHfConfig(const std::string& directory) {
  const std::string path = directory + "/config.json";
  ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(path, kMaxFileBytes));
  ASSIGN_OR_RETURN(HfConfig config, ParseHfConfig(text, path));
  const std::string generation_path = directory + "/generation_config.json";
  std::error_code ignored;
  if (!std::filesystem::exists(generation_path, ignored)) return config;
  ASSIGN_OR_RETURN(const std::string generation, ReadSmallFile(generation_path, kMaxFileBytes));
  ASSIGN_OR_RETURN(std::vector<int64_t> ids, ParseGenerationEosIds(generation, generation_path));
  DropUnreachable(ids, config.vocab_size);
  // As in transformers, the generation config overrules; where it names no end, the model's own stays.
  if (!ids.empty()) config.eos_token_ids = std::move(ids);
  return config;
}

}  // namespace infinigen
