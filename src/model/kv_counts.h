// What the device counted of selections and fetches, brought to the host and added up: the numbers of `kv_stats`.
// Called by CacheAttention only, between steps.
#pragma once

#include <vector>

#include "backend/backend.h"
#include "kv/stats.h"
#include "model/layer_places.h"

namespace infinigen {

template <Backend B>
class KvCounts {
 public:
  // All outlive it.
  KvCounts(B& backend, const WorkspaceShape& shape, const Workspace& work, const Pool& pool, const LayerPlaces& at)
      : backend_(backend),
        shape_(shape),
        config_(shape.config),
        method_(shape.method),
        work_(work),
        pool_(pool),
        at_(at) {}

  // Counts of steps so far; `kept` are the rows of `seen` tokens that layers that evict had. The host waits.
  KvStats At(int64_t steps, uint64_t seen, uint64_t kept) {
    KvStats stats;
    stats.steps = steps;
    stats.entry_row_bytes = static_cast<uint64_t>(config_.layers) * pool_.options().layout.row_bytes();
    stats.sketch_row_bytes = static_cast<uint64_t>(shape_.sketch_layers() * config_.kv_heads) *
                             shape_.sketch_layout().block_bytes() / kSketchBlock;
    if (method_.select == SelectKind::kQuest)
      stats.sketch_row_bytes = static_cast<uint64_t>(shape_.bounds_layers() * config_.kv_heads) *
                               shape_.bounds_layout().page_bytes() / kPageRows;
    stats.layers.resize(static_cast<size_t>(config_.layers));
    for (LayerId layer : IdRange<LayerId>(config_.layers)) {
      LayerKvStats& of = stats.layers[layer.index()];
      of.selects = method_.selects(layer);
      if (of.selects) {
        Collect(layer, of);
      } else {
        of.totals.attended = of.totals.retained =
            (method_.evicts(layer) ? kept : seen) * static_cast<uint64_t>(config_.kv_heads);
      }
      of.seen = seen * static_cast<uint64_t>(config_.kv_heads);
      stats.read_bytes += of.totals.attended * pool_.options().layout.entry_bytes();
      if (at_.fetches(layer))
        CollectNear(layer, stats);
      else if (at_.far(layer) || !at_.remote())
        stats.fetched_bytes += of.totals.attended * pool_.options().layout.entry_bytes();
    }
    if (method_.hot_rows > 0) stats.hot_bytes = shape_.near_bytes();
    stats.fetched_bytes += stats.near.fetched * pool_.options().layout.entry_bytes();
    return stats;
  }

 private:
  void Collect(LayerId layer, LayerKvStats& of) {
    std::vector<SelectionTotals> totals(static_cast<size_t>(shape_.pool.max_sequences));
    const SelectionTotals* place = work_.totals + layer.index() * totals.size();
    backend_.Synchronize(
        backend_.Download(Queue::kCompute, place, totals.size() * sizeof(SelectionTotals), totals.data()));
    for (const SelectionTotals& slot : totals) {
      of.totals.chosen += slot.chosen;
      of.totals.attended += slot.attended;
      of.totals.retained += slot.retained;
    }
    if (method_.measure_mass)
      backend_.Synchronize(
          backend_.Download(Queue::kCompute, work_.mass + layer.value(), sizeof(MassTotals), &of.mass));
  }

  void CollectNear(LayerId layer, KvStats& stats) {
    std::vector<NearTotals> totals(static_cast<size_t>(shape_.pool.max_sequences));
    const NearTotals* place = work_.near_totals + layer.index() * totals.size();
    backend_.Synchronize(backend_.Download(Queue::kCompute, place, totals.size() * sizeof(NearTotals), totals.data()));
    stats.fetches = true;
    for (const NearTotals& slot : totals) {
      stats.near.wanted += slot.wanted;
      stats.near.fetched += slot.fetched;
    }
  }

  B& backend_;
  const WorkspaceShape& shape_;
  const ModelConfig& config_;
  const KvMethod& method_;
  const Workspace& work_;
  const Pool& pool_;
  const LayerPlaces& at_;
};

}  // namespace infinigen
