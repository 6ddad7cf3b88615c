#include "text/token_decoder.h"

#include <charconv>
#include <optional>

#include "text/unicode.h"

namespace infinigen {
namespace {

void ReplaceAll(std::string& text, std::string_view pattern, std::string_view content) {
  for (size_t hit = text.find(pattern); hit != std::string::npos; hit = text.find(pattern, hit + content.size()))
    text.replace(hit, pattern.size(), content);
}

// "<0x1F>" spells one byte.
std::optional<char> FallbackByte(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || !token.ends_with('>')) return std::nullopt;
  unsigned value = 0;
  const auto [end, error] = std::from_chars(token.data() + 3, token.data() + 5, value, 16);
  if (error != std::errc() || end != token.data() + 5) return std::nullopt;
  return static_cast<char>(static_cast<unsigned char>(value));
}

void StripToken(const DecoderStep& step, std::string& text) {
  std::string_view rest = text;
  for (size_t i = 0; i < step.start && rest.starts_with(step.content); ++i) rest.remove_prefix(step.content.size());
  for (size_t i = 0; i < step.stop && rest.ends_with(step.content); ++i) rest.remove_suffix(step.content.size());
  text = std::string(rest);
}

bool Fuses(DecoderStep::Kind kind) { return kind == DecoderStep::Kind::kFuse || kind == DecoderStep::Kind::kByteLevel; }

}  // namespace

Result<TokenDecoder> TokenDecoder::Create(std::vector<DecoderStep> steps) {
  using Kind = DecoderStep::Kind;
  bool fused = false;
  bool stripped = false;
  for (const DecoderStep& step : steps) {
    if ((step.kind == Kind::kReplace || step.kind == Kind::kStrip) && step.pattern.empty() && step.content.empty())
      return Invalid("a decoder has an empty pattern");
    if (step.kind == Kind::kReplace && step.pattern.empty()) return Invalid("decoder Replace has an empty pattern");
    if (fused && step.kind == Kind::kStrip && (step.stop > 0 || stripped || step.content.size() != 1))
      return Unsupported("decoder Strip at the end of the text is not supported");
    if (fused && step.kind != Kind::kStrip && step.kind != Kind::kFuse)
      return Unsupported("a decoder other than Strip after Fuse or ByteLevel is not supported");
    stripped = stripped || (fused && step.kind == Kind::kStrip);
    fused = fused || Fuses(step.kind);
  }
  return TokenDecoder(std::move(steps));
}

void TokenDecoder::Append(std::string_view token, DecodeState& state, std::string& out) const {
  using Kind = DecoderStep::Kind;
  std::string text(token);
  bool fused = false;
  for (const DecoderStep& step : steps_) {
    switch (step.kind) {
      case Kind::kByteLevel:
        if (std::optional<std::string> bytes = BytesOfByteLevel(text)) text = std::move(*bytes);
        break;
      case Kind::kByteFallback:
        if (const std::optional<char> byte = FallbackByte(text)) text.assign(1, *byte);
        break;
      case Kind::kReplace:
        ReplaceAll(text, step.pattern, step.content);
        break;
      case Kind::kMetaspace:
        if (step.strip_first && state.first_token_ && text.starts_with(step.pattern))
          text.erase(0, step.pattern.size());
        ReplaceAll(text, step.pattern, " ");
        break;
      case Kind::kJoinWithSpaces:
        if (!state.first_token_) text.insert(0, " ");
        break;
      case Kind::kStrip:
        if (!fused) {
          StripToken(step, text);
          break;
        }
        while (!state.strip_finished_ && !text.empty()) {
          if (state.stripped_ == step.start || text[0] != step.content[0]) {
            state.strip_finished_ = true;
          } else {
            text.erase(0, 1);
            ++state.stripped_;
          }
        }
        break;
      case Kind::kFuse:
        break;
    }
    fused = fused || Fuses(step.kind);
  }
  state.first_token_ = false;
  out += text;
}

}  // namespace infinigen
