// How far lists of selected rows agree: SelectionOverlap compares two executors on the same tokens, StepOverlap one
// executor with itself a few steps earlier. Both observe the selections of executors (Instruments::ObserveSelection)
// while those run, on their thread. Both need methods that evict nothing, so that a row is a position.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <tuple>
#include <vector>

#include "runtime/launch.h"

namespace infinigen {

// The rows of a list that are there for their score: neither the first `sinks` rows nor the last `window` ones. A list
// ends with the token's own row.
std::vector<int32_t> ChosenByScore(std::span<const int32_t> rows, int64_t sinks, int64_t window);

// Keeps the lists of one executor until the other comes to the same token.
//
//   SelectionOverlap overlap(sinks, window);
//   first.ObserveSelection(overlap.Kept());
//   second.ObserveSelection(overlap.Compared());
//   ... the same tokens through `first`, then through `second`, window after window
//   overlap.share();
class SelectionOverlap {
 public:
  // Only lists of every `every`-th token are compared, which takes that much less memory.
  SelectionOverlap(int64_t sinks, int64_t window, int64_t every = 16) : sinks_(sinks), window_(window), every_(every) {}

  // Valid as long as this object.
  SelectionObserver Kept();
  SelectionObserver Compared();

  // Rows that both chose by score, divided by the longer list's, over all lists. NaN: there was nothing to choose.
  double share() const;

 private:
  using Key = std::tuple<LayerId, SeqSlot, KvHead, int32_t>;  // the last: the token's own row

  std::vector<int32_t> Choice(std::span<const int32_t> rows) const { return ChosenByScore(rows, sinks_, window_); }

  int64_t sinks_, window_, every_;
  std::map<Key, std::vector<int32_t>> kept_;
  uint64_t same_ = 0, longer_ = 0;
};

// How many of the rows that a step selects were selected a few steps before too: what a cache near the compute device
// could have kept.
//
//   StepOverlap overlap(sinks, window);
//   executor.instruments().ObserveSelection(overlap.Observer());
//   ... tokens of a sequence, one after the other, by steps or in bulk
//   overlap.share(0);   // one step before
class StepOverlap {
 public:
  static constexpr std::array<int64_t, 7> kSteps = {1, 2, 4, 8, 16, 32, 64};  // distances in steps

  // Sinks and window are in every list: only rows outside them at both times are counted.
  StepOverlap(int64_t sinks, int64_t window) : sinks_(sinks), window_(window) {}

  // Valid as long as this object.
  SelectionObserver Observer();

  // Share of the rows chosen by score that were also chosen kSteps[i] steps before; NaN: there was nothing to choose.
  // Without `layer`, over all layers.
  double share(size_t i) const;
  double share(size_t i, LayerId layer) const;
  std::vector<LayerId> layers() const;  // those that select, ascending

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
