// TokenVocabulary: token texts by id and ids by text, compactly: one arena of bytes, eight bytes per id, and a hash
// table of ids. Ids may have gaps. Filled by the readers, then only read (any thread).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace infinigen {

using TokenId = int32_t;

class TokenVocabulary {
 public:
  // Four times the largest vocabulary seen in the wild; bounds what a hostile file with one huge id can cost, and lets
  // a merge be packed into 60 bits (text/bpe.h).
  static constexpr int32_t kMaxTokens = 1 << 20;

  // Room for the texts of a file of that size, so that growing never copies them.
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

}  // namespace infinigen
