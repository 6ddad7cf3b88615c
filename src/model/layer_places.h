// Where each layer's part of the cache lies on the compute device: entries, sketches or bounds, books, the places of
// fetched entries, selections. Addresses only: it owns nothing, moves nothing and asks nobody.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kv/method.h"
#include "kv/near_view.h"
#include "kv/pool.h"
#include "model/config.h"
#include "model/workspace.h"

namespace infinigen {

class LayerPlaces {
 public:
  // All outlive it. `remote`: the compute device reaches the pool over a link.
  LayerPlaces(const WorkspaceShape& shape, const Workspace& work, const Pool& pool, bool remote)
      : shape_(shape),
        config_(shape.config),
        method_(shape.method),
        index_(shape.index()),
        work_(work),
        pool_(pool),
        remote_(remote) {}

  // Memory that is allocated later: the index, index.total_bytes();
  void SetIndex(std::byte* memory) { index_memory_ = memory; }
  // and [near_layers] of data, holds, used, place_of.
  void SetNear(std::byte* near) { near_ = near; }

  bool remote() const { return remote_; }
  bool far(LayerId layer) const { return remote_ && layer.value() >= pool_.options().near_layers; }
  // Selected entries of the layer are fetched in a step, not read where they are.
  bool fetches(LayerId layer) const { return shape_.fetches && method_.selects(layer) && far(layer); }

  LayerEntries Entries(LayerId layer) const {
    const PoolOptions& pool = pool_.options();
    return {.layout = pool.layout,
            .extents = work_.tables + layer.value() * pool.max_sequences * pool.extents_per_slot(),
            .extents_per_slot = pool.extents_per_slot(),
            .quotas = method_.evicts(layer) ? work_.kept_quotas : work_.quotas};
  }
  LayerRetained Retained(LayerId layer) const {
    if (!method_.evicts(layer)) return {};
    LayerRetained books = work_.books;
    const int64_t before =
        (layer.value() - method_.dense_layers) * shape_.pool.max_sequences * books.kv_heads * books.capacity;
    books.positions += before;
    books.marks += before;
    return books;
  }
  LayerCache Cache(LayerId layer) const {
    return {Entries(layer), method_.has_index(layer) ? Sketches(layer) : LayerSketches(), Retained(layer)};
  }
  // A step's tokens as layers that evict see them.
  TokenBatch KeptBatch(const TokenBatch& batch) const {
    TokenBatch kept = batch;
    kept.positions = batch.rows;
    kept.rows = work_.kept_rows;
    kept.places = work_.places;
    kept.kv_heads = shape_.owned.kv_heads;
    return kept;
  }

  LayerIndex Index(LayerId layer) const {
    return index_.Layer(index_memory_, static_cast<int64_t>(SelectingIndex(layer)));
  }
  LayerSketches Sketches(LayerId layer) const {
    const LayerIndex index = Index(layer);
    return {.layout = shape_.sketch_layout(),
            .data = index.data,
            .head_stride = index.head_stride,
            .slot_stride = index.slot_stride};
  }

  // Visits the index of an extent's rows: visit(address, i) for list i of [index layers][kv_heads].
  template <class Visit>
  void ForIndexOf(SeqSlot slot, int64_t extent, Visit visit) const {
    size_t i = 0;
    for (LayerId layer : IdRange<LayerId>(config_.layers)) {
      if (!method_.has_index(layer)) continue;
      for (int64_t head = 0; head < shape_.owned.kv_heads; ++head)
        visit(Index(layer).Head(slot.value(), head) + static_cast<size_t>(extent) * index_.head_extent_bytes(), i++);
    }
  }

  LayerPageBounds Bounds(LayerId layer) const {
    const LayerIndex index = Index(layer);
    return {.layout = {.kv_heads = config_.kv_heads, .head_dim = config_.head_dim},
            .data = index.data,
            .head_stride = index.head_stride,
            .slot_stride = index.slot_stride};
  }

  SketchBasis Basis(LayerId layer) const {
    const int64_t slots = method_.prompt_columns ? shape_.pool.max_sequences : 1;
    const int64_t matrix = slots * shape_.owned.kv_heads * config_.head_dim * method_.sketch_dims;
    const int64_t offset = slots * shape_.owned.kv_heads * method_.sketch_dims;
    const float* query = work_.basis + static_cast<int64_t>(SelectingIndex(layer)) * (2 * matrix + offset);
    return {.kv_heads = shape_.owned.kv_heads,
            .head_dim = config_.head_dim,
            .dims = method_.sketch_dims,
            .query = query,
            .key = query + matrix,
            .key_offset = query + 2 * matrix,
            .per_slot = method_.prompt_columns};
  }

  size_t Turn(LayerId layer) const { return layer.index() % static_cast<size_t>(shape_.selections()); }
  const Selection& Chosen(LayerId layer) const { return work_.selection[Turn(layer)]; }
  const NearList& List(LayerId layer) const { return work_.near[Turn(layer)]; }

  // Where a layer's fetched entries are: places that all layers share in turn, or its part of the hot set.
  NearEntries Places(LayerId layer) const {
    const int64_t lists = shape_.pool.max_sequences * shape_.owned.kv_heads, capacity = shape_.near_rows();
    NearEntries near{.layout = pool_.options().layout, .data = near_, .capacity = capacity};
    if (shape_.hot_rows == 0) {
      near.data += Turn(layer) * shape_.near_layer_bytes();
      return near;
    }
    near.data += SelectingIndex(layer) * shape_.near_layer_bytes();
    near.rows = shape_.kept_rows();
    near.holds =
        reinterpret_cast<int32_t*>(near.data + static_cast<size_t>(lists * capacity) * near.layout.entry_bytes());
    near.used = near.holds + lists * capacity;
    near.place_of = near.used + lists * capacity;
    return near;
  }

 private:
  // Index of this layer among the layers that select.
  size_t SelectingIndex(LayerId layer) const { return static_cast<size_t>(layer.value() - method_.dense_layers); }

  const WorkspaceShape shape_;
  const ModelConfig& config_;
  const KvMethod& method_;
  const IndexGeometry index_;
  const Workspace& work_;
  const Pool& pool_;
  const bool remote_;
  std::byte* index_memory_ = nullptr;
  std::byte* near_ = nullptr;
};

}  // namespace infinigen
