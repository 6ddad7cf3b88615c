// Byte-pair encoding: a word is split into its smallest symbols; then the adjacent pair with the lowest rank is merged
// (the leftmost one among equal ranks) until no pair has a merge. BpeModel is immutable and may be used from any
// thread; BpeScratch is the working memory of one Encode call.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "text/tokenizer.h"
#include "text/vocabulary.h"

namespace infinigen {

// The character that represents a space in SentencePiece vocabularies.
inline constexpr std::string_view kMetaspaceMark = "▁";

// Caches the ids of short words during one Encode call. Words repeat, so most words of a long text are looked up
// instead of merged. The size is bounded: a full cache accepts no more words. One thread.
class WordCache {
 public:
  static constexpr size_t kMaxWordBytes = 32;

  // Sizes the cache for a text of that length; a short text gets none.
  void Prepare(size_t text_bytes) {
    if (text_bytes < kSmallestText) return;
    size_t slots = 1024;
    while (slots < kMaxSlots && slots * 16 < text_bytes) slots *= 2;
    slots_.assign(slots, Slot{});
    used_ = 0;
    words_.clear();
    ids_.clear();
  }

  bool enabled() const { return !slots_.empty(); }

  // If the word is cached, appends its ids and returns true.
  template <class Ids>
  bool AppendTo(std::string_view word, Ids& out) const {
    const size_t hash = std::hash<std::string_view>()(word);
    for (size_t i = hash & (slots_.size() - 1); slots_[i].id_count != 0; i = (i + 1) & (slots_.size() - 1)) {
      const Slot& slot = slots_[i];
      if (slot.tag != Tag(hash) || std::string_view(words_).substr(slot.word, slot.word_bytes) != word) continue;
      out.insert(out.end(), ids_.begin() + slot.ids, ids_.begin() + slot.ids + slot.id_count);
      return true;
    }
    return false;
  }

  // Precondition: the word is not cached and has at most kMaxWordBytes.
  void Insert(std::string_view word, std::span<const int32_t> ids) {
    DCHECK(word.size() <= kMaxWordBytes);
    if (ids.empty() || ids.size() > kMaxWordBytes || (used_ + 1) * 2 > slots_.size()) return;
    const size_t hash = std::hash<std::string_view>()(word);
    size_t i = hash & (slots_.size() - 1);
    while (slots_[i].id_count != 0) i = (i + 1) & (slots_.size() - 1);
    slots_[i] = {static_cast<uint32_t>(words_.size()), static_cast<uint32_t>(ids_.size()), Tag(hash),
                 static_cast<uint8_t>(word.size()), static_cast<uint8_t>(ids.size())};
    words_.append(word);
    ids_.insert(ids_.end(), ids.begin(), ids.end());
    ++used_;
  }

 private:
  static constexpr size_t kSmallestText = 2048;
  static constexpr size_t kMaxSlots = 1 << 17;  // 1.5 MB of slots, at most 2 + 8 MB of words and ids

  struct Slot {
    uint32_t word = 0;  // offset in words_
    uint32_t ids = 0;   // offset in ids_
    uint16_t tag = 0;
    uint8_t word_bytes = 0;
    uint8_t id_count = 0;  // 0: free
  };

  static uint16_t Tag(size_t hash) { return static_cast<uint16_t>(hash >> 48); }

  std::vector<Slot> slots_;  // open addressing, at most half full
  std::string words_;
  std::vector<int32_t> ids_;
  size_t used_ = 0;
};

struct BpeOptions {
  bool byte_level = false;     // the smallest symbols are bytes instead of characters
  bool byte_fallback = false;  // a character without a token is encoded as byte tokens <0x00> to <0xFF>
  bool ignore_merges = false;  // a word that is in the vocabulary becomes that token, without merging
  bool fuse_unk = false;       // a run of unknown characters becomes one unknown token
  std::string unk_token;       // empty: unknown characters are dropped
};

struct BpeSymbol {
  TokenId id = 0;
  uint32_t previous = 0;  // indices of the neighbours, kNone at the ends
  uint32_t next = 0;
};

// Counts the working memory of one Encode call and asks for it (ReserveMemory). One thread.
class EncodeMemory {
 public:
  explicit EncodeMemory(const ReserveMemory* reserve = nullptr) : reserve_(reserve) {}

  // Asks for what `bytes` has more than `*part`, the most that this part of the memory has had so far. False: refused,
  // now or earlier.
  bool Raise(size_t* part, size_t bytes) {
    if (reserve_ == nullptr || bytes <= *part || refused_) return !refused_;
    bytes = (bytes + kStepBytes - 1) / kStepBytes * kStepBytes;
    refused_ = !(*reserve_)(bytes - *part);
    *part = bytes;
    return !refused_;
  }
  bool refused() const { return refused_; }

 private:
  static constexpr size_t kStepBytes = 64 << 10;  // few calls for texts that grow word by word

  const ReserveMemory* reserve_;
  bool refused_ = false;
};

// A pair that may be merged: rank << 32 | index of the left symbol. The smallest is merged next. It is stale when the
// pair at that place now has another rank.
using BpeCandidate = uint64_t;

struct BpeScratch {
  EncodeMemory memory;
  size_t merge_bytes = 0;  // part of `memory`: ids, symbols, heap
  std::vector<BpeSymbol> symbols;
  std::vector<BpeCandidate> heap;
  std::vector<MergeTable::Merge> pairs;  // for short words: [i] is the merge of ids[i] and ids[i + 1]
  std::vector<TokenId> ids;
  std::string mapped;
  WordCache cache;
};

class BpeModel {
 public:
  BpeModel(const TokenVocabulary& vocabulary, MergeTable merges, BpeOptions options);

  const BpeOptions& options() const { return options_; }

  // Appends the ids of one pre-tokenized word: any bytes with byte_level, otherwise valid UTF-8.
  void EncodeWord(std::string_view word, BpeScratch& scratch, std::vector<TokenId>& out) const;
  // Appends the ids of malformed UTF-8: as a byte-level word, as byte tokens, or as the unknown token.
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
  // [byte]; kNoToken where the vocabulary has no such token.
  std::array<TokenId, 256> byte_symbols_;  // symbol of the byte with byte_level, otherwise of the ASCII character
  std::array<TokenId, 256> byte_tokens_;   // <0xXX>
  TokenId unk_ = kNoToken;
  bool cut_at_metaspace_ = false;  // see MergesNeverCrossIntoMetaspace
};

}  // namespace infinigen
