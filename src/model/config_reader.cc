#include "model/config_reader.h"

#include <algorithm>
#include <filesystem>
#include <initializer_list>
#include <iterator>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "backend/backend.h"
#include "base/mmap_file.h"
#include "json/parse.h"
#include "loader/gguf_source.h"
#include "model/family.h"
#include "model/gguf_config.h"

namespace infinigen {
namespace {

using nlohmann::json;

static_assert(kHeadDimLimit <= kMaxHeadDim, "every head_dim that loads must be supported by attention");

constexpr size_t kMaxFileBytes = size_t{1} << 20;  // real files have about 1 KiB
constexpr int kMaxConfigDepth = 16;

// Fields that do not change what a trained model computes, grouped by reason. Each name is written by some version of
// transformers or a well-known exporter.
constexpr std::string_view kHarmless[] = {
    // Bookkeeping.
    "_name_or_path", "name_or_path", "_commit_hash", "transformers_version", "unsloth_version", "unsloth_fixed",
    "transformers.js_config", "is_llama_config", "tokenizer_class", "tokenizer_name", "prefix", "finetuning_task",
    "task_specific_params", "id2label", "label2id", "num_labels", "problem_type", "max_sequence_length",
    "output_projection",
    // How transformers runs the model.
    "use_cache", "return_dict", "output_hidden_states", "output_attentions", "torchscript", "use_bfloat16",
    "tf_legacy_loss", "chunk_size_feed_forward", "pretraining_tp", "attn_implementation", "_attn_implementation",
    "_attn_implementation_autoset", "_attn_implementation_internal", "_flash_attn_2_enabled", "_experts_implementation",
    "_experts_implementation_internal", "_output_attentions", "experts_implementation", "tie_last_hidden_states",
    "is_decoder", "gradient_checkpointing", "use_return_dict",
    // Training.
    "dropout", "attention_dropout", "activation_dropout", "hidden_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop",
    "layerdrop", "init_std", "initializer_range", "neftune_noise_alpha",
    // Token ids for the tokenizer or a training script.
    "pad_token_id", "sep_token_id", "unk_token_id", "decoder_start_token_id",
    // Sampling defaults that older versions wrote here; the user states them.
    "max_length", "min_length", "max_new_tokens", "min_new_tokens", "do_sample", "early_stopping", "num_beams",
    "num_beam_groups", "diversity_penalty", "temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty",
    "length_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "encoder_repetition_penalty",
    "bad_words_ids", "num_return_sequences", "output_scores", "output_logits", "return_dict_in_generate",
    "forced_bos_token_id", "forced_eos_token_id", "remove_invalid_values", "exponential_decay_length_penalty",
    "suppress_tokens", "begin_suppress_tokens", "epsilon_cutoff", "eta_cutoff", "assistant_confidence_threshold",
    "assistant_lookbehind", "target_lookbehind", "num_assistant_tokens", "num_assistant_tokens_schedule",
    "penalty_alpha", "guidance_scale", "renormalize_logits"};

bool IsHarmless(std::string_view name) {
  return std::find(std::begin(kHarmless), std::end(kHarmless), name) != std::end(kHarmless);
}

// "llama and opt", "llama, opt and qwen2".
std::string KnownModelTypes() {
  std::vector<std::string_view> names;
  for (const ModelFamily* family : Families())
    names.insert(names.end(), family->model_types.begin(), family->model_types.end());
  const std::string_view last = names.back();
  names.pop_back();
  return names.empty() ? std::string(last) : fmt::format("{} and {}", fmt::join(names, ", "), last);
}

// Model types of kinds that the decoder does not compute. Their files would otherwise be refused without the reason.
struct RefusedKind {
  std::string_view what;
  std::initializer_list<std::string_view> types;
};
constexpr std::string_view kExperts = "is a mixture of experts", kHybrid = "has layers without attention",
                           kImages = "also takes images or sound";
const RefusedKind kRefusedKinds[] = {
    {kExperts, {"mixtral",          "qwen2_moe",      "qwen3_moe",    "phimoe",     "olmoe",
                "deepseek",         "deepseek_v2",    "deepseek_v3",  "gpt_oss",    "granitemoe",
                "granitemoeshared", "dbrx",           "llama4_text",  "glm4_moe",   "ernie4_5_moe",
                "minimax",          "hunyuan_v1_moe", "dots1",        "flex_olmo",  "longcat_flash",
                "jetmoe",           "arctic",         "deepseek_v32", "minimax_m2", "kimi_k2",
                "qwen3_5_moe_text"}},
    {kHybrid,
     {"jamba", "bamba", "falcon_h1", "falcon_mamba", "mamba", "mamba2", "zamba", "zamba2", "nemotron_h", "lfm2",
      "lfm2_moe", "recurrent_gemma", "granitemoehybrid", "qwen3_next", "rwkv", "xlstm", "minimax_m1", "qwen3_5_text",
      "kimi_linear"}},
    {kImages, {"gemma3",       "gemma3n",         "gemma4",      "qwen2_vl",    "qwen2_5_vl", "qwen3_vl",
               "qwen3_vl_moe", "qwen3_5",         "qwen3_5_moe", "qwen2_audio", "mistral3",   "pixtral",
               "phi3_v",       "phi4_multimodal", "phi4mm",      "mllama",      "llama4",     "llava",
               "llava_next",   "paligemma",       "smolvlm",     "idefics3",    "internvl"}},
};

Result<const ModelFamily*> ReadFamily(FieldReader& fields) {
  const std::string type = fields.String("model_type", "");
  RETURN_IF_ERROR(fields.status());
  if (type.empty())
    return Invalid("{}: field 'model_type' is missing; supported are {}", fields.where(), KnownModelTypes());
  const ModelFamily* const family = FindFamily(type);
  for (const RefusedKind& kind : kRefusedKinds)
    if (family == nullptr && std::find(kind.types.begin(), kind.types.end(), type) != kind.types.end())
      return Unsupported("{}: model_type {} {}, which is not supported; supported are {}", fields.where(),
                         Shown(json(type)), kind.what, KnownModelTypes());
  if (family == nullptr)
    return Unsupported("{}: model_type {} is not supported; supported are {}", fields.where(), Shown(json(type)),
                       KnownModelTypes());
  return family;
}

// `architectures` names the class that wrote the weights. Other classes, such as classifiers, lack the output matrix.
void CheckClasses(FieldReader& fields, const ModelFamily& family) {
  const json* names = fields.Get("architectures");
  if (names == nullptr) return;
  if (!names->is_array())
    return fields.Fail(Invalid("{} is {}, expected a list", fields.At("architectures"), Shown(*names)));
  for (const json& name : *names) {
    const bool known = name.is_string() && std::find(family.classes.begin(), family.classes.end(),
                                                     name.get_ref<const std::string&>()) != family.classes.end();
    if (!known)
      fields.Fail(
          Unsupported("{} names {}; supported is {}", fields.At("architectures"), Shown(name), family.classes[0]));
  }
}

void RefuseQuantised(FieldReader& fields) {
  for (const char* name : {"quantization_config", "compression_config"}) {
    if (fields.Get(name) != nullptr)
      fields.Fail(
          Unsupported("{}: quantised safetensors are not supported; use the f32, f16 or bf16 model, or a GGUF file",
                      fields.At(name)));
  }
}

// Features of other families must be absent or switched off. A family that supports one has read its field already.
void RefuseFeatures(FieldReader& fields) {
  const auto only = [&](const char* name, const json& off) {
    if (!fields.Seen(name)) fields.Only(name, off);
  };
  only("sliding_window", nullptr);
  only("use_sliding_window", false);
  only("is_encoder_decoder", false);
  only("add_cross_attention", false);
  only("cross_attention_hidden_size", nullptr);
  only("tie_encoder_decoder", false);
  only("pruned_heads", json::object());
  only("per_layer_config", json::object());
  if (fields.Seen("layer_types")) return;
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

void ReadTokenIds(FieldReader& fields, ModelConfig& config) {
  const std::vector<int64_t> bos = fields.TokenIds("bos_token_id");
  if (!bos.empty()) config.bos_id = bos[0];
  config.eos_ids = fields.TokenIds("eos_token_id");
}

// Ids outside the vocabulary are never generated. Exporters that shrink a vocabulary leave such ids behind.
void DropUnreachable(std::vector<int64_t>& ids, int64_t vocab) {
  std::erase_if(ids, [vocab](int64_t id) { return id >= vocab; });
}

// "/models/llama/" → "llama".
std::string BaseName(const std::string& directory) {
  std::filesystem::path path = std::filesystem::path(directory).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  return path.filename().string();
}

}  // namespace

Result<ModelConfig> ParseModelConfig(std::string_view text, const std::string& path) {
  ASSIGN_OR_RETURN(json tree, ParseJson(text, path, {.max_depth = kMaxConfigDepth}));
  const FreeJsonAtEnd free(tree);
  return ModelConfigOf(tree, path);
}

Result<ModelConfig> ModelConfigOf(const json& tree, const std::string& path) {
  FieldReader fields(tree, path);
  ModelConfig config;
  ASSIGN_OR_RETURN(config.family, ReadFamily(fields));
  CheckClasses(fields, *config.family);
  RefuseQuantised(fields);
  config.vocab = fields.Size("vocab_size", kMaxVocab);
  config.hidden = fields.Size("hidden_size", kMaxHidden);
  config.layers = fields.Size("num_hidden_layers", kMaxLayers);
  config.heads = fields.Size("num_attention_heads", kMaxHeads);
  config.max_positions = fields.Size("max_position_embeddings", kMaxPositions);
  config.dtype = StatedType(fields);
  ReadTokenIds(fields, config);
  config.family->read(fields, config);
  RefuseFeatures(fields);
  fields.RefuseUnknown(IsHarmless);
  RETURN_IF_ERROR(fields.status());
  if (const Status supported = CheckSupported(config); !supported.ok())
    return Unsupported("{}: {}", path, supported.error().message);
  DropUnreachable(config.eos_ids, config.vocab);
  return config;
}

Result<std::vector<int64_t>> ParseGenerationEosIds(std::string_view text, const std::string& path) {
  ASSIGN_OR_RETURN(json tree, ParseJson(text, path, {.max_depth = kMaxConfigDepth}));
  const FreeJsonAtEnd free(tree);
  FieldReader fields(tree, path);
  std::vector<int64_t> ids = fields.TokenIds("eos_token_id");
  RETURN_IF_ERROR(fields.status());
  return ids;
}

Result<ModelConfig> LoadModelConfig(const std::string& directory) {
  if (LooksLikeGguf(directory)) {
    ASSIGN_OR_RETURN(const GgufSource source, GgufSource::Open(directory));
    return ReadGgufConfig(source);
  }
  const std::string path = directory + "/config.json";
  ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(path, kMaxFileBytes));
  ASSIGN_OR_RETURN(ModelConfig config, ParseModelConfig(text, path));
  config.name = BaseName(directory);
  const std::string generation_path = directory + "/generation_config.json";
  std::error_code ignored;
  if (!std::filesystem::exists(generation_path, ignored)) return config;
  ASSIGN_OR_RETURN(const std::string generation, ReadSmallFile(generation_path, kMaxFileBytes));
  ASSIGN_OR_RETURN(std::vector<int64_t> ids, ParseGenerationEosIds(generation, generation_path));
  DropUnreachable(ids, config.vocab);
  // As in transformers, ids of the generation config replace those of config.json.
  if (!ids.empty()) config.eos_ids = std::move(ids);
  return config;
}

}  // namespace infinigen
