// What the device counted of selections and fetches, brought to the host and added up: the numbers of `kv_stats`.
// Called by CacheAttention only, between steps.
#pragma once

#include <vector>

#include "backend/backend.h"
#include "kv/stats.h"
#include "model/workspace.h"

namespace infinigen {

// Steps, and rows of one KV head in one layer.
struct StepCounts {
  int64_t steps = 0;
  uint64_t seen = 0;      // Σ tokens so far, over all tokens of steps
  uint64_t retained = 0;  // the same in a layer that evicts
  uint64_t evicted = 0;   // in prefills and steps

  void Add(const StepCounts& other) {
    steps += other.steps;
    seen += other.seen;
    retained += other.retained;
    evicted += other.evicted;
  }
};

template <Backend B>
class KvCounts {
 public:
  // All outlive it.
  KvCounts(B& backend, const WorkspaceShape& shape, const Workspace& work, const Pool& pool)
      : backend_(backend), shape_(shape), config_(shape.config), method_(shape.method), work_(work), pool_(pool) {}

  // Of all sequences so far. The host waits.
  KvStats All(const StepCounts& counts) {
    KvStats stats = Sum(counts, 0, shape_.pool.max_sequences);
    const std::vector<MassTotals> mass = Fetch(work_.mass, config_.layers);
    for (size_t layer = 0; layer < mass.size(); ++layer) stats.layers[layer].mass = mass[layer];
    for (const FetchClock& clock : Fetch(work_.clocks, config_.layers)) stats.stall_ns += clock.waited_ns;
    return stats;
  }
  // Of those that had the slot, layers added up; mass and waiting are not counted by sequence.
  KvStats Of(const StepCounts& counts, SeqSlot slot) {
    KvStats stats = Sum(counts, slot.value(), slot.value() + 1);
    stats.AddUpLayers();
    return stats;
  }

 private:
  // Of slots [begin, end).
  KvStats Sum(const StepCounts& counts, int64_t begin, int64_t end) {
    const EntryLayout& layout = pool_.options().layout;
    const auto heads = static_cast<uint64_t>(shape_.owned.kv_heads);
    KvStats stats;
    stats.steps = counts.steps;
    stats.entry_row_bytes = static_cast<uint64_t>(config_.layers) * layout.row_bytes();
    stats.sketch_row_bytes = shape_.index().token_bytes();
    stats.evicted = counts.evicted * static_cast<uint64_t>(pool_.options().evicting_layers()) * heads;
    stats.layers.resize(static_cast<size_t>(config_.layers));
    const int64_t sequences = shape_.pool.max_sequences;
    const auto totals = Fetch(work_.totals, config_.layers * sequences);
    const auto fetches = Fetch(work_.fetch_totals, config_.layers * sequences);
    const auto add_slots = [&](const auto& all, LayerId layer, auto& sum) {
      for (int64_t slot = begin; slot < end; ++slot)
        sum.Add(all[static_cast<size_t>(layer.value() * sequences + slot)]);
    };
    for (LayerId layer : IdRange<LayerId>(config_.layers)) {
      LayerKvStats& of = stats.layers[layer.index()];
      of.selects = method_.selects(layer);
      if (of.selects)
        add_slots(totals, layer, of.totals);
      else
        of.totals.attended = of.totals.retained = (method_.evicts(layer) ? counts.retained : counts.seen) * heads;
      of.seen = counts.seen * heads;
      stats.read_bytes += of.totals.attended * layout.entry_bytes();
      const bool on_device = shape_.remote && layer.value() < pool_.options().device_layers;
      if (shape_.fetches && of.selects) {
        stats.fetches = true;
        add_slots(fetches, layer, stats.fetch);
      } else if (!on_device) {
        stats.fetched_bytes += of.totals.attended * layout.entry_bytes();
      }
    }
    if (shape_.hot_rows > 0) stats.hot_bytes = shape_.fetch_bytes();
    stats.fetched_bytes += stats.fetch.fetched * layout.entry_bytes();
    return stats;
  }

  // Empty where there is none.
  template <class T>
  std::vector<T> Fetch(const T* from, int64_t count) {
    if (from == nullptr) return {};
    std::vector<T> host(static_cast<size_t>(count));
    backend_.Synchronize(backend_.Download(Queue::kCompute, from, host.size() * sizeof(T), host.data()));
    return host;
  }

  B& backend_;
  const WorkspaceShape& shape_;
  const ModelConfig& config_;
  const KvMethod& method_;
  const Workspace& work_;
  const Pool& pool_;
};

}  // namespace infinigen
