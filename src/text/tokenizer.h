// Tokenizer: text to token ids and back, exactly as transformers' AutoTokenizer does for the same directory. Loaded
// once from a model directory, immutable afterwards: every method may be called from any thread. docs/tokenizers.md
// describes the file formats.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace infinigen {

using TokenId = int32_t;

struct EncodeOptions {
  bool add_special = true;  // BOS, EOS and the like, where the tokenizer's files ask for them
  // "<|eot_id|>" written in the text is that token. False for text of unknown origin: special tokens in it are encoded
  // as their characters; added tokens that are not special stay tokens.
  bool parse_special = true;
  // With parse_special: offsets into the text, ascending, at which a special token is encoded as its characters. Where
  // the tokenizer searches for special tokens in normalized text, an offset holds for all text up to the next raw
  // token.
  std::span<const size_t> literal = {};
};

class Pipeline;  // text/pipeline.h

class Tokenizer {
 public:
  // Reads `directory`: tokenizer.json, else tokenizer.model (tiktoken ranks or SentencePiece, told apart by content),
  // else vocab.json with merges.txt; beside them tokenizer_config.json, special_tokens_map.json, added_tokens.json and
  // chat_template.jinja, where present.
  static Result<std::unique_ptr<Tokenizer>> Load(const std::string& directory);

  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // Any bytes are accepted. Fails only where a pattern of the file gives up on this text (match limit).
  Result<std::vector<TokenId>> Encode(std::string_view text, EncodeOptions options = {}) const;

  // Bytes, as the tokens spell them: for text that came from Encode they are the same bytes, valid UTF-8 or not; ids of
  // a model may spell broken characters (ReplaceInvalidUtf8 in base/utf8.h replaces them). Ids outside the
  // vocabulary spell nothing. For output piece by piece see text/text_stream.h.
  std::string Decode(std::span<const TokenId> ids, bool skip_special) const;

  // One more than the largest id.
  int32_t vocab_size() const;
  std::optional<TokenId> IdOf(std::string_view token) const;  // as the file writes it: "Ġthe", "▁the", "<|eot_id|>"
  std::string_view TokenText(TokenId id) const;               // empty outside the vocabulary
  bool IsSpecial(TokenId id) const;

  std::optional<TokenId> bos() const { return bos_; }
  std::optional<TokenId> eos() const { return eos_; }
  // Jinja source, not evaluated here; empty when the directory has none.
  const std::string& chat_template() const { return chat_template_; }

 private:
  friend class StreamDecoder;
  Tokenizer();

  std::unique_ptr<const Pipeline> pipeline_;
  std::optional<TokenId> bos_;
  std::optional<TokenId> eos_;
  std::string chat_template_;
};

}  // namespace infinigen
