// MergeList: the merges of a file as text, until the vocabulary is complete and they can become a MergeTable. And the
// merges of files that have none: vocabularies that list tokens with ranks or scores only.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/bpe.h"
#include "text/vocabulary.h"

namespace infinigen {

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

// One token that may be the result of merges.
struct RankedToken {
  TokenId id = 0;
  uint32_t rank = 0;  // lower merges first; equal ranks merge from the left
};

enum class SplitOrder {
  kSharedRank,   // all ways to build a token have its rank (SentencePiece)
  kShorterLeft,  // one rank each; of one token's, the shorter left part first (transformers, SentencePiece files)
  kLowerIds,     // one rank each; of one token's, the lower ids first (transformers, tiktoken files)
};

// Every way to cut a ranked token between two characters into tokens with `part` set (by id) is a merge. `tokens` are
// sorted by rank. The message of an error is without file name.
Result<MergeTable> MergesOfSplits(const TokenVocabulary& vocabulary, const std::vector<RankedToken>& tokens,
                                  const std::vector<bool>& part, SplitOrder order);

}  // namespace infinigen
