#include "text/tokenizer_spec.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/utf8.h"

namespace infinigen {

std::vector<DecoderStep> MetaspaceDecoders(bool prefix_space) {
  using Kind = DecoderStep::Kind;
  std::vector<DecoderStep> steps(3);
  steps[0].kind = Kind::kReplace;
  steps[0].pattern = kMetaspaceMark;
  steps[0].content = " ";
  steps[1].kind = Kind::kByteFallback;
  steps[2].kind = Kind::kFuse;
  if (prefix_space) {
    DecoderStep strip;
    strip.kind = Kind::kStrip;
    strip.content = " ";
    strip.start = 1;
    steps.push_back(strip);
  }
  return steps;
}

Status AddToken(AddedToken token, TokenizerSpec& spec) {
  if (token.content.empty()) return Ok{};
  if (spec.model_tokens < 0) spec.model_tokens = spec.vocabulary.count();
  const std::optional<TokenId> known = spec.vocabulary.Find(token.content);
  const TokenId id = known.value_or(std::max(spec.model_tokens, spec.next_added));
  if (token.id >= 0 && token.id != id)
    return Invalid("added token {} has id {}, but its place in the vocabulary is {}", Quoted(token.content, 64),
                   token.id, id);
  token.id = id;
  if (known) {
    const auto added = spec.added_index.find(token.id);
    if (added != spec.added_index.end()) {
      spec.added_tokens[added->second].special |= token.special;
      return Ok{};
    }
  }
  if (spec.added_tokens.size() == kMaxAddedTokens)
    return Invalid("more than {} added tokens are not supported", kMaxAddedTokens);
  if (!known) RETURN_IF_ERROR(spec.vocabulary.Add(token.content, id));
  spec.next_added = std::max(spec.next_added, id + 1);
  spec.added_index[token.id] = spec.added_tokens.size();
  spec.added_tokens.push_back(std::move(token));
  return Ok{};
}

}  // namespace infinigen
