#include "text/merge_list.h"

#include <algorithm>

#include "text/unicode.h"

namespace infinigen {
namespace {

// Cutting a token everywhere costs the square of its length; the longest in use has 256 bytes.
constexpr size_t kMaxSplitBytes = 512;

struct MergeSplit {
  TokenId left = 0;
  TokenId right = 0;
  TokenId merged = 0;
  uint32_t rank = 0;
};

Error TooManyMerges() { return Invalid("more than {} merges are not supported", MergeTable::kMaxMerges); }

}  // namespace

Status MergeList::Add(std::string_view left, std::string_view right) {
  if (entries_.size() == MergeTable::kMaxMerges) return TooManyMerges();
  if (left.empty() || right.empty()) return Invalid("merge {} has an empty part", entries_.size());
  if (arena_.size() + left.size() + right.size() > UINT32_MAX)
    return Invalid("the merges are longer than 4 GiB together");
  entries_.push_back(
      {static_cast<uint32_t>(arena_.size()), static_cast<uint32_t>(left.size()), static_cast<uint32_t>(right.size())});
  arena_.append(left).append(right);
  return Ok{};
}

Status MergeList::AddLine(std::string_view line) {
  const size_t space = line.find(' ');
  if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos)
    return Invalid("merge {} is not two tokens with one space between", entries_.size());
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
    if (!left || !right || !result)
      return Invalid("merge {} names a token that the vocabulary does not have: its {} part", i,
                     !left    ? "left"
                     : !right ? "right"
                              : "merged");
    table.Insert(*left, *right, static_cast<uint32_t>(i), *result);
  }
  return table;
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
      return Unsupported("token {} is {} bytes long, at most {} are supported", token.id, text.size(), kMaxSplitBytes);
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
