// What a run attended to, per layer and in all. Ratios are sums over decode steps (docs/heart.md).
#pragma once

#include <cstdint>
#include <vector>

#include "kv/selection_view.h"

namespace infinigen {

struct LayerKvStats {
  bool selects = false;
  SelectionTotals totals;  // of a dense layer: everything retained is attended, nothing is chosen
  MassTotals mass;         // empty unless measured
};

struct KvStats {
  std::vector<LayerKvStats> layers;
  int64_t steps = 0;
  uint64_t read_bytes = 0;    // of entries that attention read from the pool in decode steps
  uint64_t sketch_bytes = 0;  // of the sketches that exist, now

  // Chosen by threshold and cap / retained, in the layers that select; 1 when none does.
  double selected_ratio() const {
    const SelectionTotals all = Sum(true);
    return all.retained == 0 ? 1.0 : static_cast<double>(all.chosen) / static_cast<double>(all.retained);
  }
  // Sinks, window and current token that were not chosen anyway / retained, in the layers that select.
  double extra_ratio() const {
    const SelectionTotals all = Sum(true);
    return all.retained == 0 ? 0.0 : static_cast<double>(all.attended - all.chosen) / static_cast<double>(all.retained);
  }
  // Everything attended / tokens so far, all layers. Nothing is evicted, so tokens so far are the retained ones.
  double attended_ratio() const {
    SelectionTotals all = Sum(true);
    const SelectionTotals dense = Sum(false);
    all.attended += dense.attended;
    all.retained += dense.retained;
    return all.retained == 0 ? 1.0 : static_cast<double>(all.attended) / static_cast<double>(all.retained);
  }

 private:
  SelectionTotals Sum(bool selecting) const {
    SelectionTotals sum;
    for (const LayerKvStats& layer : layers) {
      if (layer.selects != selecting) continue;
      sum.chosen += layer.totals.chosen;
      sum.attended += layer.totals.attended;
      sum.retained += layer.totals.retained;
    }
    return sum;
  }
};

}  // namespace infinigen
