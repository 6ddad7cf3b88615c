// Decoder: turns token texts into bytes, one token after the other, so that streaming and whole decoding are the same
// code. Immutable, any thread; DecodeState carries what a sequence has seen.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/tokenizer_spec.h"

namespace infinigen {

class DecodeState {
 private:
  friend class Decoder;
  bool first_token_ = true;
  size_t stripped_ = 0;          // characters that the whole-text Strip has taken so far
  bool strip_finished_ = false;  // it has met another character
};

class Decoder {
 public:
  // Refuses chains that cannot be applied token by token. The message of an error is without file name.
  static Result<Decoder> Create(std::vector<DecoderStep> steps);

  // Appends what one more token spells.
  void Append(std::string_view token, DecodeState& state, std::string& out) const;

 private:
  explicit Decoder(std::vector<DecoderStep> steps) : steps_(std::move(steps)) {}

  std::vector<DecoderStep> steps_;
};

}  // namespace infinigen
