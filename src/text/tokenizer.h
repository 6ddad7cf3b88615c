// Tokenizer: converts text to token ids and back, exactly as transformers' AutoTokenizer does for the same directory.
// Made once from a model directory or a GGUF file and immutable afterwards: every method may be called from any thread.
// docs/tokenizers.md describes the file formats.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace infinigen {

using TokenId = int32_t;

// Called before an Encode call takes working memory in proportion to its text. False refuses: Encode then fails with
// kExhausted. The memory is free again when Encode returns, except for the ids.
using ReserveMemory = std::function<bool(size_t bytes)>;

struct EncodeOptions {
  bool add_special = true;  // add BOS, EOS and the like where the tokenizer's files say so
  // Encode "<|eot_id|>" in the text as that token. Set to false for untrusted text: special tokens in it are encoded as
  // characters, while added tokens that are not special are still recognised.
  bool parse_special = true;
  // Exceptions from parse_special: ascending offsets into the text at which a special token is encoded as characters.
  // If the tokenizer searches for special tokens in normalized text, an offset affects all text up to the next token
  // that is searched for in the raw text.
  std::span<const size_t> literal = {};
  const ReserveMemory* reserve = nullptr;  // null: memory is not limited
};

class Pipeline;         // text/pipeline.h
struct GgufVocabulary;  // text/gguf_tokenizer.h

class Tokenizer {
 public:
  // Reads the first of these in `directory`: tokenizer.json; tokenizer.model (tiktoken ranks or SentencePiece, detected
  // by content); vocab.json with merges.txt. Also reads tokenizer_config.json, special_tokens_map.json,
  // added_tokens.json and chat_template.jinja if they exist.
  static Result<std::unique_ptr<Tokenizer>> Load(const std::string& directory);

  // Makes the tokenizer of a GGUF file. Ids equal llama.cpp's for the same file.
  static Result<std::unique_ptr<Tokenizer>> FromGguf(const GgufVocabulary& vocabulary);

  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // Accepts any bytes. Fails only when a pattern of the tokenizer file exceeds its match or time limit on this text, or
  // when `reserve` refuses memory.
  Result<std::vector<TokenId>> Encode(std::string_view text, EncodeOptions options = {}) const;

  // The bytes of the tokens. The result may be malformed UTF-8, for example when a model generates half of a character
  // (ReplaceInvalidUtf8 in base/utf8.h repairs it). Ids outside the vocabulary are skipped. text/text_stream.h decodes
  // piece by piece.
  std::string Decode(std::span<const TokenId> ids, bool skip_special) const;

  // One more than the largest id.
  int32_t vocab_size() const;
  std::optional<TokenId> IdOf(std::string_view token) const;  // in the file's spelling: "Ġthe", "▁the", "<|eot_id|>"
  std::string_view TokenText(TokenId id) const;               // empty when not in the vocabulary
  bool IsSpecial(TokenId id) const;

  std::optional<TokenId> bos() const { return bos_; }
  std::optional<TokenId> eos() const { return eos_; }
  // Jinja source; empty when the directory has no chat template.
  const std::string& chat_template() const { return chat_template_; }
  // The file that contains the chat template, for messages.
  const std::string& chat_template_path() const { return chat_template_path_; }
  // Names of the model's templates other than "default", which are not used.
  const std::vector<std::string>& other_templates() const { return other_templates_; }

 private:
  friend class StreamDecoder;
  Tokenizer();

  std::unique_ptr<const Pipeline> pipeline_;
  std::optional<TokenId> bos_;
  std::optional<TokenId> eos_;
  std::string chat_template_;
  std::string chat_template_path_;
  std::vector<std::string> other_templates_;
};

}  // namespace infinigen
