// StreamDecoder: Decode, one token at a time, for one sequence. What it returns never ends inside a UTF-8 character:
// the bytes of an unfinished character are held until the next tokens complete or refute it (at most three bytes, so
// invalid bytes are not held for ever). The concatenation of all it returns, Finish() included, equals
// Tokenizer::Decode of the same ids. Not shared between threads; the tokenizer must outlive it.
//
// Bytes that are no UTF-8 pass through as they are, an unfinished tail too at Finish(). The cuts lie where
// ReplaceInvalidUtf8 may be applied to each piece alone: the result is that of the whole text.
#pragma once

#include <memory>
#include <string>

#include "text/tokenizer.h"

namespace infinigen {

class DecodeState;  // text/decoder.h

class StreamDecoder {
 public:
  StreamDecoder(const Tokenizer& tokenizer, bool skip_special);
  ~StreamDecoder();
  StreamDecoder(StreamDecoder&&) noexcept;
  StreamDecoder& operator=(StreamDecoder&&) noexcept;

  std::string Push(TokenId id);
  std::string Finish();

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  std::unique_ptr<DecodeState> state_;
  std::string held_;  // the beginning of a character
};

}  // namespace infinigen
