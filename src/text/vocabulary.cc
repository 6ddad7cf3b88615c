#include "text/vocabulary.h"

#include <algorithm>
#include <functional>

#include "base/utf8.h"

namespace infinigen {
namespace {

constexpr size_t kFirstIndexSize = 1024;
constexpr size_t kQuotedBytes = 48;

// The time to try every split of a token is quadratic in its length. The longest published token has 256 bytes.
constexpr size_t kMaxSplitBytes = 512;

struct MergeSplit {
  TokenId left = 0;
  TokenId right = 0;
  TokenId merged = 0;
  uint32_t rank = 0;
};

Error TooManyMerges() { return Invalid("more than {} merges are not supported", MergeTable::kMaxMerges); }

}  // namespace

Status TokenVocabulary::Add(std::string_view text, int64_t id) {
  if (text.empty()) return Invalid("the token with id {} is empty", id);
  if (id < 0 || id >= kMaxTokens)
    return Invalid("token {} has id {}; ids from 0 to {} are allowed", Quoted(text, kQuotedBytes), id, kMaxTokens - 1);
  if (arena_.size() + text.size() > UINT32_MAX) return Invalid("the texts of all tokens together exceed 4 GiB");
  if (const std::optional<TokenId> other = Find(text))
    return Invalid("token {} occurs twice, with ids {} and {}", Quoted(text, kQuotedBytes), *other, id);
  if (Contains(static_cast<TokenId>(id)))
    return Invalid("tokens {1} and {2} have the same id {0}", id, Quoted(Text(static_cast<TokenId>(id)), kQuotedBytes),
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

MergeTable::MergeTable(size_t count) : slots_(count + count / 2 + 1), ranks_(slots_.size()) {}

void MergeTable::Insert(TokenId left, TokenId right, uint32_t rank, TokenId merged) {
  const uint64_t key = KeyOf(left, right);
  size_t slot = FirstSlot(key);
  while (slots_[slot] != 0 && ((slots_[slot] & ~kUsed) >> 20) != key) slot = slot + 1 == slots_.size() ? 0 : slot + 1;
  slots_[slot] = kUsed | (key << 20) | static_cast<uint64_t>(merged);
  ranks_[slot] = rank;
}

Status MergeList::Add(std::string_view left, std::string_view right) {
  if (entries_.size() == MergeTable::kMaxMerges) return TooManyMerges();
  if (left.empty() || right.empty()) return Invalid("merge {} has an empty part", entries_.size());
  if (arena_.size() + left.size() + right.size() > UINT32_MAX)
    return Invalid("the texts of all merges together exceed 4 GiB");
  entries_.push_back(
      {static_cast<uint32_t>(arena_.size()), static_cast<uint32_t>(left.size()), static_cast<uint32_t>(right.size())});
  arena_.append(left).append(right);
  return Ok{};
}

Status MergeList::AddLine(std::string_view line) {
  const size_t space = line.find(' ');
  if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos)
    return Invalid("merge {} must be two tokens separated by one space", entries_.size());
  return Add(line.substr(0, space), line.substr(space + 1));
}

Result<MergeTable> MergeList::Resolve(const TokenVocabulary& vocabulary) const {
  MergeTable table(entries_.size());
  for (size_t i = 0; i < entries_.size(); ++i) {
    const Entry& entry = entries_[i];
    const std::string_view merged = std::string_view(arena_).substr(entry.offset, entry.left_bytes + entry.right_bytes);
    const auto left = vocabulary.Find(merged.substr(0, entry.left_bytes));
    const auto right = vocabulary.Find(merged.substr(entry.left_bytes));
    const auto result = vocabulary.Find(merged);
    if (!left || !right || !result) {
      const std::string_view missing = !left    ? merged.substr(0, entry.left_bytes)
                                       : !right ? merged.substr(entry.left_bytes)
                                                : merged;
      return Invalid("merge {}: token {} is not in the vocabulary", i, Quoted(missing, kQuotedBytes));
    }
    table.Insert(*left, *right, static_cast<uint32_t>(i), *result);
  }
  return table;
}

std::vector<RankedToken> RankByScore(std::span<const float> scores, const std::vector<bool>& mergeable) {
  std::vector<RankedToken> tokens;
  for (size_t id = 0; id < mergeable.size(); ++id)
    if (mergeable[id]) tokens.push_back({static_cast<TokenId>(id), 0});
  const auto score = [&](const RankedToken& token) { return scores[static_cast<size_t>(token.id)]; };
  std::stable_sort(tokens.begin(), tokens.end(),
                   [&](const RankedToken& a, const RankedToken& b) { return score(a) > score(b); });
  for (size_t i = 1; i < tokens.size(); ++i)
    tokens[i].rank = tokens[i - 1].rank + (score(tokens[i]) != score(tokens[i - 1]) ? 1 : 0);
  return tokens;
}

Result<MergeTable> MergesOfSplits(const TokenVocabulary& vocabulary, const std::vector<RankedToken>& tokens,
                                  const std::vector<bool>& part, SplitOrder order) {
  const auto part_of = [&](std::string_view text) {
    const std::optional<TokenId> id = vocabulary.Find(text);
    return id && part[static_cast<size_t>(*id)] ? id : std::nullopt;
  };
  std::vector<MergeSplit> splits;
  for (const RankedToken& token : tokens) {
    const std::string_view text = vocabulary.Text(token.id);
    if (text.size() > kMaxSplitBytes)
      return Unsupported("token {} has {} bytes; at most {} are supported", token.id, text.size(), kMaxSplitBytes);
    const size_t first = splits.size();
    for (size_t cut = ScanUtf8(text, 0).length; cut < text.size(); cut += ScanUtf8(text, cut).length) {
      const auto left = part_of(text.substr(0, cut));
      if (!left) continue;
      if (const auto right = part_of(text.substr(cut))) splits.push_back({*left, *right, token.id, token.rank});
    }
    if (splits.size() > MergeTable::kMaxMerges) return TooManyMerges();
    if (order == SplitOrder::kLowerIds)
      std::sort(splits.begin() + static_cast<ptrdiff_t>(first), splits.end(),
                [](const MergeSplit& a, const MergeSplit& b) {
                  return a.left != b.left ? a.left < b.left : a.right < b.right;
                });
  }
  MergeTable table(splits.size());
  for (size_t i = 0; i < splits.size(); ++i) {
    const MergeSplit& split = splits[i];
    table.Insert(split.left, split.right, order == SplitOrder::kSharedRank ? split.rank : static_cast<uint32_t>(i),
                 split.merged);
  }
  return table;
}

}  // namespace infinigen
