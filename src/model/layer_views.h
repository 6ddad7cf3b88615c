// LayerViews: each layer's part of the cache as views: entries, index, eviction state, fetch buffer and selections. It
// only computes addresses on the compute device; it owns nothing.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kv/method.h"
#include "kv/pool.h"
#include "kv/selection_view.h"
#include "model/config.h"
#include "model/workspace.h"

namespace infinigen {

class LayerViews {
 public:
  // All arguments outlive the object.
  LayerViews(const WorkspaceShape& shape, const Workspace& work, const Pool& pool)
      : shape_(shape), config_(shape.config), method_(shape.method), index_(shape.index()), work_(work), pool_(pool) {
    for (int64_t layer = 0; layer < config_.layers; ++layer) method_layers_.push_back(shape.method_layers(layer));
  }

  // Memory that is allocated after construction: the index [IndexGeometry::total_bytes], and the fetch buffers
  // [fetch_layers] of {data, holds, used, cell_of}.
  void SetIndex(std::byte* memory) { index_memory_ = memory; }
  void SetFetchBuffers(std::byte* memory) { fetch_memory_ = memory; }

  LayerEntries Entries(LayerId layer) const {
    const PoolOptions& pool = pool_.options();
    return {.layout = pool.layout,
            .extents = work_.tables + layer.value() * pool.max_sequences * pool.extents_per_slot(),
            .extents_per_slot = pool.extents_per_slot(),
            .quotas = shape_.has_window(layer) ? work_.window_quotas
                      : shape_.evicts(layer)   ? work_.retained_quotas
                                               : work_.quotas};
  }
  EvictionState Retained(LayerId layer) const {
    if (!shape_.evicts(layer)) return {};
    EvictionState state = work_.eviction;
    const int64_t before = method_layers_[layer.index()] * shape_.pool.max_sequences * state.kv_heads * state.capacity;
    state.positions += before;
    state.priorities += before;
    return state;
  }
  LayerCache Cache(LayerId layer) const {
    const bool sketches = shape_.has_index(layer) && method_.select->uses_basis;
    return {Entries(layer), sketches ? Sketches(Index(layer)) : LayerSketches(), Retained(layer)};
  }
  // A step's tokens with their rows in layers that evict.
  TokenBatch EvictingBatch(const TokenBatch& batch) const {
    TokenBatch evicting = batch;
    evicting.positions = batch.rows;
    evicting.rows = work_.retained_rows;
    evicting.own_rows = work_.own_rows;
    evicting.kv_heads = shape_.owned.kv_heads;
    return evicting;
  }

  LayerIndex Index(LayerId layer) const {
    return index_.Layer(index_memory_, static_cast<int64_t>(SelectingIndex(layer)));
  }
  LayerSketches Sketches(const LayerIndex& index) const {
    return {.layout = shape_.sketch_layout(),
            .data = index.data,
            .head_stride = index.head_stride,
            .slot_stride = index.slot_stride};
  }

  // Calls visit(address, i) for the index of an extent's rows; i counts [index layers][kv_heads].
  template <class Visit>
  void ForIndexOf(SeqSlot slot, int64_t extent, Visit visit) const {
    size_t i = 0;
    for (LayerId layer : IdRange<LayerId>(config_.layers)) {
      if (!shape_.has_index(layer)) continue;
      for (int64_t head = 0; head < shape_.owned.kv_heads; ++head)
        visit(Index(layer).Head(slot.value(), head) + static_cast<size_t>(extent) * index_.head_extent_bytes(), i++);
    }
  }

  LayerPageBounds Bounds(const LayerIndex& index) const {
    return {.layout = {.kv_heads = shape_.owned.kv_heads, .head_dim = config_.head_dim},
            .data = index.data,
            .head_stride = index.head_stride,
            .slot_stride = index.slot_stride};
  }

  LayerPageSums PageSums(const LayerIndex& index) const {
    return {.layout = {.kv_heads = shape_.owned.kv_heads, .head_dim = config_.head_dim}, .index = index};
  }

  SketchBasis Basis(LayerId layer) const {
    const int64_t slots = method_.prompt_columns ? shape_.pool.max_sequences : 1;
    const int64_t matrix = slots * shape_.owned.kv_heads * config_.head_dim * method_.sketch.dims;
    const int64_t offset = slots * shape_.owned.kv_heads * method_.sketch.dims;
    const float* query = work_.basis + static_cast<int64_t>(SelectingIndex(layer)) * (2 * matrix + offset);
    return {.kv_heads = shape_.owned.kv_heads,
            .head_dim = config_.head_dim,
            .dims = method_.sketch.dims,
            .query = query,
            .key = query + matrix,
            .key_offset = query + 2 * matrix,
            .per_slot = method_.prompt_columns};
  }

  // The tails of a layer's selections; null if the method has none.
  TailView TailOf(LayerId layer) const {
    if (!method_.has_tail()) return {};
    const int64_t heads = shape_.owned.kv_heads, d = config_.head_dim, values = method_.sketch.value_dims;
    const float* key_mean =
        work_.tail_basis + static_cast<int64_t>(SelectingIndex(layer)) * heads * (d * (values + 2) + values);
    return {.basis = {.kv_heads = heads,
                      .head_dim = d,
                      .value_dims = values,
                      .key_mean = key_mean,
                      .value = key_mean + 2 * heads * d,
                      .value_offset = key_mean + heads * d * (values + 2),
                      .value_mean = key_mean + heads * d},
            .heads = shape_.owned.heads,
            .levels = work_.tail_levels,
            .sums = work_.tail_sums,
            .mean_dims = method_.sketch.mean_dims,
            .mass = work_.tail_mass + layer.value()};
  }

  // Consecutive layers alternate between the selections and fetch lists of the workspace, if it has two.
  size_t Turn(LayerId layer) const { return layer.index() % static_cast<size_t>(shape_.selections()); }
  const Selection& Selected(LayerId layer) const { return work_.selection[Turn(layer)]; }
  const FetchList& List(LayerId layer) const { return work_.fetch_lists[Turn(layer)]; }
  // What a layer attends to once its late rows are known; without late rows, its selection.
  const Selection& Attended(LayerId layer) const { return method_.has_late() ? work_.late.all : Selected(layer); }
  const FetchList& AttendedList(LayerId layer) const { return method_.has_late() ? work_.late_list : List(layer); }

  // A layer's fetch buffer: its part of the hot set, or memory that all layers share in turn.
  FetchBuffer Fetched(LayerId layer) const {
    const int64_t lists = shape_.pool.max_sequences * shape_.owned.kv_heads, capacity = shape_.fetch_rows();
    FetchBuffer buffer{.layout = pool_.options().layout, .data = fetch_memory_, .capacity = capacity};
    if (shape_.hot_rows == 0) {
      buffer.data += Turn(layer) * shape_.fetch_layer_bytes();
      return buffer;
    }
    buffer.data += SelectingIndex(layer) * shape_.fetch_layer_bytes();
    buffer.rows = shape_.retained_rows();
    buffer.holds =
        reinterpret_cast<int32_t*>(buffer.data + static_cast<size_t>(lists * capacity) * buffer.layout.entry_bytes());
    buffer.used = buffer.holds + lists * capacity;
    buffer.cell_of = buffer.used + lists * capacity;
    return buffer;
  }

 private:
  // Index of this layer among the layers that the method applies to.
  size_t SelectingIndex(LayerId layer) const { return static_cast<size_t>(method_layers_[layer.index()]); }

  const WorkspaceShape shape_;
  const ModelConfig& config_;
  const KvMethod& method_;
  const IndexGeometry index_;
  const Workspace& work_;
  const Pool& pool_;
  std::vector<int64_t> method_layers_;  // [layers] number of layers before it that the method applies to
  std::byte* index_memory_ = nullptr;
  std::byte* fetch_memory_ = nullptr;
};

}  // namespace infinigen
