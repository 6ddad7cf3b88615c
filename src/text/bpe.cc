#include "text/bpe.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include "text/unicode.h"

namespace infinigen {
namespace {

constexpr uint32_t kNone = UINT32_MAX;
constexpr uint32_t kNoRank = UINT32_MAX;
// Up to this many symbols, scanning all pairs for the lowest rank is faster than using a heap.
constexpr size_t kShortWord = 24;

// Bytes that merging one symbol of a long word takes: its id, its place in the list, and two candidates, because a
// merge removes one candidate and adds up to two.
constexpr size_t kMergeBytes = sizeof(TokenId) + sizeof(BpeSymbol) + 2 * sizeof(BpeCandidate);

}  // namespace

BpeModel::BpeModel(const TokenVocabulary& vocabulary, MergeTable merges, BpeOptions options)
    : vocabulary_(vocabulary), merges_(std::move(merges)), options_(std::move(options)) {
  for (size_t byte = 0; byte < 256; ++byte) {
    std::string symbol;
    if (options_.byte_level)
      AppendUtf8(ByteLevelChar(static_cast<uint8_t>(byte)), symbol);
    else if (byte < 0x80)
      symbol = static_cast<char>(byte);
    byte_symbols_[byte] = vocabulary_.Find(symbol).value_or(kNoToken);
    byte_tokens_[byte] = vocabulary_.Find(fmt::format("<0x{:02X}>", byte)).value_or(kNoToken);
  }
  if (!options_.unk_token.empty()) unk_ = vocabulary_.Find(options_.unk_token).value_or(kNoToken);
  cut_at_metaspace_ = !options_.byte_level && !options_.ignore_merges && MergesNeverCrossIntoMetaspace();
}

// True when no merged token contains another character followed by ▁. A word can then be split before every such ▁, and
// the parts encoded separately.
bool BpeModel::MergesNeverCrossIntoMetaspace() const {
  if (!vocabulary_.Find(kMetaspaceMark)) return false;
  bool never = true;
  merges_.ForEachMerged([&](TokenId id) {
    const std::string_view text = vocabulary_.Text(id);
    size_t position = text.find(kMetaspaceMark);
    while (position != std::string_view::npos) {
      if (position > 0 && !text.substr(0, position).ends_with(kMetaspaceMark)) never = false;
      position = text.find(kMetaspaceMark, position + kMetaspaceMark.size());
    }
  });
  return never;
}

void BpeModel::EncodeWord(std::string_view word, BpeScratch& scratch, std::vector<TokenId>& out) const {
  if (!cut_at_metaspace_) return AppendCutWord(word, scratch, out);
  size_t begin = 0;
  for (size_t cut = word.find(kMetaspaceMark); cut != std::string_view::npos;
       cut = word.find(kMetaspaceMark, cut + kMetaspaceMark.size())) {
    if (cut == begin || word.substr(0, cut).ends_with(kMetaspaceMark)) continue;
    AppendCutWord(word.substr(begin, cut - begin), scratch, out);
    begin = cut;
  }
  AppendCutWord(word.substr(begin), scratch, out);
}

void BpeModel::AppendCutWord(std::string_view word, BpeScratch& scratch, std::vector<TokenId>& out) const {
  if (word.empty()) return;
  if (!scratch.cache.enabled() || word.size() > WordCache::kMaxWordBytes) return MergeWord(word, scratch, out);
  if (scratch.cache.AppendTo(word, out)) return;
  const size_t before = out.size();
  MergeWord(word, scratch, out);
  scratch.cache.Insert(word, std::span(out).subspan(before));
}

void BpeModel::MergeWord(std::string_view word, BpeScratch& scratch, std::vector<TokenId>& out) const {
  if (options_.ignore_merges) {
    scratch.mapped.clear();
    if (options_.byte_level) AppendByteLevel(word, scratch.mapped);
    if (const auto id = vocabulary_.Find(options_.byte_level ? std::string_view(scratch.mapped) : word)) {
      out.push_back(*id);
      return;
    }
  }
  // A word has at most one symbol per byte.
  if (word.size() > kShortWord && !scratch.memory.Raise(&scratch.merge_bytes, word.size() * kMergeBytes)) return;
  scratch.ids.clear();
  scratch.ids.reserve(word.size());
  AppendSymbols(word, scratch.ids);
  CHECK(scratch.ids.size() < kNone);
  if (scratch.ids.size() <= kShortWord)
    MergeShort(scratch, out);
  else
    MergeLong(scratch, out);
}

void BpeModel::AppendSymbols(std::string_view word, std::vector<TokenId>& ids) const {
  bool after_unknown = false;
  const auto append_unknown = [&] {
    if (unk_ != kNoToken && !(after_unknown && options_.fuse_unk)) ids.push_back(unk_);
    after_unknown = true;
  };
  for (size_t position = 0; position < word.size();) {
    const uint8_t byte = static_cast<uint8_t>(word[position]);
    if (options_.byte_level || byte < 0x80) {
      const TokenId id = byte_symbols_[byte];
      const bool fell_back =
          id == kNoToken && options_.byte_fallback && AppendByteTokens(word.substr(position, 1), ids);
      if (id != kNoToken) ids.push_back(id);
      if (id == kNoToken && !fell_back)
        append_unknown();
      else
        after_unknown = false;
      ++position;
      continue;
    }
    const std::string_view symbol = word.substr(position, ScanUtf8(word, position).length);
    if (const std::optional<TokenId> id = vocabulary_.Find(symbol)) {
      ids.push_back(*id);
      after_unknown = false;
    } else if (options_.byte_fallback && AppendByteTokens(symbol, ids)) {
      after_unknown = false;
    } else {
      append_unknown();
    }
    position += symbol.size();
  }
}

// Appends a token for every byte. Returns false, and appends nothing, when one byte has no token.
bool BpeModel::AppendByteTokens(std::string_view bytes, std::vector<TokenId>& ids) const {
  for (const char byte : bytes)
    if (byte_tokens_[static_cast<uint8_t>(byte)] == kNoToken) return false;
  for (const char byte : bytes) ids.push_back(byte_tokens_[static_cast<uint8_t>(byte)]);
  return true;
}

void BpeModel::EncodeInvalid(std::string_view bytes, BpeScratch& scratch, std::vector<TokenId>& out) const {
  if (options_.byte_level) return AppendCutWord(bytes, scratch, out);
  if (options_.byte_fallback && AppendByteTokens(bytes, out)) return;
  if (unk_ != kNoToken) out.push_back(unk_);
}

// Repeatedly scans all pairs for the lowest rank.
void BpeModel::MergeShort(BpeScratch& scratch, std::vector<TokenId>& out) const {
  std::vector<TokenId>& ids = scratch.ids;
  std::vector<MergeTable::Merge>& pairs = scratch.pairs;
  const auto pair_at = [&](size_t i) {
    return merges_.Find(ids[i], ids[i + 1]).value_or(MergeTable::Merge{kNoRank, 0});
  };
  pairs.clear();
  for (size_t i = 0; i + 1 < ids.size(); ++i) pairs.push_back(pair_at(i));
  while (!pairs.empty()) {
    const auto best =
        std::min_element(pairs.begin(), pairs.end(), [](const auto& a, const auto& b) { return a.rank < b.rank; });
    if (best->rank == kNoRank) break;
    const size_t i = static_cast<size_t>(best - pairs.begin());
    ids[i] = best->id;
    ids.erase(ids.begin() + static_cast<ptrdiff_t>(i) + 1);
    pairs.erase(best);
    if (i > 0) pairs[i - 1] = pair_at(i - 1);
    if (i < pairs.size()) pairs[i] = pair_at(i);
  }
  out.insert(out.end(), ids.begin(), ids.end());
}

// A heap of candidate pairs over a doubly linked list of symbols. A merge keeps the left symbol and unlinks the right
// one; stale candidates are skipped when they reach the top of the heap.
void BpeModel::MergeLong(BpeScratch& scratch, std::vector<TokenId>& out) const {
  std::vector<BpeSymbol>& symbols = scratch.symbols;
  std::vector<BpeCandidate>& heap = scratch.heap;
  const uint32_t count = static_cast<uint32_t>(scratch.ids.size());
  constexpr TokenId kUnlinked = -1;
  const auto merge_at = [&](uint32_t left) -> std::optional<MergeTable::Merge> {
    const uint32_t right = symbols[left].next;
    if (right == kNone || symbols[left].id == kUnlinked) return std::nullopt;
    return merges_.Find(symbols[left].id, symbols[right].id);
  };
  const auto order = [](uint32_t rank, uint32_t left) { return (uint64_t{rank} << 32) | left; };
  symbols.resize(count);
  for (uint32_t i = 0; i < count; ++i)
    symbols[i] = {scratch.ids[i], i == 0 ? kNone : i - 1, i + 1 == count ? kNone : i + 1};
  heap.clear();
  heap.reserve(size_t{2} * count);  // pages that are not used take no memory
  for (uint32_t i = 0; i + 1 < count; ++i)
    if (const auto merge = merge_at(i)) heap.push_back(order(merge->rank, i));
  std::make_heap(heap.begin(), heap.end(), std::greater<>());

  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const BpeCandidate candidate = heap.back();
    heap.pop_back();
    const uint32_t left = static_cast<uint32_t>(candidate);
    const std::optional<MergeTable::Merge> merge = merge_at(left);
    if (!merge || order(merge->rank, left) != candidate) continue;
    const uint32_t right = symbols[left].next;
    symbols[left].id = merge->id;
    symbols[left].next = symbols[right].next;
    if (symbols[right].next != kNone) symbols[symbols[right].next].previous = left;
    symbols[right].id = kUnlinked;
    for (const uint32_t changed : {symbols[left].previous, left}) {
      if (changed == kNone) continue;
      if (const auto next = merge_at(changed)) {
        heap.push_back(order(next->rank, changed));
        std::push_heap(heap.begin(), heap.end(), std::greater<>());
      }
    }
  }
  for (uint32_t i = 0; i != kNone; i = symbols[i].next) out.push_back(symbols[i].id);
}

}  // namespace infinigen
