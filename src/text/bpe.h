// Byte-pair encoding: a word is cut into its smallest symbols, then the neighbouring pair with the lowest rank is
// merged, the leftmost of equal ones first, until no pair has a merge. MergeTable holds the pairs, BpeModel applies
// them. Both are filled once and then only read; what a running Encode writes is in BpeScratch, one per call.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/vocabulary.h"
#include "text/word_cache.h"

namespace infinigen {

// What stands for the space in SentencePiece's vocabularies.
inline constexpr std::string_view kMetaspaceMark = "▁";

// Hash table (left id, right id) -> (rank, merged id). Ids are below 2^20, so a slot is twelve bytes.
class MergeTable {
 public:
  struct Merge {
    uint32_t rank = 0;
    TokenId id = 0;
  };

  // Largest number of merges accepted from a file: twice the largest seen in the wild.
  static constexpr size_t kMaxMerges = 1 << 20;

  // At most `count` different pairs will be inserted.
  explicit MergeTable(size_t count = 0);

  // A pair inserted twice keeps the last rank, as in Hugging Face's library.
  void Insert(TokenId left, TokenId right, uint32_t rank, TokenId merged);
  std::optional<Merge> Find(TokenId left, TokenId right) const;

  // Calls visit(merged id) for every pair.
  template <class Visit>
  void ForEachMerged(Visit&& visit) const {
    for (const uint64_t slot : slots_)
      if (slot != 0) visit(static_cast<TokenId>(slot & kIdMask));
  }

 private:
  static constexpr uint64_t kIdMask = (1 << 20) - 1;
  static constexpr uint64_t kUsed = uint64_t{1} << 63;

  size_t FirstSlot(uint64_t key) const;

  std::vector<uint64_t> slots_;  // kUsed | left << 40 | right << 20 | merged; 0 where free
  std::vector<uint32_t> ranks_;  // [slot]
};

struct BpeOptions {
  bool byte_level = false;     // the smallest symbols are bytes, else characters
  bool byte_fallback = false;  // a character without token becomes its bytes, as tokens <0x00> to <0xFF>
  bool ignore_merges = false;  // a word that is a token as a whole is that token
  bool fuse_unk = false;       // a run of unknown characters is one unknown token
  std::string unk_token;       // empty: unknown characters disappear
};

struct BpeSymbol {
  TokenId id = 0;
  uint32_t previous = 0;  // position of the neighbours, kNone at the ends
  uint32_t next = 0;
};

struct BpeCandidate {
  uint64_t order = 0;  // rank << 32 | position of the left symbol: the smallest is merged next
  TokenId left = 0;    // the pair when the candidate was found; it is stale when the symbols are others by now
  TokenId right = 0;
  TokenId merged = 0;
};

struct BpeScratch {
  std::vector<BpeSymbol> symbols;
  std::vector<BpeCandidate> heap;
  std::vector<MergeTable::Merge> pairs;  // of short words
  std::vector<TokenId> ids;
  std::string mapped;
  WordCache cache;
};

class BpeModel {
 public:
  BpeModel(const TokenVocabulary& vocabulary, MergeTable merges, BpeOptions options);

  const BpeOptions& options() const { return options_; }

  // Appends the ids of one pre-tokenized word. With byte_level any bytes, else valid UTF-8.
  void EncodeWord(std::string_view word, BpeScratch& scratch, std::vector<TokenId>& out) const;
  // Appends the ids of bytes that are no UTF-8: as symbols of a byte-level word, as byte tokens, or as unknown.
  void EncodeInvalid(std::string_view bytes, BpeScratch& scratch, std::vector<TokenId>& out) const;

 private:
  static constexpr TokenId kNoToken = -1;

  void AppendCutWord(std::string_view word, BpeScratch& scratch, std::vector<TokenId>& out) const;
  void MergeWord(std::string_view word, BpeScratch& scratch, std::vector<TokenId>& out) const;
  void AppendSymbols(std::string_view word, std::vector<TokenId>& ids) const;
  bool AppendByteTokens(std::string_view bytes, std::vector<TokenId>& ids) const;
  void MergeShort(BpeScratch& scratch, std::vector<TokenId>& out) const;
  void MergeLong(BpeScratch& scratch, std::vector<TokenId>& out) const;
  bool MergesNeverCrossIntoMetaspace() const;

  const TokenVocabulary& vocabulary_;
  MergeTable merges_;
  BpeOptions options_;
  std::array<TokenId, 256> byte_symbols_;  // [byte]: byte_level: its symbol; else the ASCII character's
  std::array<TokenId, 256> byte_tokens_;   // [byte]: <0xXX>
  TokenId unk_ = kNoToken;
  bool cut_at_metaspace_ = false;
};

}  // namespace infinigen
