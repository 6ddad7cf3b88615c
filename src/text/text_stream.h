// TextStream: tokens of one sequence to text that may be shown: whole UTF-8 characters, malformed ones replaced, cut at
// the first stop string. One object per sequence being generated; not shared between threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "text/stop_strings.h"
#include "text/stream_decoder.h"
#include "text/tokenizer.h"

namespace infinigen {

class TextStream {
 public:
  // `tokenizer` outlives it; null: the text of a token is its id.
  TextStream(const Tokenizer* tokenizer, std::vector<std::string> stops);

  std::string Push(TokenId token);
  std::string Finish();
  bool stopped() const { return stops_.matched(); }
  // Text decoded so far, whether shown, held back or cut off: where the next token's text begins.
  size_t decoded_bytes() const { return decoded_bytes_; }
  size_t decoded_characters() const { return decoded_characters_; }

 private:
  void Count(const std::string& piece);

  std::optional<StreamDecoder> decoder_;
  StopStrings stops_;
  size_t decoded_bytes_ = 0;
  size_t decoded_characters_ = 0;
  bool first_ = true;
};

}  // namespace infinigen
