// The tail of a selection as plain structs for both kv and the backends. kv/tail.h defines what the numbers mean.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kv/index_view.h"

namespace infinigen {

// A histogram of shares of attention, one sample per query head and token of a layer that selects: the share inside a
// selection as measured, or the share outside it as estimated. Both have the same samples, except that sequences whose
// rule has no tail have no estimate.
struct MassTotals {
  static constexpr int kBins = 1000;
  uint64_t count = 0;
  double sum = 0;
  uint64_t bins[kBins + 1] = {};  // over ⌊share · kBins⌋

  // A share that is no number, of attention that is broken, counts as 0.
  constexpr void Add(double share) {
    share = share > 0 ? std::min(share, 1.0) : 0.0;
    ++count;
    sum += share;
    ++bins[static_cast<int>(share * kBins)];
  }
  constexpr void Add(const MassTotals& other) {
    count += other.count;
    sum += other.sum;
    for (int bin = 0; bin <= kBins; ++bin) bins[bin] += other.bins[bin];
  }
  constexpr void Subtract(const MassTotals& other) {
    count -= other.count;
    sum -= other.sum;
    for (int bin = 0; bin <= kBins; ++bin) bins[bin] -= other.bins[bin];
  }
};

// The tails of a batch's selections: from the operation that sums them to the one that adds them to attention. Arrays
// are memory of the compute device.
struct TailView {
  TailBasis basis;
  int64_t heads = 0;        // query heads
  float* levels = nullptr;  // [tokens][heads] what all scores of a query head have in common: q · key_mean · scale
  // [tokens][heads][2 + value_dims + mean_dims]: largest score, sum of weights (0: the tail is empty; kNoTail: the
  // sequence's rule has no tail), weighted sums of value sketches and of the means of blocks.
  float* sums = nullptr;
  int64_t mean_dims = 0;
  MassTotals* mass = nullptr;  // [1] of the layer: estimated shares of attention outside selections

  static constexpr float kNoTail = -1;

  constexpr explicit operator bool() const { return sums != nullptr; }
  constexpr int64_t sums_floats() const { return 2 + basis.value_dims + mean_dims; }
  constexpr float* Levels(int64_t token) const { return levels + token * heads; }
  constexpr float* Sums(int64_t token, int64_t head) const { return sums + (token * heads + head) * sums_floats(); }
  // The part for tokens from `first` on.
  constexpr TailView From(int64_t first) const {
    TailView part = *this;
    if (sums != nullptr) part.levels = Levels(first), part.sums = Sums(first, 0);
    return part;
  }
};

}  // namespace infinigen
