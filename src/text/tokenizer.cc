#include "text/tokenizer.h"

#include <filesystem>
#include <utility>

#include "base/mmap_file.h"
#include "text/gguf_tokenizer.h"
#include "text/pipeline.h"
#include "text/tokenizer_files.h"

namespace infinigen {
namespace {

// Limits of the file sizes: twice the largest published files.
constexpr uint64_t kMaxJsonBytes = 64 << 20;
constexpr uint64_t kMaxModelBytes = 16 << 20;

bool Exists(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

Result<MmapFile> OpenBounded(const std::string& path, uint64_t max_bytes) {
  ASSIGN_OR_RETURN(MmapFile file, MmapFile::Open(path));
  if (file.bytes().size() > max_bytes)
    return Invalid("{}: file of {} bytes; this kind of file may have at most {}", path, file.bytes().size(), max_bytes);
  return file;
}

std::string_view TextOf(const MmapFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

Result<TokenizerSpec> LoadTokenizerJson(const std::string& path, const TokenizerConfig& config) {
  ASSIGN_OR_RETURN(const MmapFile file, OpenBounded(path, kMaxJsonBytes));
  return ReadTokenizerJson(TextOf(file), path, config.rules);
}

// Llama 3's format. The special tokens are those named by the configuration files, otherwise the published ones.
Result<TokenizerSpec> LoadTiktoken(std::string_view bytes, const std::string& path, TokenizerConfig& config) {
  constexpr int32_t kLlama3Ranks = 128'000;
  ASSIGN_OR_RETURN(TokenizerSpec spec, ReadTiktoken(bytes, path));
  std::map<int64_t, AddedToken>& named = config.added_tokens_decoder;
  const int64_t first = spec.vocabulary.size();
  if (named.empty() && first == kLlama3Ranks) {
    int64_t id = first;
    for (std::string& name : Llama3SpecialTokens()) named[id++].content = std::move(name);
  }
  // Ids between the named ones get placeholders, as in transformers.
  const int64_t last = named.empty() ? -1 : named.rbegin()->first;
  if (last >= TokenVocabulary::kMaxTokens)
    return Invalid("{}: added token id {} is too large; ids from 0 to {} are allowed", config.path, last,
                   TokenVocabulary::kMaxTokens - 1);
  for (int64_t id = first; id <= last; ++id) {
    AddedToken& token = named[id];
    if (token.content.empty()) token.content = fmt::format("<|reserved_token_{}|>", id);
    token.special = true;
    token.normalized = false;
  }
  if (spec.vocabulary.size() == kLlama3Ranks) {
    config.SetDefaultRole("bos_token", "<|begin_of_text|>");
    config.SetDefaultRole("eos_token", "<|end_of_text|>");
  }
  return spec;
}

Result<TokenizerSpec> LoadSentencePiece(std::string_view bytes, const std::string& path, TokenizerConfig& config) {
  const bool llama = config.rules.tokenizer_class == TokenizerClass::kLlama;
  ASSIGN_OR_RETURN(
      SentencePieceModel model,
      ReadSentencePiece(bytes, path, llama ? SentencePieceRules::kLlamaTokenizer : SentencePieceRules::kOwn));
  if (llama) {
    ApplyClassRules(config.rules, model.spec);
  } else {
    config.SetDefaultRole("bos_token", model.bos_piece);
    config.SetDefaultRole("eos_token", model.eos_piece);
    config.SetDefaultRole("unk_token", model.unk_piece);
  }
  return std::move(model.spec);
}

Result<TokenizerSpec> LoadModelFile(const std::string& path, TokenizerConfig& config) {
  ASSIGN_OR_RETURN(const MmapFile file, OpenBounded(path, kMaxModelBytes));
  const std::string_view bytes = TextOf(file);
  if (LooksLikeTiktoken(bytes)) return LoadTiktoken(bytes, path, config);
  return LoadSentencePiece(bytes, path, config);
}

Result<TokenizerSpec> LoadVocabAndMerges(const std::string& vocab_path, const std::string& merges_path,
                                         TokenizerConfig& config) {
  ASSIGN_OR_RETURN(const MmapFile vocab, OpenBounded(vocab_path, kMaxJsonBytes));
  ASSIGN_OR_RETURN(const MmapFile merges, OpenBounded(merges_path, kMaxJsonBytes));
  ASSIGN_OR_RETURN(TokenizerSpec spec, ReadVocabAndMerges(TextOf(vocab), vocab_path, TextOf(merges), merges_path));
  ApplyVocabRules(config.rules, spec);
  if (config.rules.tokenizer_class == TokenizerClass::kQwen2) {
    for (const char* role : {"eos_token", "unk_token", "pad_token"}) config.SetDefaultRole(role, "<|endoftext|>");
  }
  return spec;
}

}  // namespace

Result<LoadedTokenizer> LoadTokenizerSpec(const std::string& directory) {
  if (!std::filesystem::is_directory(directory)) return IoError("{}: not a directory", directory);
  ASSIGN_OR_RETURN(TokenizerConfig config, ReadTokenizerConfig(directory));
  const std::string whole = directory + "/tokenizer.json";
  const std::string model = directory + "/tokenizer.model";
  const std::string vocab = directory + "/vocab.json";
  const std::string merges = directory + "/merges.txt";
  const bool from_json = Exists(whole);
  Result<TokenizerSpec> spec = from_json       ? LoadTokenizerJson(whole, config)
                               : Exists(model) ? LoadModelFile(model, config)
                               : Exists(vocab) && Exists(merges)
                                   ? LoadVocabAndMerges(vocab, merges, config)
                                   : IoError(
                                         "{}: no tokenizer found: neither tokenizer.json, nor "
                                         "tokenizer.model, nor vocab.json with merges.txt exists",
                                         directory);
  if (!spec.ok()) return spec.error();
  if (const Status applied = ApplyTokenizerConfig(config, !from_json, *spec); !applied.ok())
    return Error{applied.error().kind, config.path + ": " + applied.error().message};
  return LoadedTokenizer{std::move(*spec), std::move(config), from_json ? whole : Exists(model) ? model : vocab};
}

Tokenizer::Tokenizer() = default;
Tokenizer::~Tokenizer() = default;

Result<std::unique_ptr<Tokenizer>> Tokenizer::Load(const std::string& directory) {
  Result<LoadedTokenizer> loaded = LoadTokenizerSpec(directory);
  if (!loaded.ok()) return loaded.error();
  const TokenizerConfig& config = loaded->config;
  const auto id_of = [&](const char* role) {
    const AddedToken* token = config.Role(role);
    return token == nullptr ? std::nullopt : loaded->spec.vocabulary.Find(token->content);
  };
  std::unique_ptr<Tokenizer> tokenizer(new Tokenizer);
  tokenizer->bos_ = id_of("bos_token");
  tokenizer->eos_ = id_of("eos_token");
  tokenizer->chat_template_ = config.chat_template;
  tokenizer->chat_template_path_ = config.chat_template_path;
  tokenizer->other_templates_ = config.other_templates;
  Result<std::unique_ptr<const Pipeline>> pipeline = Pipeline::Create(std::move(loaded->spec));
  if (!pipeline.ok()) return Error{pipeline.error().kind, loaded->path + ": " + pipeline.error().message};
  tokenizer->pipeline_ = std::move(*pipeline);
  return tokenizer;
}

Result<std::unique_ptr<Tokenizer>> Tokenizer::FromGguf(const GgufVocabulary& vocabulary) {
  ASSIGN_OR_RETURN(TokenizerSpec spec, ReadGgufVocabulary(vocabulary));
  const auto id_of = [&](std::optional<int64_t> id) -> std::optional<TokenId> {
    if (!id || *id < 0 || *id >= spec.vocabulary.size()) return std::nullopt;
    return static_cast<TokenId>(*id);
  };
  std::unique_ptr<Tokenizer> tokenizer(new Tokenizer);
  tokenizer->bos_ = id_of(vocabulary.bos);
  tokenizer->eos_ = id_of(vocabulary.eos);
  tokenizer->chat_template_ = vocabulary.chat_template;
  tokenizer->chat_template_path_ = vocabulary.path;
  Result<std::unique_ptr<const Pipeline>> pipeline = Pipeline::Create(std::move(spec));
  if (!pipeline.ok()) return Error{pipeline.error().kind, vocabulary.path + ": " + pipeline.error().message};
  tokenizer->pipeline_ = std::move(*pipeline);
  return tokenizer;
}

Result<std::vector<TokenId>> Tokenizer::Encode(std::string_view text, EncodeOptions options) const {
  return pipeline_->Encode(text, options);
}

std::string Tokenizer::Decode(std::span<const TokenId> ids, bool skip_special) const {
  DecodeState state;
  std::string text;
  for (const TokenId id : ids) {
    if (!pipeline_->vocabulary().Contains(id) || (skip_special && pipeline_->IsSpecial(id))) continue;
    pipeline_->decoder().Append(pipeline_->vocabulary().Text(id), state, text);
  }
  return text;
}

int32_t Tokenizer::vocab_size() const { return pipeline_->vocabulary().size(); }
std::optional<TokenId> Tokenizer::IdOf(std::string_view token) const { return pipeline_->vocabulary().Find(token); }
std::string_view Tokenizer::TokenText(TokenId id) const { return pipeline_->vocabulary().Text(id); }
bool Tokenizer::IsSpecial(TokenId id) const { return pipeline_->IsSpecial(id); }

}  // namespace infinigen
