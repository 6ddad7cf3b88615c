// Turns the tokens of one sequence into text that can be shown piece by piece: StreamDecoder (tokens to whole
// characters), StopStrings (text up to the first stop string), and TextStream, which combines the two. One object per
// sequence; each is used by one thread.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace infinigen {

class DecodeState;  // text/pipeline.h

// Decodes one token at a time. A returned piece never ends inside a UTF-8 character: the bytes of an unfinished
// character, at most three, are held until later tokens complete it or show that it is malformed. All pieces together,
// Finish() included, equal Tokenizer::Decode of the same ids. The tokenizer must outlive the object.
//
// Malformed bytes, and an unfinished character at Finish(), are returned unchanged. ReplaceInvalidUtf8 can be applied
// to each piece: the result is the same as for the whole text.
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
  std::string held_;  // bytes of an unfinished character
};

// Ends a stream of text at the first stop string. Only text that could be the start of a stop string is held back.
class StopStrings {
 public:
  // Empty strings are ignored.
  explicit StopStrings(std::vector<std::string> stops);

  // Takes the next piece and returns the text that can be shown now; empty after a match.
  std::string Push(std::string_view piece);
  // To be called at the end of the text. Returns the text that was held back, up to a stop string.
  std::string Finish();

  // True once a stop string has appeared. The text before it has been returned; the stop string and the text after it
  // are dropped. Among several stop strings the one that starts first counts.
  bool matched() const { return matched_; }
  const std::string& matched_stop() const { return matched_stop_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;  // the end of the text so far, which may be the start of a stop string
  bool matched_ = false;
  std::string matched_stop_;
};

// StreamDecoder and StopStrings together: whole UTF-8 characters, malformed ones replaced, up to the first stop string.
class TextStream {
 public:
  // `tokenizer` must outlive the object. If it is null, the text of a token is its id.
  TextStream(const Tokenizer* tokenizer, std::vector<std::string> stops);

  std::string Push(TokenId token);
  std::string Finish();
  bool stopped() const { return stops_.matched(); }
  // Length of all text decoded so far, shown or held back: the offset of the next token's text.
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
