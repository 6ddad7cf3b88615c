// KvStats: what the decode steps of a run attended to, fetched and evicted, per layer and in total. All counts are sums
// over steps; docs/heart.md defines the ratios. Plain data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kv/selection_view.h"

namespace infinigen {

struct LayerKvStats {
  bool selects = false;
  SelectionTotals totals;  // in a dense layer attended = retained, and chosen = 0
  uint64_t seen = 0;       // as totals.retained, but including evicted rows
  MassTotals mass;         // shares of the true attention inside selections; zero unless measured
  MassTotals tail_mass;    // shares outside selections as the tail estimates them; zero without a tail

  // Both sides of the missed mass are known: its estimate, and its true value.
  bool compares_missed() const { return mass.count > 0 && tail_mass.count > 0; }

  // Rows chosen by score, late rows among them / retained rows; 1 in a dense layer.
  double selected_ratio() const { return selects ? Share(totals.chosen) : 1.0; }
  // Sinks, window and current token, as far as they were not chosen by score / retained rows.
  double extra_ratio() const { return selects ? Share(totals.attended - totals.chosen) : 0.0; }
  // Late rows / retained rows.
  double late_ratio() const { return totals.late == 0 ? 0.0 : Share(totals.late); }
  // Attended rows / all tokens so far.
  double attended_ratio() const {
    return seen == 0 ? 1.0 : static_cast<double>(totals.attended) / static_cast<double>(seen);
  }

  double Share(uint64_t rows) const {
    return totals.retained == 0 ? 1.0 : static_cast<double>(rows) / static_cast<double>(totals.retained);
  }
  void Add(const LayerKvStats& other);
};

struct KvStats {
  std::vector<LayerKvStats> layers;
  int64_t steps = 0;
  uint64_t evicted = 0;           // entries evicted by prefills and steps
  uint64_t read_bytes = 0;        // entries that attention read in decode steps
  FetchTotals fetch;              // of layers whose selected entries are fetched
  bool fetches = false;           // some layer fetches selected entries
  uint64_t hot_bytes = 0;         // size of the hot set
  uint64_t fetched_bytes = 0;     // entries copied or read from the pool
  uint64_t stall_ns = 0;          // time that steps waited for fetches; 0 where entries are read in place
  uint64_t entry_row_bytes = 0;   // one token's entries in all layers
  uint64_t sketch_row_bytes = 0;  // one token's sketches in all layers

  // Selected rows that were on the device already / selected rows.
  double hit_ratio() const {
    return fetch.wanted == 0 ? 0.0 : 1.0 - static_cast<double>(fetch.fetched) / static_cast<double>(fetch.wanted);
  }

  // Sum over the layers that select: for selected_ratio and extra_ratio.
  LayerKvStats Selecting() const;
  // Sum over all layers: for attended_ratio.
  LayerKvStats All() const;
  // Reduces `layers` to two: the sum of those that select, and the sum of the others.
  void AddUpLayers();
  // The difference to an earlier snapshot of the same run.
  KvStats operator-(const KvStats& before) const;
  // Adds the counts of another run of the same model. Adding to empty stats copies `other`.
  void Add(const KvStats& other);
};

// Mean and percentile of the covered shares; 0 when nothing was measured.
double MeanShare(const MassTotals& mass);
double SharePercentile(const MassTotals& mass, double percent);

}  // namespace infinigen
