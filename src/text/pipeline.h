// Runs a TokenizerSpec. Pipeline is the whole chain: added tokens, Normalizer, PreTokenizer and BPE turn text into ids,
// TokenDecoder turns ids into bytes. All four are immutable after construction and may be used from any thread.
// PreTokenizerScratch is the working memory of one Encode call, DecodeState the state of one decoded sequence.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/regex_splitter.h"
#include "text/tokenizer_spec.h"

namespace infinigen {

// Rewrites the text before it is cut into words.
class Normalizer {
 public:
  explicit Normalizer(std::vector<NormalizerStep> steps) : steps_(std::move(steps)) {}

  bool identity() const { return steps_.empty(); }

  // `text` must be valid UTF-8. `continues`: it directly follows malformed bytes, so nothing is prepended.
  std::string Apply(std::string_view text, bool continues) const;

 private:
  std::vector<NormalizerStep> steps_;
};

struct PreTokenizerScratch {
  RegexScratch regex;
  EncodeMemory* memory = nullptr;
  size_t range_bytes = 0;  // part of `memory`
};

// Position of a piece in its text.
struct PieceContext {
  bool text_start = false;  // it starts the text
  bool continues = false;   // it directly follows malformed bytes, so no space is inserted before it
};

// Splits normalized text into words, which BPE encodes one by one.
class PreTokenizer {
 public:
  using Sink = std::function<void(std::string_view word)>;

  // Error messages do not contain the file's name; the caller adds it.
  static Result<PreTokenizer> Create(std::vector<PreTokenizerStep> steps);

  // Calls `sink` for each word of `text` (valid UTF-8), in order. After a ByteLevel step a word may be any bytes. A
  // word is valid only during its call of `sink`, because it may point into temporary text.
  Status Run(std::string_view text, PieceContext context, PreTokenizerScratch& scratch, const Sink& sink) const;

 private:
  struct Step {
    PreTokenizerStep spec;
    std::optional<RegexSplitter> regex;
  };
  struct Range {  // 32 bits: Pipeline::Encode refuses longer texts
    uint32_t begin = 0;
    uint32_t end = 0;
    bool match = false;
  };
  using Ranges = std::vector<Range>;

  PreTokenizer() = default;

  Status Apply(size_t index, std::string_view piece, PieceContext context, PreTokenizerScratch& scratch,
               const Sink& sink) const;
  Status ApplyIsolated(size_t index, std::string_view piece, PieceContext context, PreTokenizerScratch& scratch,
                       const Sink& sink) const;
  Status ApplySplit(size_t index, std::string_view piece, PieceContext context, PreTokenizerScratch& scratch,
                    const Sink& sink) const;
  Status ApplyMetaspace(size_t index, std::string_view piece, PieceContext context, PreTokenizerScratch& scratch,
                        const Sink& sink) const;
  Status ApplyRanges(size_t index, std::string_view piece, const Ranges& ranges, PieceContext context,
                     PreTokenizerScratch& scratch, const Sink& sink) const;
  static Ranges ApplyBehavior(const Ranges& ranges, SplitBehavior behavior);
  // Adds a range, and counts it with what ApplyBehavior makes of it. False: there is no memory for it.
  static bool Add(size_t begin, size_t end, bool match, Ranges& ranges, PreTokenizerScratch& scratch);

  std::vector<Step> steps_;
};

class DecodeState {
 private:
  friend class TokenDecoder;
  bool first_token_ = true;
  size_t stripped_ = 0;          // characters that Strip has removed from the start of the text
  bool strip_finished_ = false;  // a character that is not stripped has come
};

// Turns token texts into bytes, one token at a time, so that streaming and decoding a whole sequence share their code.
class TokenDecoder {
 public:
  // Fails for steps that cannot be applied token by token. Error messages do not contain the file's name.
  static Result<TokenDecoder> Create(std::vector<DecoderStep> steps);

  // Appends the bytes of the next token.
  void Append(std::string_view token, DecodeState& state, std::string& out) const;

 private:
  explicit TokenDecoder(std::vector<DecoderStep> steps) : steps_(std::move(steps)) {}

  std::vector<DecoderStep> steps_;
};

class Pipeline {
 public:
  // Error messages do not contain the file's name.
  static Result<std::unique_ptr<const Pipeline>> Create(TokenizerSpec spec);

  Result<std::vector<TokenId>> Encode(std::string_view text, const EncodeOptions& options) const;

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
  AddedTokenMatcher normalized_matcher_;  // tokens that are searched for after normalization
  PreTokenizer pre_tokenizer_;
  BpeModel bpe_;
  TokenDecoder decoder_;
  std::vector<TokenId> prefix_;  // put before a text with add_special
  std::vector<TokenId> suffix_;  // put after it
  std::vector<bool> special_;    // [id]
};

}  // namespace infinigen
