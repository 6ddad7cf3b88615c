// Measures the overlap of selections: SelectionOverlap between two executors on the same tokens, StepOverlap between
// steps of one executor. Both observe selections (Instruments::ObserveSelection) on the executor's thread. Both need
// methods that evict nothing, so that a row is a position.
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

// The rows of a selection that were chosen by score, without the first `sinks` and the last `window` rows. The last row
// of a selection is the current token's.
std::vector<int32_t> ChosenByScore(std::span<const int32_t> rows, int64_t sinks, int64_t window);

// Keeps the selections of one executor until the other reaches the same token.
//
//   SelectionOverlap overlap(sinks, window);
//   first.ObserveSelection(overlap.Kept());
//   second.ObserveSelection(overlap.Compared());
//   ... the same tokens through `first`, then through `second`, window after window
//   overlap.share();
class SelectionOverlap {
 public:
  // Compares only every `every`-th token, which divides the memory by `every`.
  SelectionOverlap(int64_t sinks, int64_t window, int64_t every = 16) : sinks_(sinks), window_(window), every_(every) {}

  // Valid as long as this object.
  SelectionObserver Kept();
  SelectionObserver Compared();

  // Rows that both chose by score, divided by the rows of the longer selection, summed over all tokens. NaN: none.
  double share() const;

 private:
  using Key = std::tuple<LayerId, SeqSlot, KvHead, int32_t>;  // the last element is the token's row

  std::vector<int32_t> Choice(std::span<const int32_t> rows) const { return ChosenByScore(rows, sinks_, window_); }

  int64_t sinks_, window_, every_;
  std::map<Key, std::vector<int32_t>> kept_;
  uint64_t same_ = 0, longer_ = 0;
};

// The share of a step's selected rows that an earlier step also selected: an upper bound of the hits of a hot set.
//
//   StepOverlap overlap(sinks, window);
//   executor.instruments().ObserveSelection(overlap.Observer());
//   ... tokens of a sequence, one after the other, by steps or in bulk
//   overlap.share(0);   // one step before
class StepOverlap {
 public:
  static constexpr std::array<int64_t, 7> kSteps = {1, 2, 4, 8, 16, 32, 64};  // distances in steps

  // Sinks and window are in every selection, so only rows outside them in both steps are counted.
  StepOverlap(int64_t sinks, int64_t window) : sinks_(sinks), window_(window) {}

  // Valid as long as this object.
  SelectionObserver Observer();

  // Share of the rows chosen by score that were also chosen kSteps[i] steps before; NaN if none were chosen. Without
  // `layer`, over all layers.
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
