#include "text/stream_decoder.h"

#include <utility>

#include "text/decoder.h"
#include "text/pipeline.h"
#include "text/unicode.h"

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

}  // namespace infinigen
