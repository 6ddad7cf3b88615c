// TokenDecoder: turns token texts into bytes, one token after the other, so that streaming and whole decoding are the
// same code. Immutable, any thread; DecodeState is the state of one sequence.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/tokenizer_spec.h"

namespace infinigen {

class DecodeState {
 private:
  friend class TokenDecoder;
  bool first_token_ = true;
  size_t stripped_ = 0;          // characters that Strip has taken from the start of the text
  bool strip_finished_ = false;  // another character has come, which ends Strip
};

class TokenDecoder {
 public:
  // Refuses chains that cannot be applied token by token. The message of an error is without file name.
  static Result<TokenDecoder> Create(std::vector<DecoderStep> steps);

  // Appends the bytes of the next token.
  void Append(std::string_view token, DecodeState& state, std::string& out) const;

 private:
  explicit TokenDecoder(std::vector<DecoderStep> steps) : steps_(std::move(steps)) {}

  std::vector<DecoderStep> steps_;
};

}  // namespace infinigen
