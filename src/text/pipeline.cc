#include "text/pipeline.h"

#include <algorithm>
#include <utility>

#include "text/unicode.h"

namespace infinigen {
namespace {

AddedTokenMatcher MatcherOf(const TokenizerSpec& spec, const Normalizer& normalizer, bool normalized) {
  std::vector<AddedTokenMatcher::Entry> entries;
  for (const AddedToken& token : spec.added_tokens) {
    if (token.normalized != normalized) continue;
    std::string pattern = token.content;
    // A pattern that is searched for in normalized text must be normalized itself.
    if (normalized && !normalizer.identity() && ValidUtf8Prefix(pattern) == pattern.size())
      pattern = normalizer.Apply(pattern, false);
    if (!pattern.empty()) entries.push_back({std::move(pattern), token});
  }
  return AddedTokenMatcher(std::move(entries));
}

}  // namespace

// The state of one Encode.
struct Pipeline::Run {
  bool parse_special = true;
  std::string_view text;            // the whole input
  std::span<const size_t> literal;  // offsets into it, ascending
  std::vector<TokenId> ids;
  BpeScratch bpe;
  PreTokenizerScratch pre_tokenizer;
  PreTokenizer::Sink encode_word;

  bool SpecialAt(size_t offset) const {
    return parse_special && !std::binary_search(literal.begin(), literal.end(), offset);
  }
  // Whether `part` of the text has a literal offset.
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

Result<std::vector<TokenId>> Pipeline::Encode(std::string_view text, bool add_special, bool parse_special,
                                              std::span<const size_t> literal) const {
  // Word lengths and positions are 32 bits wide.
  if (text.size() >= UINT32_MAX / 2)
    return Invalid("text of {} bytes: at most 2 GiB can be encoded at once", text.size());
  Run run;
  run.parse_special = parse_special;
  run.text = text;
  run.literal = literal;
  run.bpe.cache.Prepare(text.size());
  run.encode_word = [this, &run](std::string_view word) { bpe_.EncodeWord(word, run.bpe, run.ids); };
  if (add_special) run.ids = prefix_;
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
  if (add_special) run.ids.insert(run.ids.end(), suffix_.begin(), suffix_.end());
  return std::move(run.ids);
}

// Text between added tokens: runs of valid UTF-8, and malformed bytes between them.
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
  // Offsets do not survive normalization: one literal token makes all of this part literal.
  const bool special = run.parse_special && !run.AnyLiteral(text);
  const size_t begin = static_cast<size_t>(text.data() - run.text.data());
  const auto special_at = [&, begin](size_t offset) {
    return normalizer_.identity() ? run.SpecialAt(begin + offset) : special;
  };
  std::string normalized;
  if (!normalizer_.identity()) {
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

}  // namespace infinigen
