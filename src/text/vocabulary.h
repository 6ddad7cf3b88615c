// The tables of a BPE tokenizer: TokenVocabulary (tokens by id and by text) and MergeTable (rank and result of each
// pair). Files give merges either as a list of pairs (MergeList) or as ranked tokens (MergesOfSplits). The tables are
// filled while loading and only read afterwards, from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace infinigen {

using TokenId = int32_t;

// Token texts by id and ids by text. Compact: one arena of bytes, eight bytes per id, and a hash table of ids. Ids may
// have gaps.
class TokenVocabulary {
 public:
  // Four times the largest published vocabulary. Limits the memory that a hostile file can cause with one huge id, and
  // lets MergeTable pack a merge into 60 bits.
  static constexpr int32_t kMaxTokens = 1 << 20;

  // Reserves memory for the texts of a file of that size, so that they are not copied while the table grows.
  void ReserveText(size_t bytes) { arena_.reserve(bytes); }

  // Fails for an empty text, an id outside [0, kMaxTokens), and a text or id that exists already. The message names the
  // token; the caller adds the file's name.
  Status Add(std::string_view text, int64_t id);

  std::optional<TokenId> Find(std::string_view text) const;
  // Empty when no token has this id.
  std::string_view Text(TokenId id) const;
  bool Contains(TokenId id) const { return !Text(id).empty(); }
  // Largest id + 1.
  int32_t size() const { return static_cast<int32_t>(entries_.size()); }
  // Number of tokens; less than size() when ids have gaps.
  int32_t count() const { return static_cast<int32_t>(count_); }

 private:
  struct Entry {
    uint32_t offset = 0;
    uint32_t length = 0;  // 0: no token has this id
  };

  size_t FirstSlot(std::string_view text) const;
  void InsertIntoIndex(TokenId id);
  void GrowIndex();

  std::string arena_;
  std::vector<Entry> entries_;   // [id]
  std::vector<uint32_t> index_;  // hash table of id + 1, 0: free; open addressing, size is a power of two
  size_t count_ = 0;
};

// Hash table (left id, right id) -> (rank, merged id). Ids are below 2^20, so a slot takes twelve bytes.
class MergeTable {
 public:
  struct Merge {
    uint32_t rank = 0;
    TokenId id = 0;
  };

  // Most merges that a file may have: twice the largest published number.
  static constexpr size_t kMaxMerges = 1 << 20;

  // `count`: upper limit of the number of pairs that will be inserted.
  explicit MergeTable(size_t count = 0);

  // A second insertion of a pair replaces the first, as in Hugging Face's library.
  void Insert(TokenId left, TokenId right, uint32_t rank, TokenId merged);
  // Inline, because it is the innermost call of Encode.
  std::optional<Merge> Find(TokenId left, TokenId right) const {
    const uint64_t key = KeyOf(left, right);
    for (size_t slot = FirstSlot(key); slots_[slot] != 0; slot = slot + 1 == slots_.size() ? 0 : slot + 1)
      if (((slots_[slot] & ~kUsed) >> 20) == key)
        return Merge{ranks_[slot], static_cast<TokenId>(slots_[slot] & kIdMask)};
    return std::nullopt;
  }

  // Calls visit(merged id) for every pair.
  template <class Visit>
  void ForEachMerged(Visit&& visit) const {
    for (const uint64_t slot : slots_)
      if (slot != 0) visit(static_cast<TokenId>(slot & kIdMask));
  }
  // Calls visit(left id, right id, merge) for every pair, in no order.
  template <class Visit>
  void ForEachPair(Visit&& visit) const {
    for (size_t i = 0; i < slots_.size(); ++i)
      if (const uint64_t slot = slots_[i]; slot != 0)
        visit(static_cast<TokenId>((slot >> 40) & kIdMask), static_cast<TokenId>((slot >> 20) & kIdMask),
              Merge{ranks_[i], static_cast<TokenId>(slot & kIdMask)});
  }

 private:
  static constexpr uint64_t kIdMask = (1 << 20) - 1;
  static constexpr uint64_t kUsed = uint64_t{1} << 63;

  static uint64_t KeyOf(TokenId left, TokenId right) {
    return (static_cast<uint64_t>(left) << 20) | static_cast<uint64_t>(right);
  }
  size_t FirstSlot(uint64_t key) const {
    const uint64_t mixed = (key * 0x9E3779B97F4A7C15ULL) >> 32;
    return static_cast<size_t>((mixed * slots_.size()) >> 32);
  }

  std::vector<uint64_t> slots_;  // kUsed | left << 40 | right << 20 | merged; 0: free
  std::vector<uint32_t> ranks_;  // [slot]
};

// The merges of a file as text; turned into a MergeTable once the vocabulary is complete.
class MergeList {
 public:
  void ReserveText(size_t bytes) { arena_.reserve(bytes); }

  // Error messages do not contain the file's name.
  Status Add(std::string_view left, std::string_view right);
  // Takes "left right", with exactly one space.
  Status AddLine(std::string_view line);

  // Fails unless all parts and merged texts are in the vocabulary. The rank is the position in the list.
  Result<MergeTable> Resolve(const TokenVocabulary& vocabulary) const;

 private:
  struct Entry {
    uint32_t offset = 0;  // of the left part in arena_; the right part follows it
    uint32_t left_bytes = 0;
    uint32_t right_bytes = 0;
  };
  std::string arena_;
  std::vector<Entry> entries_;
};

// A token that merges can produce.
struct RankedToken {
  TokenId id = 0;
  uint32_t rank = 0;  // lower ranks merge first; equal ranks from left to right
};

// The tokens that are set in `mergeable` [id], highest score first; equal scores share a rank. `scores` [id] has no
// NaN.
std::vector<RankedToken> RankByScore(std::span<const float> scores, const std::vector<bool>& mergeable);

enum class SplitOrder {
  kSharedRank,   // all splits of a token have the token's rank (SentencePiece)
  kShorterLeft,  // each split has its own rank; within a token, shorter left parts first (transformers, SentencePiece)
  kLowerIds,     // each split has its own rank; within a token, lower ids first (transformers, tiktoken)
};

// Derives the merges for a file that lists none: every way to split a token of `tokens`, between two
// characters, into two tokens that are set in `part` [id]. `tokens` must be sorted by rank. Error messages do not
// contain the file's name.
Result<MergeTable> MergesOfSplits(const TokenVocabulary& vocabulary, const std::vector<RankedToken>& tokens,
                                  const std::vector<bool>& part, SplitOrder order);

}  // namespace infinigen
