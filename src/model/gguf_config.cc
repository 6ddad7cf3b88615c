#include "model/gguf_config.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/utf8.h"
#include "model/config_reader.h"
#include "model/family.h"

namespace infinigen {
namespace {

using nlohmann::json;

// Sizes and numbers that all families have, with the field of config.json that holds the same number.
struct SizeKey {
  std::string_view key;  // after "ARCHITECTURE."
  std::string_view field;
  int64_t limit;
  bool required;
};
constexpr SizeKey kSizes[] = {
    {"block_count", "num_hidden_layers", kMaxLayers, true},
    {"embedding_length", "hidden_size", kMaxHidden, true},
    {"feed_forward_length", "intermediate_size", kMaxFfn, true},
    {"context_length", "max_position_embeddings", kMaxPositions, true},
    {"attention.head_count", "num_attention_heads", kMaxHeads, true},
    {"attention.head_count_kv", "num_key_value_heads", kMaxHeads, false},
    {"attention.key_length", "head_dim", kHeadDimLimit, false},
};

// Keys without effect on the computation.
constexpr std::string_view kHarmlessKeys[] = {
    "vocab_size",              // the embedding decides
    "rope.scaling.finetuned",  // a note about the training
    "tensor_data_layout",      // names the order of q and k rows that all converters write
};

// Translates the metadata into the tree of config.json. The first error ends it.
class Translator {
 public:
  Translator(const GgufSource& source, std::string_view architecture, const ModelFamily& family)
      : source_(source), metadata_(source.metadata()), prefix_(fmt::format("{}.", architecture)), family_(family) {}

  Result<json> Translate() {
    tree_["model_type"] = family_.model_types[0];
    for (const SizeKey& size : kSizes) RETURN_IF_ERROR(AddSize(size));
    for (const GgufField& field : family_.gguf->fields) RETURN_IF_ERROR(AddNumber(field.key, field.field, false));
    RETURN_IF_ERROR(AddNumber("attention.layer_norm_rms_epsilon", "rms_norm_eps", true));
    RETURN_IF_ERROR(AddNumber("rope.freq_base", "rope_theta", false));
    RETURN_IF_ERROR(AddFromTensors());
    RETURN_IF_ERROR(AddScaling());
    RETURN_IF_ERROR(AddLongRope());
    RETURN_IF_ERROR(RefuseOtherValues());
    RETURN_IF_ERROR(Complete());
    RETURN_IF_ERROR(RefuseUnknown());
    return std::move(tree_);
  }

 private:
  std::string Key(std::string_view name) {
    std::string key = prefix_ + std::string(name);
    seen_.insert(key);
    return key;
  }

  // A size, or an array with the same size for every layer.
  Status AddSize(const SizeKey& size) {
    const std::string key = Key(size.key);
    const GgufValue* const value = metadata_.Find(key);
    if (value == nullptr && !size.required) return Ok();
    const std::string expected = fmt::format("a whole number from 1 to {}", size.limit);
    if (value == nullptr) return metadata_.Mismatch(key, expected);
    std::optional<uint64_t> number = value->AsUnsigned();
    if (value->type == GgufValueType::kArray) {
      ASSIGN_OR_RETURN(const auto numbers, metadata_.Integers(key));
      if (numbers->empty() ||
          std::adjacent_find(numbers->begin(), numbers->end(), std::not_equal_to<>()) != numbers->end())
        return Unsupported("{}: metadata key {} is {}; sizes that differ from layer to layer are not supported",
                           metadata_.path(), Quoted(key), value->Shown());
      if (numbers->front() >= 0) number = static_cast<uint64_t>(numbers->front());
    }
    if (!number || *number == 0 || *number > static_cast<uint64_t>(size.limit))
      return metadata_.Mismatch(key, expected);
    tree_[std::string(size.field)] = *number;
    return Ok();
  }

  Status AddNumber(std::string_view name, std::string_view field, bool required) {
    const std::string key = Key(name);
    ASSIGN_OR_RETURN(const std::optional<double> number, metadata_.Number(key));
    if (number) tree_[std::string(field)] = *number;
    if (!number && required) return metadata_.Mismatch(key, "a number");
    return Ok();
  }

  // What the tensors tell: the rows of the embedding are the vocabulary, roles have biases or not, and without an
  // output matrix the embedding is used.
  Status AddFromTensors() {
    const std::string name = TensorName(family_, "", {WeightRole::kEmbedding}, TensorNaming::kGguf);
    const StoredTensor* const embedding = source_.Find(name);
    if (embedding == nullptr || embedding->shape.size() != 2)
      return Invalid("{}: tensor '{}' is missing or is no matrix", source_.where(), name);
    tree_["vocab_size"] = static_cast<uint64_t>(embedding->shape[0]);
    for (const GgufBias& bias : family_.gguf->biases)
      tree_[std::string(bias.field)] =
          source_.Find(TensorName(family_, "", {bias.role, WeightPart::kBias, 0}, TensorNaming::kGguf)) != nullptr;
    tree_["tie_word_embeddings"] =
        source_.Find(TensorName(family_, "", {WeightRole::kLmHead}, TensorNaming::kGguf)) == nullptr;
    return Ok();
  }

  Status AddScaling() {
    const std::string type_key = Key("rope.scaling.type"), factor_key = Key("rope.scaling.factor"),
                      old_key = Key("rope.scale_linear"), context_key = Key("rope.scaling.original_context_length");
    ASSIGN_OR_RETURN(const std::optional<std::string_view> stated, metadata_.String(type_key));
    ASSIGN_OR_RETURN(const std::optional<double> old_factor, metadata_.Number(old_key));
    ASSIGN_OR_RETURN(const std::optional<double> new_factor, metadata_.Number(factor_key));
    ASSIGN_OR_RETURN(const std::optional<uint64_t> context, metadata_.Unsigned(context_key));
    const double factor = new_factor.value_or(old_factor.value_or(0));
    std::string type(stated.value_or(factor != 0 ? "linear" : "none"));
    if (type == "none" || (type == "linear" && (factor == 0 || factor == 1))) return Ok();
    json scaling = {{"rope_type", type}};
    if (factor != 0) scaling["factor"] = factor;
    if (context && *context != 0) scaling["original_max_position_embeddings"] = *context;
    tree_["rope_scaling"] = std::move(scaling);
    return Ok();
  }

  // Divisors of short and long contexts are tensors.
  Status AddLongRope() {
    const std::string key = Key("rope.scaling.attn_factor");
    ASSIGN_OR_RETURN(const std::optional<double> magnitude, metadata_.Number(key));
    const StoredTensor* const near = source_.Find("rope_factors_short.weight");
    const StoredTensor* const far = source_.Find("rope_factors_long.weight");
    if (near == nullptr && far == nullptr) {
      if (magnitude && *magnitude != 1)
        return Unsupported("{}: metadata key '{}' is {}", metadata_.path(), key, *magnitude);
      return Ok();
    }
    json scaling = tree_.contains("rope_scaling") ? tree_["rope_scaling"] : json::object();
    scaling.erase("factor");
    scaling["rope_type"] = "longrope";
    if (magnitude) scaling["attention_factor"] = *magnitude;
    ASSIGN_OR_RETURN(const std::optional<uint64_t> context,
                     metadata_.Unsigned(prefix_ + "rope.scaling.original_context_length"));
    if (context && *context != 0) scaling["original_max_position_embeddings"] = *context;
    for (const auto& [field, tensor] : {std::pair{"short_factor", near}, std::pair{"long_factor", far}}) {
      if (tensor == nullptr || tensor->type != WeightType::kF32 || tensor->shape.size() != 1 ||
          tensor->shape[0] > kHeadDimLimit)
        return Invalid(
            "{}: tensors 'rope_factors_short.weight' and 'rope_factors_long.weight' must both have type F32 "
            "and one dimension",
            source_.where());
      std::vector<float> divisors(static_cast<size_t>(tensor->shape[0]));
      DecodeRow(WeightView(tensor->bytes.data(), WeightType::kF32, 1, tensor->shape[0]), 0, divisors);
      if (!std::all_of(divisors.begin(), divisors.end(), [](float x) { return x > 0 && x < 1e30f; }))
        return Invalid("{}: tensor 'rope_factors_*.weight' must contain positive numbers", source_.where());
      scaling[field] = divisors;
    }
    tree_["rope_scaling"] = std::move(scaling);
    return Ok();
  }

  Status Complete() {
    if (family_.gguf->complete == nullptr) return Ok();
    ASSIGN_OR_RETURN(const std::optional<uint64_t> dims, metadata_.Unsigned(prefix_ + "rope.dimension_count"));
    family_.gguf->complete(tree_, dims && *dims <= kHeadDimLimit ? static_cast<int64_t>(*dims) : 0);
    return Ok();
  }

  // Keys with a single supported value.
  Status RefuseOtherValues() {
    for (const std::string_view name : {"expert_count", "expert_used_count", "expert_shared_count"}) {
      const std::string key = Key(name);
      ASSIGN_OR_RETURN(const std::optional<uint64_t> count, metadata_.Unsigned(key));
      if (count.value_or(0) != 0)
        return Unsupported("{}: metadata key '{}' is {}: mixture-of-experts models are not supported", metadata_.path(),
                           key, *count);
    }
    const std::string causal = Key("attention.causal");
    ASSIGN_OR_RETURN(const std::optional<bool> is_causal, metadata_.Bool(causal));
    if (is_causal == false) return Unsupported("{}: metadata key '{}' is false", metadata_.path(), causal);
    const std::string parallel = Key("use_parallel_residual");
    ASSIGN_OR_RETURN(const std::optional<bool> is_parallel, metadata_.Bool(parallel));
    if (is_parallel == true) return Unsupported("{}: metadata key '{}' is true", metadata_.path(), parallel);
    const std::string values = Key("attention.value_length");
    ASSIGN_OR_RETURN(const std::optional<uint64_t> value_length, metadata_.Unsigned(values));
    const int64_t head_dim =
        tree_.value("head_dim", tree_["hidden_size"].get<int64_t>() / tree_["num_attention_heads"].get<int64_t>());
    if (value_length && *value_length != static_cast<uint64_t>(head_dim))
      return Unsupported("{}: metadata key '{}' is {}, but keys have {} dimensions; they must be equal",
                         metadata_.path(), values, *value_length, head_dim);
    const std::string window = Key("attention.sliding_window");
    ASSIGN_OR_RETURN(const std::optional<uint64_t> window_rows, metadata_.Unsigned(window));
    if (window_rows.value_or(0) != 0) tree_["sliding_window"] = *window_rows;
    Key("rope.dimension_count");  // read after the config is known
    return Ok();
  }

  Status RefuseUnknown() {
    for (const std::string_view key : kHarmlessKeys) Key(key);
    for (const GgufEntry& entry : metadata_.entries())
      if (entry.key.starts_with(prefix_) && seen_.count(entry.key) == 0)
        return Unsupported("{}: metadata key {} ({}) is not supported", metadata_.path(), Quoted(entry.key),
                           entry.value.Shown());
    return Ok();
  }

  const GgufSource& source_;
  const GgufMetadata& metadata_;
  std::string prefix_;  // "llama."
  const ModelFamily& family_;
  json tree_ = json::object();
  std::set<std::string, std::less<>> seen_;
};

// Architectures of kinds that the decoder does not compute, so that the message gives the reason.
struct RefusedArchitectures {
  std::string_view what;
  std::initializer_list<std::string_view> names;
};
const RefusedArchitectures kRefusedArchitectures[] = {
    {"is a mixture of experts",
     {"qwen2moe", "qwen3moe",   "qwen35moe",    "phimoe",      "olmoe",      "deepseek",   "deepseek2", "deepseek32",
      "gpt-oss",  "granitemoe", "dbrx",         "llama4",      "glm4moe",    "grok",       "arctic",    "ernie4_5-moe",
      "dots1",    "bailingmoe", "bailingmoe2",  "hunyuan-moe", "minimax-m2", "cohere2moe", "llada-moe", "exaone-moe",
      "afmoe",    "grovemoe",   "smallthinker", "mimo2",       "step35"}},
    {"has layers without attention",
     {"mamba", "mamba2", "jamba", "falcon-h1", "granitehybrid", "nemotron_h", "nemotron_h_moe", "lfm2", "lfm2moe",
      "plamo2", "qwen3next", "qwen35", "kimi-linear", "minimax-01", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"}},
    {"also takes images or sound", {"qwen2vl", "qwen3vl", "qwen3vlmoe", "gemma3n", "gemma4", "cogvlm", "chameleon"}},
};

Result<const ModelFamily*> ReadFamily(const GgufMetadata& metadata) {
  constexpr std::string_view kKey = "general.architecture";
  ASSIGN_OR_RETURN(const std::optional<std::string_view> name, metadata.String(kKey));
  const ModelFamily* const family = name ? FindGgufFamily(*name) : nullptr;
  if (family != nullptr) return family;
  std::vector<std::string_view> known;
  for (const ModelFamily* each : Families())
    for (const std::string_view architecture :
         each->gguf == nullptr ? std::span<const std::string_view>() : each->gguf->architectures)
      if (FindGgufFamily(architecture) == each) known.push_back(architecture);
  if (!name) return metadata.Mismatch(kKey, fmt::format("one of {}", fmt::join(known, ", ")));
  for (const RefusedArchitectures& kind : kRefusedArchitectures)
    if (std::find(kind.names.begin(), kind.names.end(), *name) != kind.names.end())
      return Unsupported("{}: the architecture {} {}, which is not supported; supported are {}", metadata.path(),
                         Quoted(*name), kind.what, fmt::join(known, ", "));
  return Unsupported("{}: the architecture {} is not supported; supported are {}", metadata.path(), Quoted(*name),
                     fmt::join(known, ", "));
}

// Rotation: the order of dimensions, the number of rotated ones, and divisors of frequencies, by which files express
// the scaling of Llama 3.
Status ReadRotation(const GgufSource& source, std::string_view architecture, ModelConfig& config) {
  const GgufMetadata& metadata = source.metadata();
  const std::string key = fmt::format("{}.rope.dimension_count", architecture);
  ASSIGN_OR_RETURN(const std::optional<uint64_t> dims, metadata.Unsigned(key));
  if (dims && (*dims == 0 || *dims > static_cast<uint64_t>(config.head_dim)))
    return metadata.Mismatch(key, fmt::format("1 to {}, the dimensions of a head", config.head_dim));
  std::vector<float> divisors;
  if (const StoredTensor* const tensor = source.Find("rope_freqs.weight")) {
    if (tensor->type != WeightType::kF32 || tensor->shape.size() != 1 || tensor->shape[0] > kHeadDimLimit)
      return Invalid("{}: tensor 'rope_freqs.weight' has type {} and shape {}, expected F32 and one dimension",
                     tensor->path, tensor->type_name, FormatShape(tensor->shape));
    divisors.resize(static_cast<size_t>(tensor->shape[0]));
    DecodeRow(WeightView(tensor->bytes.data(), WeightType::kF32, 1, tensor->shape[0]), 0, divisors);
    for (const float divisor : divisors)
      if (!(divisor > 0) || divisor > 1e30f)
        return Invalid("{}: tensor 'rope_freqs.weight' contains {}, expected positive numbers", tensor->path, divisor);
  }
  for (RopeConfig& rope : config.ropes) {
    rope.order = config.family->gguf->rope_order;
    if (dims && static_cast<int64_t>(*dims) != config.head_dim) rope.rotary_dims = static_cast<int64_t>(*dims);
    if (!divisors.empty()) rope.frequency_divisors = divisors;
  }
  if (const Status supported = CheckSupported(config); !supported.ok())
    return Error{supported.error().kind, fmt::format("{}: {}", metadata.path(), supported.error().message)};
  return Ok();
}

// The ids that the metadata names; the tokenizer knows further ones by their text (runtime/gguf_tokenizer.h).
Status ReadTokenIds(const GgufMetadata& metadata, ModelConfig& config) {
  const auto read = [&](std::string_view key) -> Result<std::optional<int64_t>> {
    ASSIGN_OR_RETURN(const std::optional<int64_t> id, metadata.TokenId(key));
    return id && *id < config.vocab ? id : std::nullopt;
  };
  ASSIGN_OR_RETURN(config.bos_id, read("tokenizer.ggml.bos_token_id"));
  std::set<int64_t> ends;
  for (const std::string_view key :
       {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
    ASSIGN_OR_RETURN(const std::optional<int64_t> id, read(key));
    if (id) ends.insert(*id);
  }
  ASSIGN_OR_RETURN(const std::optional<std::string_view> tokenizer, metadata.String("tokenizer.ggml.model"));
  constexpr int64_t kSentencePieceEos = 2;  // when the metadata does not say
  if (ends.empty() && tokenizer == "llama" && config.vocab > kSentencePieceEos) ends.insert(kSentencePieceEos);
  config.eos_ids.assign(ends.begin(), ends.end());
  return Ok();
}

std::string ModelName(const std::string& path) {
  const GgufPartName part = ParseGgufPartName(path);
  const std::filesystem::path name = std::filesystem::path(part.parts == 0 ? path : part.stem).filename();
  return (part.parts == 0 && HasGgufSuffix(path) ? name.stem() : name).string();
}

}  // namespace

Result<ModelConfig> ReadGgufConfig(const GgufSource& source) {
  const GgufMetadata& metadata = source.metadata();
  ASSIGN_OR_RETURN(const ModelFamily* const family, ReadFamily(metadata));
  const std::string_view architecture = *metadata.Find("general.architecture")->AsString();
  ASSIGN_OR_RETURN(const json tree, Translator(source, architecture, *family).Translate());
  ASSIGN_OR_RETURN(ModelConfig config, ModelConfigOf(tree, fmt::format("{} (metadata)", metadata.path())));
  config.name = ModelName(metadata.path());
  config.norm_offset = 0;  // converters have added it
  RETURN_IF_ERROR(ReadRotation(source, architecture, config));
  RETURN_IF_ERROR(ReadTokenIds(metadata, config));
  return config;
}

}  // namespace infinigen
