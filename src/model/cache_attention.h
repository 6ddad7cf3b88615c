// What attention does with the cache in one layer: the KV method (kv/method.h) composed from backend operations.
//
//   append    new keys and values become entries; in layers that select by sketch, keys become sketches too, and by
//             page they widen their page's bounds
//   prefill   every token attends to all entries before it, whatever the method
//   step      dense layer: attend to everything
//             else: sketch the query (or the guess) → score all sketches, select rows → attend to those rows;
//             pages are scored by the query (or the guess) itself
//
// kv decides (rules, quotas), the backend moves bytes, this puts them in order. It holds the method's memory on the
// compute device: sketches, bases, counters. Called by the decoder only; takes no memory after Start.
#pragma once

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "kv/method.h"
#include "kv/pool.h"
#include "kv/stats.h"
#include "model/config.h"
#include "model/executor.h"
#include "model/workspace.h"

namespace infinigen {

template <Backend B>
class CacheAttention {
 public:
  // All outlive it.
  CacheAttention(B& backend, const WorkspaceShape& shape, const Workspace& work, const Pool& pool)
      : backend_(backend),
        shape_(shape),
        config_(shape.config),
        method_(shape.method),
        work_(work),
        pool_(pool),
        attention_{.heads = config_.heads, .scale = 1.0f / std::sqrt(static_cast<float>(config_.head_dim))} {}

  // `bases` [layers]; those of layers without sketches are not looked at.
  Status Start(std::span<const SketchMatrices> bases) {
    if (method_.select == SelectKind::kAll) return Ok();
    ASSIGN_OR_RETURN(sketch_memory_, Buffer::Make(backend_.compute_memory(), shape_.sketch_bytes()));
    const size_t totals = static_cast<size_t>(config_.layers * shape_.pool.max_sequences);
    Put(std::vector<SelectionTotals>(totals), work_.totals);
    if (method_.measure_mass) Put(std::vector<MassTotals>(static_cast<size_t>(config_.layers)), work_.mass);
    Put(std::vector<SelectRule>(static_cast<size_t>(shape_.pool.max_sequences), method_.rule), work_.rules);
    for (LayerId layer : IdRange<LayerId>(config_.layers)) {
      if (!method_.has_sketch(layer)) continue;
      CHECK(layer.index() < bases.size());
      for (int64_t slot = 0; slot < (method_.prompt_columns ? shape_.pool.max_sequences : 1); ++slot)
        SetBasis(layer, SeqSlot(slot), bases[layer.index()]);
    }
    return Ok();
  }

  void SetBasis(LayerId layer, SeqSlot slot, const SketchMatrices& matrices) {
    const SketchBasis basis = Basis(layer);
    const int64_t at = basis.per_slot ? slot.value() : 0;
    Put(matrices.query, const_cast<float*>(basis.Query(at, 0)));
    Put(matrices.key, const_cast<float*>(basis.Key(at, 0)));
    Put(matrices.key_offset, const_cast<float*>(basis.KeyOffset(at, 0)));
  }

  // Brings tables and quotas to the compute device where they changed. Once per step or unit, before anything else.
  void UploadTables() {
    if (tables_seen_ == pool_.table_version()) return;
    for (LayerId layer : IdRange<LayerId>(config_.layers)) {
      const std::span<std::byte* const> table = pool_.Table(layer);
      backend_.Upload(Queue::kCompute, table.data(), table.size_bytes(), work_.tables + layer.index() * table.size());
    }
    backend_.Upload(Queue::kCompute, pool_.quotas().data(), pool_.quotas().size_bytes(), work_.quotas);
    tables_seen_ = pool_.table_version();
  }

  void AppendEntries(LayerId layer, const TokenBatch& batch, const Tensor& k, const Tensor& v) {
    backend_.Append(Queue::kCompute, batch, k, v, Entries(layer));
  }
  void AppendSketches(LayerId layer, const TokenBatch& batch, const Tensor& k) {
    if (method_.has_sketch(layer)) backend_.AppendSketches(Queue::kCompute, batch, k, Basis(layer), Sketches(layer));
    if (method_.has_bounds(layer)) backend_.AppendBounds(Queue::kCompute, batch, k, Bounds(layer));
  }

  void Prefill(LayerId layer, const TokenRun& run, const Tensor& q, const Tensor& out) {
    backend_.AttendPrefill(Queue::kCompute, q, run, attention_, Entries(layer), out);
  }

  // Every token a decode step; its entries and all before it are there. `guess` are the queries that are compared with
  // the sketches: q itself, or a guess of it.
  void Step(LayerId layer, const TokenBatch& batch, int64_t max_rows, const Tensor& q, const Tensor& guess,
            const Tensor& out) {
    if (!method_.selects(layer)) {
      backend_.AttendDecode(Queue::kCompute, q, batch, max_rows, attention_, Entries(layer), out);
      return;
    }
    for (int64_t first = 0; first < batch.count; first += shape_.select_tokens()) {
      const int64_t count = std::min(shape_.select_tokens(), batch.count - first);
      StepSelecting(layer, batch.Range(first, count), max_rows, q.Rows(first, count), guess.Rows(first, count),
                    out.Rows(first, count));
    }
  }

  void Observe(SelectionObserver observer) { observer_ = std::move(observer); }

  // Counts of steps so far. The host waits.
  KvStats Stats(int64_t steps, uint64_t token_rows) {
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
        of.totals.attended = of.totals.retained = token_rows * static_cast<uint64_t>(config_.kv_heads);
      }
      stats.read_bytes += of.totals.attended * pool_.options().layout.entry_bytes();
    }
    return stats;
  }

 private:
  void StepSelecting(LayerId layer, const TokenBatch& batch, int64_t max_rows, const Tensor& q, const Tensor& guess,
                     const Tensor& out) {
    const Queue queue = Queue::kCompute;
    const SelectCall call{.rules = work_.rules,
                          .totals = work_.totals + layer.value() * shape_.pool.max_sequences,
                          .current_known = method_.from == GuessSource::kSelf,
                          .mean_counts = method_.mean_counts,
                          .max_rows = max_rows,
                          .page = method_.page()};
    if (method_.select == SelectKind::kOracle) {
      backend_.SelectExact(queue, guess, batch, call, attention_, Entries(layer), work_.selection);
    } else if (method_.select == SelectKind::kQuest) {
      backend_.SelectPages(queue, guess, batch, call, attention_, Bounds(layer), work_.selection);
    } else {
      const Tensor sketch_q = work_.sketch_q.Rows(0, batch.count);
      backend_.SketchQueries(queue, guess, batch, attention_, Basis(layer), sketch_q);
      backend_.Select(queue, sketch_q, batch, call, Sketches(layer), work_.selection);
    }
    if (method_.measure_mass)
      backend_.MeasureMass(queue, q, batch, work_.selection, attention_, Entries(layer), work_.mass + layer.value());
    if (observer_) Tell(layer, batch);
    backend_.AttendSelected(queue, q, batch, work_.selection, attention_, Entries(layer), out);
  }

  // The host waits, for every list.
  void Tell(LayerId layer, const TokenBatch& batch) {
    const auto fetch = [&](const int32_t* from, int64_t count) {
      std::vector<int32_t> host(static_cast<size_t>(count));
      backend_.Synchronize(backend_.Download(Queue::kCompute, from, host.size() * sizeof(int32_t), host.data()));
      return host;
    };
    const std::vector<int32_t> slots = fetch(batch.slots, batch.count);
    const std::vector<int32_t> counts = fetch(work_.selection.counts, batch.count * config_.kv_heads);
    for (size_t i = 0; i < counts.size(); ++i) {
      const int64_t token = static_cast<int64_t>(i) / config_.kv_heads,
                    head = static_cast<int64_t>(i) % config_.kv_heads;
      observer_(layer, SeqSlot(slots[static_cast<size_t>(token)]), KvHead(head),
                fetch(work_.selection.Rows(token, head), counts[i]));
    }
  }

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

  LayerEntries Entries(LayerId layer) const {
    const PoolOptions& pool = pool_.options();
    return {.layout = pool.layout,
            .extents = work_.tables + layer.value() * pool.max_sequences * pool.extents_per_slot(),
            .extents_per_slot = pool.extents_per_slot(),
            .quotas = work_.quotas};
  }

  // The how-manieth layer with sketches or bounds.
  size_t SketchIndex(LayerId layer) const { return static_cast<size_t>(layer.value() - method_.dense_layers); }

  LayerSketches Sketches(LayerId layer) const {
    const size_t slot_bytes = shape_.slot_sketch_bytes();
    return {.layout = shape_.sketch_layout(),
            .data = sketch_memory_.data() +
                    SketchIndex(layer) * static_cast<size_t>(shape_.pool.max_sequences) * slot_bytes,
            .head_stride = slot_bytes / static_cast<size_t>(config_.kv_heads),
            .slot_stride = slot_bytes};
  }

  LayerPageBounds Bounds(LayerId layer) const {
    const LayerSketches place = Sketches(layer);
    return {.layout = shape_.bounds_layout(),
            .data = place.data,
            .head_stride = place.head_stride,
            .slot_stride = place.slot_stride};
  }

  SketchBasis Basis(LayerId layer) const {
    const int64_t slots = method_.prompt_columns ? shape_.pool.max_sequences : 1;
    const int64_t matrix = slots * config_.kv_heads * config_.head_dim * method_.sketch_dims;
    const int64_t offset = slots * config_.kv_heads * method_.sketch_dims;
    const float* query = work_.basis + static_cast<int64_t>(SketchIndex(layer)) * (2 * matrix + offset);
    return {.kv_heads = config_.kv_heads,
            .head_dim = config_.head_dim,
            .dims = method_.sketch_dims,
            .query = query,
            .key = query + matrix,
            .key_offset = query + 2 * matrix,
            .per_slot = method_.prompt_columns};
  }

  template <class T>
  void Put(const std::vector<T>& host, T* place) {
    backend_.Upload(Queue::kCompute, host.data(), host.size() * sizeof(T), place);
  }

  B& backend_;
  const WorkspaceShape shape_;
  const ModelConfig& config_;
  const KvMethod& method_;
  const Workspace& work_;
  const Pool& pool_;
  const AttentionShape attention_;
  SelectionObserver observer_;
  Buffer sketch_memory_;  // [sketch_layers][max_sequences][kv_heads][blocks]; of bounds [..][pages]
  uint64_t tables_seen_ = 0;
};

}  // namespace infinigen
