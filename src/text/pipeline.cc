#include "text/pipeline.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "text/unicode.h"

namespace infinigen {
namespace {

void ReplaceAll(std::string& text, std::string_view pattern, std::string_view content) {
  for (size_t hit = text.find(pattern); hit != std::string::npos; hit = text.find(pattern, hit + content.size()))
    text.replace(hit, pattern.size(), content);
}

// The byte of a token such as "<0x1F>".
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

AddedTokenMatcher MatcherOf(const TokenizerSpec& spec, const Normalizer& normalizer, bool normalized) {
  std::vector<AddedTokenMatcher::Entry> entries;
  for (const AddedToken& token : spec.added_tokens) {
    if (token.normalized != normalized) continue;
    std::string pattern = token.content;
    // A pattern that is searched for in normalized text must be normalized too.
    if (normalized && !normalizer.identity() && ValidUtf8Prefix(pattern) == pattern.size())
      pattern = normalizer.Apply(pattern, false);
    if (!pattern.empty()) entries.push_back({std::move(pattern), token});
  }
  return AddedTokenMatcher(std::move(entries));
}

// Bytes that normalizing a byte of text takes at most: the result, and the code points of a normal form.
constexpr size_t kNormalizingBytes = 8;

}  // namespace

// The state of one Encode call.
struct Pipeline::Run {
  bool parse_special = true;
  std::string_view text;            // the whole input
  std::span<const size_t> literal;  // ascending offsets into `text`
  std::vector<TokenId> ids;
  BpeScratch bpe;
  size_t ids_bytes = 0, normalized_bytes = 0;  // parts of bpe.memory
  PreTokenizerScratch pre_tokenizer;
  PreTokenizer::Sink encode_word;

  bool SpecialAt(size_t offset) const {
    return parse_special && !std::binary_search(literal.begin(), literal.end(), offset);
  }
  // Counts the list of ids, which may be about to grow: its old memory exists until it is copied.
  bool HasRoomForIds() {
    const bool grows = ids.size() == ids.capacity();
    return bpe.memory.Raise(&ids_bytes, (grows ? 3 : 1) * ids.capacity() * sizeof(TokenId));
  }
  // True when a literal offset lies in `part`, which is a part of `text`.
  bool AnyLiteral(std::string_view part) const {
    const size_t begin = static_cast<size_t>(part.data() - text.data());
    const auto next = std::lower_bound(literal.begin(), literal.end(), begin);
    return next != literal.end() && *next < begin + part.size();
  }
};

Result<std::unique_ptr<const Pipeline>> Pipeline::Create(TokenizerSpec spec) {
  ASSIGN_OR_RETURN(PreTokenizer pre_tokenizer, PreTokenizer::Create(spec.pre_tokenizers));
  ASSIGN_OR_RETURN(TokenDecoder decoder, TokenDecoder::Create(spec.decoders));
  spec.bpe.byte_level =
      !spec.pre_tokenizers.empty() && spec.pre_tokenizers.back().kind == PreTokenizerStep::Kind::kByteLevel;
  return std::unique_ptr<const Pipeline>(new Pipeline(std::move(spec), std::move(pre_tokenizer), std::move(decoder)));
}

Pipeline::Pipeline(TokenizerSpec spec, PreTokenizer pre_tokenizer, TokenDecoder decoder)
    : vocabulary_(std::move(spec.vocabulary)),
      normalizer_(std::move(spec.normalizers)),
      raw_matcher_(MatcherOf(spec, normalizer_, false)),
      normalized_matcher_(MatcherOf(spec, normalizer_, true)),
      pre_tokenizer_(std::move(pre_tokenizer)),
      bpe_(vocabulary_, std::move(spec.merges), std::move(spec.bpe)),
      decoder_(std::move(decoder)),
      prefix_(std::move(spec.prefix)),
      suffix_(std::move(spec.suffix)),
      special_(static_cast<size_t>(vocabulary_.size())) {
  for (const AddedToken& token : spec.added_tokens)
    if (token.special) special_[static_cast<size_t>(token.id)] = true;
}

Result<std::vector<TokenId>> Pipeline::Encode(std::string_view text, const EncodeOptions& options) const {
  // Word lengths and positions have 32 bits.
  if (text.size() >= UINT32_MAX / 2)
    return Invalid("the text has {} bytes; at most 2 GiB can be encoded at once", text.size());
  Run run;
  run.parse_special = options.parse_special;
  run.text = text;
  run.literal = options.literal;
  run.bpe.memory = EncodeMemory(options.reserve);
  run.pre_tokenizer.memory = &run.bpe.memory;
  run.bpe.cache.Prepare(text.size());
  run.encode_word = [this, &run](std::string_view word) {
    if (run.HasRoomForIds()) bpe_.EncodeWord(word, run.bpe, run.ids);
  };
  if (options.add_special) run.ids = prefix_;
  Status status = Ok{};
  const auto special_at = [&](size_t offset) { return run.SpecialAt(offset); };
  raw_matcher_.ForEach(text, special_at, [&](std::string_view piece, const AddedToken* token) {
    if (token != nullptr)
      run.ids.push_back(token->id);
    else
      status = EncodeSegment(piece, piece.data() == text.data(), run);
    return status.ok();
  });
  if (!status.ok()) return status.error();
  if (run.bpe.memory.refused()) return Exhausted("there is no memory to encode a text of {} bytes", text.size());
  if (options.add_special) run.ids.insert(run.ids.end(), suffix_.begin(), suffix_.end());
  return std::move(run.ids);
}

// Encodes text between added tokens, alternating between valid UTF-8 and malformed bytes.
Status Pipeline::EncodeSegment(std::string_view segment, bool text_start, Run& run) const {
  PieceContext context{text_start, false};
  while (!segment.empty()) {
    const size_t valid = ValidUtf8Prefix(segment);
    if (valid > 0) RETURN_IF_ERROR(EncodeValid(segment.substr(0, valid), context, run));
    segment.remove_prefix(valid);
    size_t invalid = 0;
    while (invalid < segment.size()) {
      const Utf8Scan scan = ScanUtf8(segment, invalid);
      if (scan.valid) break;
      invalid += scan.length;
    }
    if (invalid > 0) bpe_.EncodeInvalid(segment.substr(0, invalid), run.bpe, run.ids);
    segment.remove_prefix(invalid);
    context = {false, true};
  }
  return Ok{};
}

Status Pipeline::EncodeValid(std::string_view text, PieceContext context, Run& run) const {
  // Normalization shifts offsets, so one literal token makes this whole part literal.
  const bool special = run.parse_special && !run.AnyLiteral(text);
  const size_t begin = static_cast<size_t>(text.data() - run.text.data());
  const auto special_at = [&, begin](size_t offset) {
    return normalizer_.identity() ? run.SpecialAt(begin + offset) : special;
  };
  std::string normalized;
  if (!normalizer_.identity()) {
    if (!run.bpe.memory.Raise(&run.normalized_bytes, text.size() * kNormalizingBytes)) return Ok{};
    normalized = normalizer_.Apply(text, context.continues);
    text = normalized;
  }
  if (normalized_matcher_.empty()) return pre_tokenizer_.Run(text, context, run.pre_tokenizer, run.encode_word);
  Status status = Ok{};
  normalized_matcher_.ForEach(text, special_at, [&](std::string_view piece, const AddedToken* token) {
    if (token != nullptr)
      run.ids.push_back(token->id);
    else
      status = pre_tokenizer_.Run(piece, piece.data() == text.data() ? context : PieceContext{}, run.pre_tokenizer,
                                  run.encode_word);
    return status.ok();
  });
  return status;
}

Result<TokenDecoder> TokenDecoder::Create(std::vector<DecoderStep> steps) {
  using Kind = DecoderStep::Kind;
  bool fused = false;
  bool stripped = false;
  for (const DecoderStep& step : steps) {
    if ((step.kind == Kind::kReplace || step.kind == Kind::kStrip) && step.pattern.empty() && step.content.empty())
      return Invalid("decoder {}: the pattern is empty", step.kind == Kind::kStrip ? "Strip" : "Replace");
    if (step.kind == Kind::kReplace && step.pattern.empty()) return Invalid("decoder Replace: the pattern is empty");
    if (fused && step.kind == Kind::kStrip && (step.stop > 0 || stripped || step.content.size() != 1))
      return Unsupported(
          "decoder Strip after Fuse or ByteLevel: only one, which strips a one-byte character from the start, is "
          "supported");
    if (fused && step.kind != Kind::kStrip && step.kind != Kind::kFuse)
      return Unsupported("decoder: only Strip is supported after Fuse or ByteLevel");
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
