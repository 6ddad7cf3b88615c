// Pipeline: runs a TokenizerSpec: added tokens, normalizer, pre-tokenizer, BPE. Immutable after Create, any thread.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/normalizer.h"
#include "text/pre_tokenizer.h"
#include "text/token_decoder.h"
#include "text/tokenizer_spec.h"

namespace infinigen {

class Pipeline {
 public:
  // The message of an error is without file name.
  static Result<std::unique_ptr<const Pipeline>> Create(TokenizerSpec spec);

  // `literal` as in EncodeOptions.
  Result<std::vector<TokenId>> Encode(std::string_view text, bool add_special, bool parse_special,
                                      std::span<const size_t> literal) const;

  const TokenVocabulary& vocabulary() const { return vocabulary_; }
  const TokenDecoder& decoder() const { return decoder_; }
  bool IsSpecial(TokenId id) const {
    return id >= 0 && static_cast<size_t>(id) < special_.size() && special_[static_cast<size_t>(id)];
  }

 private:
  struct Run;

  Pipeline(TokenizerSpec spec, PreTokenizer pre_tokenizer, TokenDecoder decoder);

  Status EncodeSegment(std::string_view segment, bool text_start, Run& run) const;
  Status EncodeValid(std::string_view text, PieceContext context, Run& run) const;

  TokenVocabulary vocabulary_;
  Normalizer normalizer_;
  AddedTokenMatcher raw_matcher_;         // tokens that are searched for before normalization
  AddedTokenMatcher normalized_matcher_;  // and after it
  PreTokenizer pre_tokenizer_;
  BpeModel bpe_;
  TokenDecoder decoder_;
  std::vector<TokenId> prefix_;
  std::vector<TokenId> suffix_;
  std::vector<bool> special_;  // [id]
};

}  // namespace infinigen
