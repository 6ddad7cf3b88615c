#include "text/text_stream.h"

#include <fmt/format.h>

#include <utility>

#include "text/unicode.h"

namespace infinigen {

TextStream::TextStream(const Tokenizer* tokenizer, std::vector<std::string> stops) : stops_(std::move(stops)) {
  if (tokenizer != nullptr) decoder_.emplace(*tokenizer, /*skip_special=*/true);
}

std::string TextStream::Push(TokenId token) {
  // The decoder cuts where replacing each piece alone equals replacing the whole.
  const std::string piece = decoder_ ? ReplaceInvalidUtf8(decoder_->Push(token))
                                     : fmt::format("{}{}", std::exchange(first_, false) ? "" : " ", token);
  Count(piece);
  return stops_.Push(piece);
}

void TextStream::Count(const std::string& piece) {
  decoded_bytes_ += piece.size();
  for (const char c : piece)
    decoded_characters_ += (static_cast<unsigned char>(c) & 0xC0) != 0x80;  // not a continuation
}

std::string TextStream::Finish() {
  const std::string rest = decoder_ ? ReplaceInvalidUtf8(decoder_->Finish()) : std::string();
  Count(rest);
  std::string text = stops_.Push(rest);
  return text + stops_.Finish();
}

}  // namespace infinigen
