// What a run attended to, per layer and in all. Ratios are sums over decode steps (docs/heart.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kv/fetch_view.h"
#include "kv/selection_view.h"

namespace infinigen {

struct LayerKvStats {
  bool selects = false;
  SelectionTotals totals;  // of a dense layer: everything retained is attended, nothing is chosen
  uint64_t seen = 0;       // tokens so far, evicted ones included; counted as retained rows are
  MassTotals mass;         // empty unless measured

  // Chosen by threshold and cap / retained; of a dense layer 1.
  double selected_ratio() const { return selects ? Share(totals.chosen) : 1.0; }
  // Sinks, window and current token that were not chosen anyway / retained.
  double extra_ratio() const { return selects ? Share(totals.attended - totals.chosen) : 0.0; }
  // Everything attended / tokens so far.
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
  uint64_t evicted = 0;           // entries that made room for others, in prefills and steps
  uint64_t read_bytes = 0;        // of entries that attention read in decode steps
  FetchTotals fetch;              // of layers whose selected entries are fetched
  bool fetches = false;           // there are such
  uint64_t hot_bytes = 0;         // of the hot set
  uint64_t fetched_bytes = 0;     // that came from the pool to where attention reads
  uint64_t stall_ns = 0;          // that steps waited for them, of all sequences; 0 where they are read in place
  uint64_t entry_row_bytes = 0;   // one token's entries in all layers
  uint64_t sketch_row_bytes = 0;  // one token's sketches in all layers

  // Of the rows that were wanted near, those that were there.
  double hit_ratio() const {
    return fetch.wanted == 0 ? 0.0 : 1.0 - static_cast<double>(fetch.fetched) / static_cast<double>(fetch.wanted);
  }

  // selected_ratio and extra_ratio of all layers that select, taken together.
  LayerKvStats Selecting() const;
  // attended_ratio of all layers.
  LayerKvStats All() const;
  // From here on there are two layers: all that select, and the others.
  void AddUpLayers();
  // What came since `before`, earlier of the same run.
  KvStats operator-(const KvStats& before) const;
  // And what another run of the same model did; nothing and something is that.
  void Add(const KvStats& other);
};

// The mean share, and the share below which `percent` of all lie. Both 0 when nothing was measured.
double MeanShare(const MassTotals& mass);
double SharePercentile(const MassTotals& mass, double percent);

}  // namespace infinigen
