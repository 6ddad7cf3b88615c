#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>

#include "base/mmap_file.h"
#include "base/utf8.h"
#include "json/parse.h"
#include "text/added_tokens.h"
#include "text/tokenizer_files.h"

namespace infinigen {
namespace {

void ApplyLlama(const ClassRules& rules, TokenizerSpec& spec) {
  spec.bpe.unk_token.clear();
  spec.bpe.fuse_unk = true;
  spec.bpe.byte_fallback = true;
  spec.bpe.ignore_merges = false;

  PreTokenizerStep metaspace;
  metaspace.kind = PreTokenizerStep::Kind::kMetaspace;
  metaspace.replacement = kMetaspaceMark;
  metaspace.split = false;
  metaspace.prepend_scheme = !rules.add_prefix_space ? PrependScheme::kNever
                             : rules.legacy          ? PrependScheme::kAlways
                                                     : PrependScheme::kFirst;
  spec.pre_tokenizers = {metaspace};

  spec.decoders = MetaspaceDecoders(/*prefix_space=*/rules.add_prefix_space);
}

void ApplyGpt2(const ClassRules& rules, TokenizerSpec& spec) {
  spec.bpe = {};
  PreTokenizerStep byte_level;
  byte_level.pattern = kGpt2Pattern;
  byte_level.add_prefix_space = rules.add_prefix_space;
  spec.pre_tokenizers = {byte_level};
  spec.decoders = {DecoderStep{}};
}

// Qwen2Tokenizer. Digits are single tokens, and a space joins punctuation and line ends but not digits.
void ApplyQwen2(const ClassRules& rules, TokenizerSpec& spec) {
  constexpr const char* kPattern =
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  spec.bpe = {};
  spec.normalizers = {NormalizerStep{}};  // NFC
  PreTokenizerStep split;
  split.kind = PreTokenizerStep::Kind::kSplitRegex;
  split.pattern = kPattern;
  PreTokenizerStep bytes;
  bytes.add_prefix_space = rules.add_prefix_space;
  spec.pre_tokenizers = {split, bytes};
  spec.decoders = {DecoderStep{}};
}

using nlohmann::json;

constexpr std::array kRoles = {"bos_token", "eos_token", "unk_token", "sep_token",
                               "pad_token", "cls_token", "mask_token"};
constexpr size_t kMaxTemplateBytes = 4 << 20;
constexpr size_t kMaxFileBytes = 4 << 20;
constexpr JsonLimits kFileLimits = {.max_values = 300'000, .max_text_bytes = kMaxFileBytes};

// JSON null when the file does not exist.
Result<json> ReadIfThere(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return json();
  ASSIGN_OR_RETURN(json file, ReadJsonFile(path, kMaxFileBytes, kFileLimits));
  if (!file.is_object()) return Invalid("{}: the file must contain a JSON object", path);
  return file;
}

std::string TextOr(const json& object, const char* key, const std::string& otherwise) {
  if (!object.is_object()) return otherwise;
  const auto field = object.find(key);
  const auto* text = field == object.end() ? nullptr : field->get_ptr<const std::string*>();
  return text == nullptr ? otherwise : *text;
}

std::optional<bool> BoolOf(const json& object, const char* key) {
  if (!object.is_object()) return std::nullopt;
  const auto field = object.find(key);
  const bool* value = field == object.end() ? nullptr : field->get_ptr<const bool*>();
  return value == nullptr ? std::nullopt : std::optional(*value);
}

// A special token is either a string or an object with options.
Result<AddedToken> SpecialToken(const json& value) {
  AddedToken token;
  if (const auto* text = value.get_ptr<const std::string*>()) {
    token.content = *text;
    token.normalized = false;
  } else {
    ASSIGN_OR_RETURN(token, ParseAddedToken(value));
  }
  token.special = true;
  token.id = -1;
  return token;
}

class ConfigReader {
 public:
  explicit ConfigReader(TokenizerConfig& config) : config_(config) {}

  Status ReadRoles(const json& file) {
    for (const char* role : kRoles) {
      if (!file.contains(role) || file[role].is_null()) continue;
      ASSIGN_OR_RETURN(AddedToken token, SpecialToken(file[role]));
      SetRole(role, std::move(token));
    }
    // Roles that only some models have ("image_token") are special tokens too.
    for (const auto& item : file.items()) {
      const bool known = std::find(kRoles.begin(), kRoles.end(), item.key()) != kRoles.end();
      if (known || !item.key().ends_with("_token") || !item.value().is_string()) continue;
      ASSIGN_OR_RETURN(AddedToken token, SpecialToken(item.value()));
      config_.extra_special.push_back(std::move(token));
    }
    for (const char* key : {"extra_special_tokens", "additional_special_tokens"}) {
      if (!file.contains(key) || !file[key].is_structured()) continue;
      for (const json& value : file[key]) {
        ASSIGN_OR_RETURN(AddedToken token, SpecialToken(value));
        config_.extra_special.push_back(std::move(token));
      }
    }
    return Ok{};
  }

  Status ReadAddedTokensDecoder(const json& decoder) {
    if (!decoder.is_object()) return Invalid("field 'added_tokens_decoder' must be an object");
    for (const auto& item : decoder.items()) {
      int64_t id = -1;
      const std::string& key = item.key();
      const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
      if (error != std::errc() || end != key.data() + key.size() || id < 0)
        return Invalid("added_tokens_decoder: key {} is not a token id", Quoted(key, 64));
      ASSIGN_OR_RETURN(AddedToken token, ParseAddedToken(item.value()));
      token.id = -1;
      config_.added_tokens_decoder[id] = std::move(token);
    }
    return Ok{};
  }

  // {"token": id}: the older form of added_tokens_decoder.
  Status ReadAddedTokens(const json& file) {
    for (const auto& item : file.items()) {
      const auto* id = item.value().get_ptr<const json::number_unsigned_t*>();
      if (id == nullptr || *id > INT32_MAX)
        return Invalid("token {}: the id must be a whole number from 0 to 2147483647", Quoted(item.key(), 64));
      AddedToken token;
      token.content = item.key();
      token.special = IsNamed(token.content);
      token.normalized = !token.special;
      config_.added_tokens_decoder[static_cast<int64_t>(*id)] = std::move(token);
    }
    return Ok{};
  }

  // A token's options in added_tokens_decoder also apply to the token in its roles.
  void ShareOptions() {
    std::map<std::string, const AddedToken*> by_content;
    for (const auto& [id, token] : config_.added_tokens_decoder) by_content[token.content] = &token;
    for (auto& [role, token] : config_.roles) {
      const auto same = by_content.find(token.content);
      if (same == by_content.end()) continue;
      token = *same->second;
      token.special = true;
    }
  }

 private:
  void SetRole(const std::string& role, AddedToken token) {
    for (auto& [name, old] : config_.roles)
      if (name == role) {
        old = std::move(token);
        return;
      }
    config_.roles.emplace_back(role, std::move(token));
  }

  bool IsNamed(const std::string& content) const {
    const auto same = [&](const AddedToken& token) { return token.content == content; };
    return std::any_of(config_.roles.begin(), config_.roles.end(),
                       [&](const auto& role) { return same(role.second); }) ||
           std::any_of(config_.extra_special.begin(), config_.extra_special.end(), same);
  }

  TokenizerConfig& config_;
};

Error InFile(const std::string& path, const Error& error) { return {error.kind, path + ": " + error.message}; }

// Template files by name: chat_template.jinja is "default", the others are additional_chat_templates/NAME.jinja.
std::map<std::string, std::string> TemplateFiles(const std::string& directory) {
  std::map<std::string, std::string> out;
  std::error_code error;
  const std::string path = directory + "/chat_template.jinja";
  if (std::filesystem::exists(path, error)) out["default"] = path;
  for (const auto& entry : std::filesystem::directory_iterator(directory + "/additional_chat_templates", error))
    if (entry.path().extension() == ".jinja") out[entry.path().stem().string()] = entry.path().string();
  return out;
}

// Files take precedence over tokenizer_config.json, where the template is a string or a list of named templates.
Status ReadChatTemplate(const std::string& directory, const json& file, TokenizerConfig& config) {
  config.chat_template_path = config.path;
  const std::map<std::string, std::string> files = TemplateFiles(directory);
  for (const auto& [name, path] : files) {
    if (name == "default") {
      ASSIGN_OR_RETURN(config.chat_template, ReadSmallFile(path, kMaxTemplateBytes));
      config.chat_template_path = path;
    } else {
      config.other_templates.push_back(name);
    }
  }
  if (!files.empty()) return Ok{};
  config.chat_template = TextOr(file, "chat_template", "");
  if (!file.is_object() || !file.contains("chat_template") || !file["chat_template"].is_array()) return Ok{};
  for (const json& named : file["chat_template"]) {
    const std::string name = TextOr(named, "name", "");
    if (name == "default")
      config.chat_template = TextOr(named, "template", "");
    else
      config.other_templates.push_back(name);
  }
  std::sort(config.other_templates.begin(), config.other_templates.end());
  return Ok{};
}

std::optional<TokenId> IdOfRole(const TokenizerConfig& config, const char* role, const TokenizerSpec& spec) {
  const AddedToken* token = config.Role(role);
  return token == nullptr ? std::nullopt : spec.vocabulary.Find(token->content);
}

}  // namespace

std::vector<DecoderStep> MetaspaceDecoders(bool prefix_space) {
  using Kind = DecoderStep::Kind;
  std::vector<DecoderStep> steps(3);
  steps[0].kind = Kind::kReplace;
  steps[0].pattern = kMetaspaceMark;
  steps[0].content = " ";
  steps[1].kind = Kind::kByteFallback;
  steps[2].kind = Kind::kFuse;
  if (prefix_space) {
    DecoderStep strip;
    strip.kind = Kind::kStrip;
    strip.content = " ";
    strip.start = 1;
    steps.push_back(strip);
  }
  return steps;
}

TokenizerClass ClassOf(std::string declared, const std::string& model_type) {
  if (declared.ends_with("Fast")) declared.resize(declared.size() - 4);
  if (declared.empty() && (model_type == "opt" || model_type == "gpt2")) declared = "GPT2Tokenizer";
  if (declared.empty() && (model_type == "qwen2" || model_type == "qwen3")) declared = "Qwen2Tokenizer";
  if (declared == "LlamaTokenizer") return TokenizerClass::kLlama;
  if (declared == "GPT2Tokenizer") return TokenizerClass::kGpt2;
  if (declared == "Qwen2Tokenizer") return TokenizerClass::kQwen2;
  return TokenizerClass::kGeneric;
}

void ApplyClassRules(const ClassRules& rules, TokenizerSpec& spec) {
  const bool llama = rules.tokenizer_class == TokenizerClass::kLlama;
  if (!llama && rules.tokenizer_class != TokenizerClass::kGpt2) return;
  spec.normalizers.clear();
  if (llama)
    ApplyLlama(rules, spec);
  else
    ApplyGpt2(rules, spec);
}

void ApplyVocabRules(const ClassRules& rules, TokenizerSpec& spec) {
  if (rules.tokenizer_class == TokenizerClass::kQwen2)
    ApplyQwen2(rules, spec);
  else
    ApplyGpt2(rules, spec);
}

const AddedToken* TokenizerConfig::Role(const std::string& role) const {
  for (const auto& [name, token] : roles)
    if (name == role) return &token;
  return nullptr;
}

void TokenizerConfig::SetDefaultRole(const std::string& role, const std::string& token) {
  if (Role(role) != nullptr || token.empty()) return;
  AddedToken added;
  added.content = token;
  added.special = true;
  added.normalized = false;
  roles.emplace_back(role, std::move(added));
}

Result<TokenizerConfig> ReadTokenizerConfig(const std::string& directory) {
  TokenizerConfig config;
  config.path = directory + "/tokenizer_config.json";
  ConfigReader reader(config);
  ASSIGN_OR_RETURN(json file, ReadIfThere(config.path));
  const FreeJsonAtEnd free_file(file);
  ASSIGN_OR_RETURN(json model, ReadIfThere(directory + "/config.json"));
  const FreeJsonAtEnd free_model(model);
  if (file.is_object()) {
    if (const Status read = reader.ReadRoles(file); !read.ok()) return InFile(config.path, read.error());
    config.add_bos_token = BoolOf(file, "add_bos_token");
    config.add_eos_token = BoolOf(file, "add_eos_token");
  }
  if (file.is_object() && file.contains("added_tokens_decoder")) {
    const Status read = reader.ReadAddedTokensDecoder(file["added_tokens_decoder"]);
    if (!read.ok()) return InFile(config.path, read.error());
  } else {
    const std::string map_path = directory + "/special_tokens_map.json";
    ASSIGN_OR_RETURN(json map, ReadIfThere(map_path));
    const FreeJsonAtEnd free_map(map);
    if (map.is_object())
      if (const Status read = reader.ReadRoles(map); !read.ok()) return InFile(map_path, read.error());
    const std::string added_path = directory + "/added_tokens.json";
    ASSIGN_OR_RETURN(json added, ReadIfThere(added_path));
    const FreeJsonAtEnd free_added(added);
    if (added.is_object())
      if (const Status read = reader.ReadAddedTokens(added); !read.ok()) return InFile(added_path, read.error());
  }
  reader.ShareOptions();

  std::string declared = TextOr(file, "tokenizer_class", "");
  if (declared.empty()) declared = TextOr(model, "tokenizer_class", "");
  config.rules.tokenizer_class = ClassOf(declared, TextOr(model, "model_type", ""));
  config.rules.legacy = BoolOf(file, "legacy").value_or(false);
  config.rules.add_prefix_space =
      BoolOf(file, "add_prefix_space").value_or(config.rules.tokenizer_class == TokenizerClass::kLlama);
  if (config.rules.tokenizer_class == TokenizerClass::kLlama) {
    config.SetDefaultRole("bos_token", "<s>");
    config.SetDefaultRole("eos_token", "</s>");
    config.SetDefaultRole("unk_token", "<unk>");
  } else if (config.rules.tokenizer_class == TokenizerClass::kGpt2) {
    for (const char* role : {"bos_token", "eos_token", "unk_token"}) config.SetDefaultRole(role, "<|endoftext|>");
  }
  RETURN_IF_ERROR(ReadChatTemplate(directory, file, config));
  return config;
}

Status ApplyTokenizerConfig(const TokenizerConfig& config, bool add_bos_eos, TokenizerSpec& spec) {
  for (const auto& [id, token] : config.added_tokens_decoder) RETURN_IF_ERROR(AddToken(token, spec));
  for (const auto& [role, token] : config.roles) RETURN_IF_ERROR(AddToken(token, spec));
  for (const AddedToken& token : config.extra_special) RETURN_IF_ERROR(AddToken(token, spec));
  if (!add_bos_eos) return Ok{};
  if (config.add_bos_token.value_or(false))
    if (const auto bos = IdOfRole(config, "bos_token", spec)) spec.prefix.push_back(*bos);
  if (config.add_eos_token.value_or(false))
    if (const auto eos = IdOfRole(config, "eos_token", spec)) spec.suffix.push_back(*eos);
  return Ok{};
}

}  // namespace infinigen
