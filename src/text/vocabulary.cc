#include "text/vocabulary.h"

#include <functional>

#include "base/check.h"
#include "base/utf8.h"

namespace infinigen {
namespace {

constexpr size_t kFirstIndexSize = 1024;
constexpr size_t kQuotedBytes = 48;

}  // namespace

Status TokenVocabulary::Add(std::string_view text, int64_t id) {
  if (text.empty()) return Invalid("the token with id {} is empty", id);
  if (id < 0 || id >= kMaxTokens)
    return Invalid("token {} has id {}, ids from 0 to {} are accepted", Quoted(text, kQuotedBytes), id, kMaxTokens - 1);
  if (arena_.size() + text.size() > UINT32_MAX) return Invalid("the tokens are longer than 4 GiB together");
  if (const std::optional<TokenId> other = Find(text))
    return Invalid("token {} appears twice, with ids {} and {}", Quoted(text, kQuotedBytes), *other, id);
  if (Contains(static_cast<TokenId>(id)))
    return Invalid("id {} is given to both {} and {}", id, Quoted(Text(static_cast<TokenId>(id)), kQuotedBytes),
                   Quoted(text, kQuotedBytes));
  const size_t index = static_cast<size_t>(id);
  if (index >= entries_.size()) entries_.resize(index + 1);
  entries_[index] = {static_cast<uint32_t>(arena_.size()), static_cast<uint32_t>(text.size())};
  arena_.append(text);
  ++count_;
  if (count_ * 2 > index_.size()) GrowIndex();
  InsertIntoIndex(static_cast<TokenId>(id));
  return Ok{};
}

size_t TokenVocabulary::FirstSlot(std::string_view text) const {
  return std::hash<std::string_view>()(text) & (index_.size() - 1);
}

std::optional<TokenId> TokenVocabulary::Find(std::string_view text) const {
  if (index_.empty() || text.empty()) return std::nullopt;
  for (size_t slot = FirstSlot(text); index_[slot] != 0; slot = (slot + 1) & (index_.size() - 1)) {
    const TokenId id = static_cast<TokenId>(index_[slot] - 1);
    if (Text(id) == text) return id;
  }
  return std::nullopt;
}

std::string_view TokenVocabulary::Text(TokenId id) const {
  if (id < 0 || static_cast<size_t>(id) >= entries_.size()) return {};
  const Entry& entry = entries_[static_cast<size_t>(id)];
  return std::string_view(arena_).substr(entry.offset, entry.length);
}

void TokenVocabulary::InsertIntoIndex(TokenId id) {
  size_t slot = FirstSlot(Text(id));
  while (index_[slot] != 0) slot = (slot + 1) & (index_.size() - 1);
  index_[slot] = static_cast<uint32_t>(id) + 1;
}

void TokenVocabulary::GrowIndex() {
  const size_t size = index_.empty() ? kFirstIndexSize : index_.size() * 2;
  const std::vector<uint32_t> old = std::move(index_);
  index_.assign(size, 0);
  if (old.empty()) return;
  for (const uint32_t entry : old)
    if (entry != 0) InsertIntoIndex(static_cast<TokenId>(entry - 1));
}

}  // namespace infinigen
