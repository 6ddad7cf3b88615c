// How far two devices select the same rows for the same tokens: the lists of one executor are kept until the other one
// comes to the same token.
//
//   SelectionOverlap overlap;
//   first.ObserveSelection(overlap.Kept());
//   second.ObserveSelection(overlap.Compared());
//   ... the same tokens through `first`, then through `second`, window after window
//   overlap.share();
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <tuple>
#include <vector>

#include "model/executor.h"

namespace infinigen {

// Of a list that ends with the token's own row, what is there for its score: neither the first `sinks` rows nor the
// last `window` ones.
std::vector<int32_t> ChosenByScore(std::span<const int32_t> rows, int64_t sinks, int64_t window);

class SelectionOverlap {
 public:
  // Of lists that always have the first `sinks` rows and the last `window` ones, which do not count. A list for every
  // so many-eth token is enough, and a sixteenth of the memory.
  SelectionOverlap(int64_t sinks, int64_t window, int64_t every = 16) : sinks_(sinks), window_(window), every_(every) {}

  // Valid as long as this is. Both sides see rows in the order of their positions, so nothing may have been evicted.
  SelectionObserver Kept();
  SelectionObserver Compared();

  // Rows that both chose against those of the longer list, over all lists. NaN when nobody had a choice.
  double share() const;

 private:
  using Key = std::tuple<LayerId, SeqSlot, KvHead, int32_t>;  // the last: the token's own row, which ends its list

  std::vector<int32_t> Choice(std::span<const int32_t> rows) const { return ChosenByScore(rows, sinks_, window_); }

  int64_t sinks_, window_, every_;
  std::map<Key, std::vector<int32_t>> kept_;
  uint64_t same_ = 0, longer_ = 0;
};

}  // namespace infinigen
