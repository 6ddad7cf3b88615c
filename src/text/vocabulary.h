// The tables of a BPE tokenizer: TokenVocabulary (tokens by id and by text), MergeTable (pairs by rank), and the two
// ways in which files give merges: as a list of pairs (MergeList), or as ranked tokens (MergesOfSplits). Filled by the
// readers, then only read, from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace infinigen {

using TokenId = int32_t;

// Token texts by id and ids by text, compactly: one arena of bytes, eight bytes for each id, and a hash table of ids.
// Ids may have gaps.
class TokenVocabulary {
 public:
  // Four times the largest published vocabulary. Bounds the cost of a hostile file with one huge id, and lets
  // MergeTable pack a merge into 60 bits.
  static constexpr int32_t kMaxTokens = 1 << 20;

  // Reserves room for the texts of a file of that size, so that growing never copies them.
  void ReserveText(size_t bytes) { arena_.reserve(bytes); }

  // Fails on an empty text, an id outside [0, kMaxTokens), and a text or id that is already there. The message names
  // the token; the caller adds the file.
  Status Add(std::string_view text, int64_t id);

  std::optional<TokenId> Find(std::string_view text) const;
  // Empty for ids outside the vocabulary.
  std::string_view Text(TokenId id) const;
  bool Contains(TokenId id) const { return !Text(id).empty(); }
  // One more than the largest id.
  int32_t size() const { return static_cast<int32_t>(entries_.size()); }
  // Number of tokens; less than size() where ids have gaps.
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
  std::vector<uint32_t> index_;  // id + 1, or 0 where free; open addressing, size a power of two
  size_t count_ = 0;
};

// Hash table (left id, right id) -> (rank, merged id). Ids are below 2^20, so a slot is twelve bytes.
class MergeTable {
 public:
  struct Merge {
    uint32_t rank = 0;
    TokenId id = 0;
  };

  // Largest number of merges accepted from a file: twice the largest published one.
  static constexpr size_t kMaxMerges = 1 << 20;

  // At most `count` different pairs will be inserted.
  explicit MergeTable(size_t count = 0);

  // A pair inserted twice keeps the last rank, as in Hugging Face's library.
  void Insert(TokenId left, TokenId right, uint32_t rank, TokenId merged);
  // Inline: the innermost call of Encode.
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

  std::vector<uint64_t> slots_;  // kUsed | left << 40 | right << 20 | merged; 0 where free
  std::vector<uint32_t> ranks_;  // [slot]
};

// The merges of a file as text, until the vocabulary is complete and they can become a MergeTable.
class MergeList {
 public:
  void ReserveText(size_t bytes) { arena_.reserve(bytes); }

  // The message of an error is without file name.
  Status Add(std::string_view left, std::string_view right);
  // "left right": split at the only space.
  Status AddLine(std::string_view line);

  // Every part and every merged text must be in the vocabulary. Rank is the position in the list.
  Result<MergeTable> Resolve(const TokenVocabulary& vocabulary) const;

 private:
  struct Entry {
    uint32_t offset = 0;  // of left in arena_; right follows it
    uint32_t left_bytes = 0;
    uint32_t right_bytes = 0;
  };
  std::string arena_;
  std::vector<Entry> entries_;
};

// A token that merges may produce.
struct RankedToken {
  TokenId id = 0;
  uint32_t rank = 0;  // lower merges first; equal ranks merge from the left
};

enum class SplitOrder {
  kSharedRank,   // all splits of a token have the token's rank (SentencePiece)
  kShorterLeft,  // a rank for each split; within a token, shorter left parts first (transformers on SentencePiece
                 // files)
  kLowerIds,     // a rank for each split; within a token, lower ids first (transformers on tiktoken files)
};

// The merges of a vocabulary that lists none: every split of a ranked token, between two characters, into two tokens
// whose `part` (by id) is set. `tokens` are sorted by rank. The message of an error is without file name.
Result<MergeTable> MergesOfSplits(const TokenVocabulary& vocabulary, const std::vector<RankedToken>& tokens,
                                  const std::vector<bool>& part, SplitOrder order);

}  // namespace infinigen
