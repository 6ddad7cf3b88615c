// How much of what a step chooses was chosen a few steps before too: what a place near the compute device could have
// kept. Works on the lists of one executor.
//
//   StepOverlap overlap(sinks, window);
//   executor.instruments().ObserveSelection(overlap.Observer());
//   ... tokens of a sequence, one after the other, by steps or in bulk
//   overlap.share(0);   // one step before
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <tuple>
#include <vector>

#include "model/executor.h"

namespace infinigen {

class StepOverlap {
 public:
  static constexpr std::array<int64_t, 7> kSteps = {1, 2, 4, 8, 16, 32, 64};  // how long before

  // Sinks and window are always there: only rows that lay outside them at both times are counted.
  StepOverlap(int64_t sinks, int64_t window) : sinks_(sinks), window_(window) {}

  // Valid as long as this is. Nothing may have been evicted: a row is a position.
  SelectionObserver Observer();

  // Of the rows chosen by score, those also chosen kSteps[i] steps before; NaN where nobody had a choice. The first
  // form is over all layers.
  double share(size_t i) const;
  double share(size_t i, LayerId layer) const;
  std::vector<LayerId> layers() const;  // those that select, in order

 private:
  struct Sums {
    std::array<uint64_t, kSteps.size()> same = {}, chosen = {};
  };

  void Compare(LayerId layer, const std::deque<std::vector<int32_t>>& before, std::span<const int32_t> rows);

  int64_t sinks_, window_;
  std::map<std::tuple<LayerId, SeqSlot, KvHead>, std::deque<std::vector<int32_t>>> lists_;  // the newest last
  std::map<LayerId, Sums> sums_;
};

}  // namespace infinigen
