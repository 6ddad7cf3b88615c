#include "text/text_stream.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/utf8.h"
#include "text/pipeline.h"

namespace infinigen {

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, bool skip_special)
    : tokenizer_(&tokenizer), skip_special_(skip_special), state_(std::make_unique<DecodeState>()) {}
StreamDecoder::~StreamDecoder() = default;
StreamDecoder::StreamDecoder(StreamDecoder&&) noexcept = default;
StreamDecoder& StreamDecoder::operator=(StreamDecoder&&) noexcept = default;

std::string StreamDecoder::Push(TokenId id) {
  const Pipeline& pipeline = *tokenizer_->pipeline_;
  if (!pipeline.vocabulary().Contains(id) || (skip_special_ && pipeline.IsSpecial(id))) return {};
  pipeline.decoder().Append(pipeline.vocabulary().Text(id), *state_, held_);
  const size_t released = held_.size() - IncompleteUtf8Tail(held_);
  std::string text = held_.substr(0, released);
  held_.erase(0, released);
  return text;
}

std::string StreamDecoder::Finish() { return std::exchange(held_, {}); }

StopStrings::StopStrings(std::vector<std::string> stops) : stops_(std::move(stops)) {
  stops_.erase(std::remove_if(stops_.begin(), stops_.end(), [](const std::string& stop) { return stop.empty(); }),
               stops_.end());
}

std::string StopStrings::Push(std::string_view piece) {
  if (matched_) return {};
  held_ += piece;
  // Position of the first complete stop string, and of the first one that may still be completed.
  size_t match = std::string::npos;
  size_t forming = held_.size();
  for (const std::string& stop : stops_) {
    const size_t hit = held_.find(stop);
    if (hit < match) {
      match = hit;
      matched_stop_ = stop;
    }
    const size_t longest = std::min(stop.size() - 1, held_.size());
    for (size_t length = longest; length > 0; --length) {
      if (!std::string_view(stop).starts_with(std::string_view(held_).substr(held_.size() - length))) continue;
      forming = std::min(forming, held_.size() - length);
      break;
    }
  }
  // An incomplete stop string that starts before the complete one would take precedence: wait for its completion.
  if (match != std::string::npos && match <= forming) {
    matched_ = true;
    std::string shown = held_.substr(0, match);
    held_.clear();
    return shown;
  }
  matched_stop_.clear();
  std::string shown = held_.substr(0, forming);
  held_.erase(0, forming);
  return shown;
}

std::string StopStrings::Finish() {
  if (matched_) return {};
  // A complete stop string may still be held back, because an incomplete one started before it.
  size_t match = std::string::npos;
  for (const std::string& stop : stops_) {
    const size_t hit = held_.find(stop);
    if (hit < match) {
      match = hit;
      matched_stop_ = stop;
    }
  }
  matched_ = match != std::string::npos;
  std::string shown = held_.substr(0, match);
  held_.clear();
  return shown;
}

TextStream::TextStream(const Tokenizer* tokenizer, std::vector<std::string> stops) : stops_(std::move(stops)) {
  if (tokenizer != nullptr) decoder_.emplace(*tokenizer, /*skip_special=*/true);
}

std::string TextStream::Push(TokenId token) {
  // Replacing invalid UTF-8 piece by piece gives the same text as replacing it in the whole (StreamDecoder).
  const std::string piece = decoder_ ? ReplaceInvalidUtf8(decoder_->Push(token))
                                     : fmt::format("{}{}", std::exchange(first_, false) ? "" : " ", token);
  Count(piece);
  return stops_.Push(piece);
}

void TextStream::Count(const std::string& piece) {
  decoded_bytes_ += piece.size();
  for (const char c : piece)
    decoded_characters_ += (static_cast<unsigned char>(c) & 0xC0) != 0x80;  // not a continuation byte
}

std::string TextStream::Finish() {
  const std::string rest = decoder_ ? ReplaceInvalidUtf8(decoder_->Finish()) : std::string();
  Count(rest);
  std::string text = stops_.Push(rest);
  return text + stops_.Finish();
}

}  // namespace infinigen
