// From the tokens of one sequence to text that may be shown, piece by piece: StreamDecoder (tokens to whole
// characters), StopStrings (text up to the first stop string), and TextStream, which is both. One object for each
// sequence; each belongs to one thread.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace infinigen {

class DecodeState;  // text/token_decoder.h

// Decode, one token at a time. A returned text never ends inside a UTF-8 character: the bytes of an unfinished
// character, at most three, are held until the next tokens complete or refute it. The concatenation of all that is
// returned, Finish() included, equals Tokenizer::Decode of the same ids. The tokenizer must outlive it.
//
// Malformed bytes pass through unchanged, and so does an unfinished tail at Finish(). ReplaceInvalidUtf8 of each piece
// gives the same text as ReplaceInvalidUtf8 of the whole.
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

// Cuts a stream of text at the first stop string. Text that could still become the beginning of a stop string is held
// back, and no other text.
class StopStrings {
 public:
  // Empty strings stop nothing and are dropped.
  explicit StopStrings(std::vector<std::string> stops);

  // Takes the next piece, returns the text that may be shown now: nothing more after a match.
  std::string Push(std::string_view piece);
  // Call it at the end of the text. Returns the text that was held back, up to a stop string.
  std::string Finish();

  // True once a stop string has appeared. The text before it has been returned; it and the text behind it never are.
  // When several appear, the one that starts first counts.
  bool matched() const { return matched_; }
  const std::string& matched_stop() const { return matched_stop_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;  // a suffix of the text so far, each byte of which may belong to a stop string
  bool matched_ = false;
  std::string matched_stop_;
};

// Both: whole UTF-8 characters, malformed ones replaced, cut at the first stop string.
class TextStream {
 public:
  // `tokenizer` outlives it. Without one (null) the text of a token is its id.
  TextStream(const Tokenizer* tokenizer, std::vector<std::string> stops);

  std::string Push(TokenId token);
  std::string Finish();
  bool stopped() const { return stops_.matched(); }
  // Length of all text decoded so far, shown or not: the offset of the next token's text.
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
