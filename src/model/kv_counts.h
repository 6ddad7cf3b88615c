// KvStats from its two sources: StepCounter counts steps and rows on the host; selections, fetches and stalls are
// counted on the device and downloaded by KvCounts. Called by the decoder only, between steps.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "kv/pool.h"
#include "kv/stats.h"
#include "model/executor.h"
#include "model/workspace.h"

namespace infinigen {

// Sums over the tokens of decode steps, for one KV head in one layer.
struct StepCounts {
  int64_t steps = 0;
  uint64_t seen = 0;      // rows that a layer without eviction holds
  uint64_t retained = 0;  // rows that a layer with eviction holds
  uint64_t windowed = 0;  // rows that a layer with a window attends to
  uint64_t evicted = 0;   // rows evicted by prefills and steps

  void Add(const StepCounts& other) {
    steps += other.steps;
    seen += other.seen;
    retained += other.retained;
    windowed += other.windowed;
    evicted += other.evicted;
  }
};

// Counts steps for each slot, over all sequences that had it.
class StepCounter {
 public:
  explicit StepCounter(const Pool& pool)
      : pool_(pool), counts_(static_cast<size_t>(pool.options().max_sequences)) {}  // the pool outlives it

  // A step of several sequences counts once in All(), and once for each of its slots.
  void AddStep(std::span<const StepItem> items) {
    ++steps_;
    for (const StepItem& item : items) AddToken(item.slot, item.row);
  }
  // Tokens of one sequence that attended as in decode steps.
  void AddRun(const TokenRun& run) {
    steps_ += run.count;
    for (int64_t i = 0; i < run.count; ++i) AddToken(run.slot, run.first_row + i);
  }
  // Tokens of a dense prefill: only evictions count.
  void AddPrefill(const TokenRun& run) { AddEvicted(run.slot, run.first_row, run.count); }

  StepCounts All() const {
    StepCounts all;
    for (const StepCounts& counts : counts_) all.Add(counts);
    all.steps = steps_;
    return all;
  }
  const StepCounts& Of(SeqSlot slot) const { return counts_[slot.index()]; }

 private:
  void AddToken(SeqSlot slot, int64_t row) {
    StepCounts& counts = counts_[slot.index()];
    ++counts.steps;
    counts.seen += static_cast<uint64_t>(row) + 1;
    counts.retained += static_cast<uint64_t>(std::min(row + 1, pool_.quota(slot).retained));
    counts.windowed += static_cast<uint64_t>(std::min(row + 1, pool_.options().window));
    AddEvicted(slot, row, 1);
  }
  // Tokens [first, first + count) were appended: each beyond the quota evicts one row.
  void AddEvicted(SeqSlot slot, int64_t first, int64_t count) {
    const int64_t quota = pool_.quota(slot).retained;
    counts_[slot.index()].evicted +=
        static_cast<uint64_t>(std::max<int64_t>(0, first + count - std::max(first, quota)));
  }

  const Pool& pool_;
  int64_t steps_ = 0;
  std::vector<StepCounts> counts_;  // [max_sequences]
};

template <Backend B>
class KvCounts {
 public:
  // All arguments outlive the object.
  KvCounts(B& backend, const WorkspaceShape& shape, const Workspace& work, const Pool& pool)
      : backend_(backend), shape_(shape), config_(shape.config), method_(shape.method), work_(work), pool_(pool) {}

  // The statistics of all sequences so far. The host waits for the device.
  KvStats All(const StepCounts& counts) {
    KvStats stats = Sum(counts, 0, shape_.pool.max_sequences);
    const std::vector<MassTotals> mass = Download(work_.mass, config_.layers);
    for (size_t layer = 0; layer < mass.size(); ++layer) stats.layers[layer].mass = mass[layer];
    const std::vector<MassTotals> tail_mass = Download(work_.tail_mass, config_.layers);
    for (size_t layer = 0; layer < tail_mass.size(); ++layer) stats.layers[layer].tail_mass = tail_mass[layer];
    for (const FetchClock& clock : Download(work_.clocks, config_.layers)) stats.stall_ns += clock.waited_ns;
    return stats;
  }
  // The statistics of the sequences that had the slot, with layers added up. Mass and stalls are not counted per slot.
  KvStats Of(const StepCounts& counts, SeqSlot slot) {
    KvStats stats = Sum(counts, slot.value(), slot.value() + 1);
    stats.AddUpLayers();
    return stats;
  }

 private:
  // The sum over slots [begin, end).
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
    const auto totals = Download(work_.totals, config_.layers * sequences);
    const auto fetches = Download(work_.fetch_totals, config_.layers * sequences);
    const auto add_slots = [&](const auto& all, LayerId layer, auto& sum) {
      for (int64_t slot = begin; slot < end; ++slot)
        sum.Add(all[static_cast<size_t>(layer.value() * sequences + slot)]);
    };
    for (LayerId layer : IdRange<LayerId>(config_.layers)) {
      LayerKvStats& counted = stats.layers[layer.index()];
      counted.selects = shape_.selects(layer);
      if (counted.selects)
        add_slots(totals, layer, counted.totals);
      else
        counted.totals.attended = counted.totals.retained = (shape_.has_window(layer) ? counts.windowed
                                                             : shape_.evicts(layer)   ? counts.retained
                                                                                      : counts.seen) *
                                                            heads;
      counted.seen = counts.seen * heads;
      stats.read_bytes += counted.totals.attended * layout.entry_bytes();
      const bool on_device = shape_.remote && pool_.options().on_device(layer.value());
      if (shape_.fetches && counted.selects) {
        stats.fetches = true;
        add_slots(fetches, layer, stats.fetch);
      } else if (!on_device) {
        stats.fetched_bytes += counted.totals.attended * layout.entry_bytes();
      }
    }
    if (shape_.hot_rows > 0) stats.hot_bytes = shape_.fetch_bytes();
    stats.fetched_bytes += stats.fetch.fetched * layout.entry_bytes();
    return stats;
  }

  // Downloads an array; empty if it does not exist.
  template <class T>
  std::vector<T> Download(const T* from, int64_t count) {
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
