// WordCache: remembers the ids of short words within one Encode. Text repeats its words, so most of a long text is
// looked up instead of merged. Bounded: when it is full it only answers. Not shared between threads.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"

namespace infinigen {

class WordCache {
 public:
  static constexpr size_t kMaxWordBytes = 32;

  // Sized for a text of that length; a short text gets no cache at all.
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

  // Appends the ids and returns true when the word is known.
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

  // The word is not known yet; at most kMaxWordBytes long.
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

}  // namespace infinigen
