// Translates the tokenizer of a model directory into GGUF metadata.
#include <algorithm>
#include <map>
#include <utility>

#include "base/utf8.h"
#include "text/gguf_tokenizer.h"
#include "text/tokenizer_files.h"

namespace infinigen {
namespace {

class Exporter {
 public:
  Exporter(const LoadedTokenizer& from, int64_t vocab) : from_(from), spec_(from.spec), vocab_(vocab) {}

  Result<GgufTokenizerText> Export() {
    if (spec_.vocabulary.size() > vocab_)
      return Invalid("{}: {} tokens, but the model has {}", from_.path, spec_.vocabulary.size(), vocab_);
    const bool byte_level =
        !spec_.pre_tokenizers.empty() && spec_.pre_tokenizers.back().kind == PreTokenizerStep::Kind::kByteLevel;
    SetTokens(!byte_level);
    if (byte_level) {
      RETURN_IF_ERROR(SetByteLevel());
    } else {
      RETURN_IF_ERROR(SetSentencePieces());
    }
    RETURN_IF_ERROR(SetRoles());
    text_.chat_template = from_.config.chat_template;
    return std::move(text_);
  }

 private:
  void SetTokens(bool byte_tokens) {
    for (int64_t id = 0; id < vocab_; ++id) {
      const std::string_view text = spec_.vocabulary.Text(static_cast<TokenId>(id));
      const auto added = spec_.added_index.find(static_cast<TokenId>(id));
      GgufTokenKind kind = GgufTokenKind::kNormal;
      if (text.empty())
        kind = GgufTokenKind::kUnused;
      else if (added != spec_.added_index.end())
        kind = spec_.added_tokens[added->second].special ? GgufTokenKind::kControl : GgufTokenKind::kUserDefined;
      else if (byte_tokens && text.size() == 6 && text.starts_with("<0x"))
        kind = GgufTokenKind::kByte;
      if (!text.empty() && text == spec_.bpe.unk_token) kind = GgufTokenKind::kUnknown;
      text_.tokens.push_back(text.empty() ? fmt::format("[PAD{}]", id) : std::string(text));
      text_.types.push_back(static_cast<int32_t>(kind));
    }
  }

  Status SetByteLevel() {
    text_.model = "gpt2";
    text_.pre = GgufPreType(spec_.pre_tokenizers, spec_.bpe.ignore_merges);
    if (text_.pre.empty()) {
      std::string patterns;
      for (const PreTokenizerStep& step : spec_.pre_tokenizers) patterns += step.pattern + " ";
      return Unsupported("{}: GGUF has no pre-type for the pre-tokenizer {}", from_.path, Quoted(patterns));
    }
    // Readers of the format do not normalize. NFC leaves nearly all text unchanged; other converters drop it too.
    for (const NormalizerStep& step : spec_.normalizers)
      if (step.kind != NormalizerStep::Kind::kNfc)
        return Unsupported("{}: GGUF cannot express the tokenizer's normalizer", from_.path);
    std::multimap<uint32_t, std::string> merges;  // by rank
    spec_.merges.ForEachPair([&](TokenId left, TokenId right, MergeTable::Merge merge) {
      merges.emplace(merge.rank, fmt::format("{} {}", spec_.vocabulary.Text(left), spec_.vocabulary.Text(right)));
    });
    for (auto& [rank, line] : merges) text_.merges.push_back(std::move(line));
    return Ok();
  }

  // Scores rank the tokens as the merges do: the token of the first merge has the highest.
  Status SetSentencePieces() {
    text_.model = "llama";
    bool escapes = false;
    for (const NormalizerStep& step : spec_.normalizers) {
      const bool prepends = step.kind == NormalizerStep::Kind::kPrepend && step.content == kMetaspaceMark;
      const bool replaces =
          step.kind == NormalizerStep::Kind::kReplace && step.pattern == " " && step.content == kMetaspaceMark;
      if (!prepends && !replaces) return Unsupported("{}: GGUF cannot express the tokenizer's normalizer", from_.path);
      text_.add_space_prefix = text_.add_space_prefix || prepends;
      escapes = escapes || replaces;
    }
    for (const PreTokenizerStep& step : spec_.pre_tokenizers) {
      if (step.kind != PreTokenizerStep::Kind::kMetaspace || step.replacement != kMetaspaceMark)
        return Unsupported("{}: GGUF cannot express the tokenizer's pre-tokenizer", from_.path);
      text_.add_space_prefix = text_.add_space_prefix || step.prepend_scheme != PrependScheme::kNever;
      escapes = true;
    }
    if (!escapes) return Unsupported("{}: GGUF cannot express a tokenizer that keeps spaces", from_.path);
    constexpr float kNoMerge = -1e9f;  // characters, which no merge makes
    text_.scores.assign(text_.tokens.size(), kNoMerge);
    spec_.merges.ForEachPair([&](TokenId, TokenId, MergeTable::Merge merge) {
      float& score = text_.scores[static_cast<size_t>(merge.id)];
      score = std::max(score, -static_cast<float>(merge.rank));
    });
    for (size_t id = 0; id < text_.scores.size(); ++id)
      if (text_.types[id] != static_cast<int32_t>(GgufTokenKind::kNormal)) text_.scores[id] = 0;
    return Ok();
  }

  Status SetRoles() {
    const auto id_of = [this](const char* role) -> std::optional<int32_t> {
      const AddedToken* const token = from_.config.Role(role);
      return token == nullptr ? std::nullopt : spec_.vocabulary.Find(token->content);
    };
    text_.bos = id_of("bos_token");
    text_.eos = id_of("eos_token");
    text_.unk = id_of("unk_token");
    text_.pad = id_of("pad_token");
    const auto only = [&](const std::vector<TokenId>& ids, std::optional<int32_t>& role) {
      if (ids.size() == 1 && !role) role = ids[0];
      return ids.empty() || (ids.size() == 1 && ids[0] == role);
    };
    if (!only(spec_.prefix, text_.bos) || !only(spec_.suffix, text_.eos))
      return Unsupported("{}: GGUF cannot express the tokens that the tokenizer puts around a text", from_.path);
    text_.add_bos = !spec_.prefix.empty();
    text_.add_eos = !spec_.suffix.empty();
    return Ok();
  }

  const LoadedTokenizer& from_;
  const TokenizerSpec& spec_;
  int64_t vocab_;
  GgufTokenizerText text_;
};

}  // namespace

Result<GgufTokenizerText> ExportGgufTokenizer(const std::string& directory, int64_t vocab) {
  ASSIGN_OR_RETURN(const LoadedTokenizer loaded, LoadTokenizerSpec(directory));
  return Exporter(loaded, vocab).Export();
}

}  // namespace infinigen
