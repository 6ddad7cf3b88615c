// IndexOps: maps a selection method (kv/select.h) to the backend operations that append to its index and select rows by
// it. A new method adds one line to the table and the functions that the line names. Called by CacheAttention only.
#pragma once

#include <algorithm>

#include "backend/backend.h"
#include "base/check.h"
#include "kv/select.h"
#include "model/layer_views.h"
#include "model/workspace.h"

namespace infinigen {

template <Backend B>
class IndexOps {
 public:
  // All arguments outlive the object.
  IndexOps(B& backend, const SelectMethod& method, const Workspace& work, const LayerViews& views)
      : backend_(backend), work_(work), views_(views), ops_(Find(method)) {}

  // Appends the keys and values [count][kv_heads·head_dim] of the batch to the layer's own index, or to `index`.
  void Append(LayerId layer, const TokenBatch& batch, const Tensor& keys, const Tensor& values) {
    Append(layer, batch, keys, values, views_.Index(layer));
  }
  void Append(LayerId layer, const TokenBatch& batch, const Tensor& keys, const Tensor& values,
              const LayerIndex& index) {
    (this->*ops_->append)(layer, batch, keys, index);
    if (const TailView tail = views_.TailOf(layer))
      backend_.AppendValueSketches(Queue::kCompute, batch, values, tail.basis, views_.Sketches(index));
  }

  // Appends the means of the blocks that the batch completes, whose entries are appended.
  void AppendMeans(LayerId layer, const TokenBatch& batch, const LayerEntries& entries) {
    if (const TailView tail = views_.TailOf(layer); tail.mean_dims > 0)
      backend_.AppendBlockMeans(Queue::kCompute, batch, entries, tail.basis, views_.Sketches(views_.Index(layer)));
  }

  // Selects the rows of `cache` that each token attends to, by queries [count][heads·head_dim]. With call.tail, which
  // requires the layer's own queries, also computes the tails of the selections.
  void Select(LayerId layer, const TokenBatch& batch, const SelectCall& call, const Tensor& queries,
              const AttentionShape& attention, const LayerCache& cache, const Selection& selection) {
    (this->*ops_->select)(layer, batch, call, queries, attention, cache, selection);
  }

  // Computes the tails of selections that other queries have made, by the layer's own queries.
  void SumTails(LayerId layer, const TokenBatch& batch, const SelectCall& call, const Tensor& queries,
                const AttentionShape& attention, const LayerCache& cache, const Selection& selection) {
    backend_.SumTails(Queue::kCompute, SketchesOf(layer, batch, call, queries, attention), batch, call, cache.sketches,
                      selection);
  }

 private:
  struct MethodOps {
    const SelectMethod* method;
    void (IndexOps::*append)(LayerId, const TokenBatch&, const Tensor&, const LayerIndex&);
    void (IndexOps::*select)(LayerId, const TokenBatch&, const SelectCall&, const Tensor&, const AttentionShape&,
                             const LayerCache&, const Selection&);
  };
  static const MethodOps* Find(const SelectMethod& method) {
    static constexpr MethodOps kMethods[] = {
        {&kSelectAll, nullptr, nullptr},
        {&kSelectSketch, &IndexOps::AppendSketches, &IndexOps::SelectBySketch},
        {&kSelectQuest, &IndexOps::AppendBounds, &IndexOps::SelectByBounds},
        {&kSelectPageMean, &IndexOps::AppendPageSums, &IndexOps::SelectByPageMeans},
        {&kSelectOracle, nullptr, &IndexOps::SelectByKeys},
    };
    const auto* found = std::find_if(std::begin(kMethods), std::end(kMethods),
                                     [&](const MethodOps& ops) { return ops.method == &method; });
    CHECK(found != std::end(kMethods));
    return found;
  }

  void AppendSketches(LayerId layer, const TokenBatch& batch, const Tensor& keys, const LayerIndex& index) {
    backend_.AppendSketches(Queue::kCompute, batch, keys, views_.Basis(layer), views_.Sketches(index));
  }
  void SelectBySketch(LayerId layer, const TokenBatch& batch, const SelectCall& call, const Tensor& queries,
                      const AttentionShape& attention, const LayerCache& cache, const Selection& selection) {
    backend_.Select(Queue::kCompute, SketchesOf(layer, batch, call, queries, attention), batch, call, cache.sketches,
                    selection);
  }
  // The sketches of queries, and their levels if a tail needs them.
  Tensor SketchesOf(LayerId layer, const TokenBatch& batch, const SelectCall& call, const Tensor& queries,
                    const AttentionShape& attention) {
    const Tensor sketches = work_.sketch_q.Rows(0, batch.count);
    backend_.SketchQueries(Queue::kCompute, queries, batch, attention, views_.Basis(layer), sketches);
    if (call.tail) backend_.QueryLevels(Queue::kCompute, queries, batch, attention, call.tail);
    return sketches;
  }

  void AppendBounds(LayerId, const TokenBatch& batch, const Tensor& keys, const LayerIndex& index) {
    backend_.AppendBounds(Queue::kCompute, batch, keys, views_.Bounds(index));
  }
  void SelectByBounds(LayerId layer, const TokenBatch& batch, const SelectCall& call, const Tensor& queries,
                      const AttentionShape& attention, const LayerCache&, const Selection& selection) {
    backend_.SelectPages(Queue::kCompute, queries, batch, call, attention, views_.Bounds(views_.Index(layer)),
                         selection);
  }

  void AppendPageSums(LayerId, const TokenBatch& batch, const Tensor& keys, const LayerIndex& index) {
    backend_.AppendPageSums(Queue::kCompute, batch, keys, views_.PageSums(index));
  }
  void SelectByPageMeans(LayerId layer, const TokenBatch& batch, const SelectCall& call, const Tensor& queries,
                         const AttentionShape& attention, const LayerCache&, const Selection& selection) {
    backend_.SelectPageMeans(Queue::kCompute, queries, batch, call, attention, views_.PageSums(views_.Index(layer)),
                             selection);
  }

  void SelectByKeys(LayerId, const TokenBatch& batch, const SelectCall& call, const Tensor& queries,
                    const AttentionShape& attention, const LayerCache& cache, const Selection& selection) {
    Tensor in_entry_basis = queries;
    if (cache.entries.layout.turned()) {
      in_entry_basis = work_.turned_select.Rows(0, queries.rows);
      backend_.TurnHeads(Queue::kCompute, queries, cache.entries.layout.head_dim, in_entry_basis);
    }
    backend_.SelectExact(Queue::kCompute, in_entry_basis, batch, call, attention, cache.entries, selection);
  }

  B& backend_;
  const Workspace& work_;
  const LayerViews& views_;
  const MethodOps* ops_;
};

}  // namespace infinigen
