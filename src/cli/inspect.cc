// `infinigen inspect`: the contents of a model directory or GGUF file, without reading its weights.
#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>

#include "base/size.h"
#include "cli/commands.h"
#include "cli/console.h"
#include "cli/flags.h"
#include "cli/options.h"
#include "kv/view.h"
#include "runtime/model.h"
#include "runtime/report.h"

namespace infinigen {
namespace {

using Json = nlohmann::ordered_json;

struct StoredType {
  int64_t tensors = 0;
  uint64_t bytes = 0;
};

// Tensors and bytes of each type, by the type's name in the files.
std::map<std::string, StoredType> TypesOf(const Inspection& model) {
  std::map<std::string, StoredType> types;
  for (const InspectedFile& file : model.files)
    for (const InspectedTensor& tensor : file.tensors) {
      StoredType& type = types[tensor.dtype];
      ++type.tensors;
      type.bytes += tensor.bytes;
    }
  return types;
}

uint64_t TotalBytes(const Inspection& model) {
  uint64_t bytes = 0;
  for (const auto& [name, type] : TypesOf(model)) bytes += type.bytes;
  return bytes;
}

uint64_t KvBytesPerToken(const ModelConfig& config, StoreType type) {
  const EntryLayout layout{.type = type, .kv_heads = config.kv_heads, .head_dim = config.head_dim};
  return static_cast<uint64_t>(config.layers) * layout.row_bytes();
}

std::string_view ScalingName(RopeScaling scaling) {
  switch (scaling) {
    case RopeScaling::kNone:
      return "none";
    case RopeScaling::kLinear:
      return "linear";
    case RopeScaling::kLlama3:
      return "llama3";
    case RopeScaling::kYarn:
      return "yarn";
  }
  return "";
}

Json PositionsJson(const ModelConfig& config) {
  if (config.positions == PositionKind::kLearned) return {{"kind", "learned"}, {"offset", config.position_offset}};
  if (config.ropes.empty()) return {{"kind", "none"}};
  const RopeConfig& rope = config.ropes.front();
  Json json = {{"kind", "rope"}, {"theta", rope.base}, {"scaling", ScalingName(rope.scaling)}};
  if (rope.scaling != RopeScaling::kNone) json["factor"] = rope.factor;
  if (rope.scaling == RopeScaling::kLlama3) {
    json["low_freq_factor"] = rope.low_freq_factor;
    json["high_freq_factor"] = rope.high_freq_factor;
    json["original_max_positions"] = rope.original_max_positions;
  }
  return json;
}

int64_t CountSpecials(const Tokenizer& tokenizer) {
  int64_t count = 0;
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) count += tokenizer.IsSpecial(id);
  return count;
}

Json TokenizerJson(const Inspection& model) {
  if (model.tokenizer == nullptr) return nullptr;
  const Tokenizer& tokenizer = *model.tokenizer;
  const auto token = [&](std::optional<TokenId> id) -> Json {
    if (!id) return nullptr;
    return {{"id", *id}, {"text", std::string(tokenizer.TokenText(*id))}};
  };
  return {{"file", TokenizerFile(model.path)},    {"vocab", tokenizer.vocab_size()},
          {"bos", token(tokenizer.bos())},        {"eos", token(tokenizer.eos())},
          {"specials", CountSpecials(tokenizer)}, {"chat_template", !tokenizer.chat_template().empty()}};
}

Json TensorsJson(const std::vector<InspectedFile>& files) {
  Json list = Json::array();
  for (const InspectedFile& file : files)
    for (const InspectedTensor& tensor : file.tensors)
      list.push_back(
          {{"name", tensor.name}, {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"bytes", tensor.bytes}});
  return list;
}

Json InspectJson(const Inspection& model, bool tensors) {
  const ModelConfig& config = model.config;
  Json types = Json::object(), kv = Json::object();
  for (const auto& [name, type] : TypesOf(model)) types[name] = {{"tensors", type.tensors}, {"bytes", type.bytes}};
  for (const StoreType type : kStoreTypes) kv[std::string(Name(type))] = KvBytesPerToken(config, type);
  Json json = {{"name", config.name},
               {"arch", config.family_name()},
               {"params", ParameterCount(config)},
               {"layers", config.layers},
               {"hidden", config.hidden},
               {"heads", config.heads},
               {"kv_heads", config.kv_heads},
               {"head_dim", config.head_dim},
               {"ffn", config.ffn},
               {"vocab", config.vocab},
               {"embed_dim", config.embed_dim},
               {"tied_embeddings", config.tied_embeddings},
               {"context", config.max_positions},
               {"positions", PositionsJson(config)},
               {"eos_ids", config.eos_ids},
               {"bytes", TotalBytes(model)},
               {"files", model.files.size()},
               {"types", std::move(types)},
               {"kv_bytes_per_token", std::move(kv)},
               {"tokenizer", TokenizerJson(model)}};
  for (const InspectedEntry& entry : model.metadata)
    json["metadata"][entry.key] = {{"type", entry.type}, {"value", entry.value}};
  if (!model.misfit.empty()) json["misfit"] = model.misfit;
  if (tensors) json["tensors"] = TensorsJson(model.files);
  return json;
}

std::string PositionsText(const ModelConfig& config) {
  if (config.positions == PositionKind::kLearned) return "learned";
  if (config.ropes.empty()) return "none";
  const RopeConfig& rope = config.ropes.front();
  std::string text = fmt::format("rope, theta {}", rope.base);
  if (rope.order == RopeOrder::kPairs) text += ", adjacent pairs";
  if (!rope.frequency_divisors.empty()) text += ", frequencies scaled by the file";
  if (rope.scaling != RopeScaling::kNone)
    text += fmt::format(", {} scaling by {}", ScalingName(rope.scaling), rope.factor);
  if (rope.scaling == RopeScaling::kLlama3)
    text += fmt::format(" (low {}, high {}, from {})", rope.low_freq_factor, rope.high_freq_factor,
                        rope.original_max_positions);
  return text;
}

std::string TokenizerText(const Inspection& model) {
  if (model.tokenizer == nullptr) return "none";
  const Tokenizer& tokenizer = *model.tokenizer;
  const auto token = [&](std::optional<TokenId> id) {
    return id ? fmt::format("{} '{}'", *id, OneLine(tokenizer.TokenText(*id))) : std::string("none");
  };
  return fmt::format("{}, {} tokens, {} special, BOS {}, EOS {}, {}", TokenizerFile(model.path), tokenizer.vocab_size(),
                     CountSpecials(tokenizer), token(tokenizer.bos()), token(tokenizer.eos()),
                     tokenizer.chat_template().empty() ? "no chat template" : "with a chat template");
}

std::string InspectText(const Inspection& model, bool tensors) {
  const ModelConfig& config = model.config;
  std::string text;
  const auto line = [&](std::string_view name, const std::string& value) {
    text += fmt::format("{:<14}{}\n", name, OneLine(value));
  };
  line("model", fmt::format("{} ({})", config.name, config.family_name()));
  line("parameters",
       fmt::format("{:.1f} M ({})", static_cast<double>(ParameterCount(config)) / 1e6, ParameterCount(config)));
  line("layers", fmt::format("{}, hidden {}, ffn {}", config.layers, config.hidden, config.ffn));
  line("heads", fmt::format("{} query, {} KV, {} dimensions each", config.heads, config.kv_heads, config.head_dim));
  line("vocabulary", fmt::format("{}{}", config.vocab, config.tied_embeddings ? ", tied embeddings" : ""));
  line("context", fmt::format("{} tokens", config.max_positions));
  line("positions", PositionsText(config));
  line("end ids", config.eos_ids.empty() ? "none" : fmt::format("{}", fmt::join(config.eos_ids, " ")));
  line("weights", fmt::format("{} in {} file{}", FormatSize(TotalBytes(model)), model.files.size(),
                              model.files.size() == 1 ? "" : "s"));
  for (const auto& [name, type] : TypesOf(model))
    line("", fmt::format("{:<7}{} in {} tensors", name, FormatSize(type.bytes), type.tensors));
  std::string kv;
  for (const StoreType type : kStoreTypes)
    kv += fmt::format("{}{} {}", kv.empty() ? "" : ", ", Name(type), FormatSize(KvBytesPerToken(config, type)));
  line("KV per token", kv);
  line("tokenizer", TokenizerText(model));
  if (!model.metadata.empty()) text += "\nmetadata\n";
  for (const InspectedEntry& entry : model.metadata)
    text += fmt::format("  {:<40} {:<18} {}\n", entry.key, entry.type, entry.value);
  if (!tensors) return text;
  for (const InspectedFile& file : model.files) {
    text += fmt::format("\n{}\n", OneLine(file.path));
    for (const InspectedTensor& tensor : file.tensors)
      text += fmt::format("  {:<56} {:<7} {:<16} {}\n", OneLine(tensor.name), tensor.dtype,
                          fmt::format("[{}]", fmt::join(tensor.shape, ",")), FormatSize(tensor.bytes));
  }
  return text;
}

Result<int> Inspect(const std::string& name, bool tensors, bool json) {
  ASSIGN_OR_RETURN(const std::string directory, FindModelHere(name));
  ASSIGN_OR_RETURN(const Inspection model, InspectModel(directory));
  Output output;
  output.Write(json ? Dump(InspectJson(model, tensors)) : InspectText(model, tensors));
  RETURN_IF_ERROR(output.status());
  if (!model.misfit.empty()) return Invalid("{}", model.misfit);
  return kExitOk;
}

}  // namespace

int RunInspect(Arguments arguments) {
  std::string model_flag;
  bool tensors = false, json = false;
  Flags flags("inspect",
              "Show a model's configuration, weights and tokenizer. Only the headers of the weight files are read.");
  flags.Group("Model");
  AddModelFlag(flags, &model_flag);
  flags.Group("Output");
  flags.Switch("--tensors", &tensors, "also list every tensor");
  flags.Switch("--json", &json, "print one JSON object instead of text");
  if (const std::optional<int> exit_code = flags.Parse(arguments)) return *exit_code;
  return Finish(Inspect(model_flag, tensors, json));
}

}  // namespace infinigen
