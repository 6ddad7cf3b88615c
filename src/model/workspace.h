// Workspace: the decoder's fixed memory on the compute device, one block that is carved into arrays. The same walk over
// the arrays computes the planned size and the addresses, so a plan always equals the allocation.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "kv/method.h"
#include "kv/pool.h"
#include "kv/retain_view.h"
#include "kv/selection_view.h"
#include "model/config.h"
#include "tensor/view.h"

namespace infinigen {

// Everything that the sizes depend on. Referenced objects outlive it.
struct WorkspaceShape {
  const ModelConfig& config;
  const PoolOptions& pool;
  const KvMethod& method;
  OwnedHeads owned;  // owned.kv_heads = pool.layout.kv_heads
  int64_t max_batch = 1;
  int64_t chunk = 1;  // tokens of a prefill unit
  DType activation = DType::kF32;
  bool remote = false;     // the pool is reached over a link
  bool fetches = false;    // selected entries are fetched
  double forced_hits = 0;  // share of a selection that counts as hits, for benchmarks
  int64_t hot_rows = 0;    // hot-set cells of each (sequence, layer, KV head); 0: no hot set

  // Type of the input of a guess, which is the output of a norm, or the residual stream (f32).
  DType guess_type() const {
    return config.specs.front().norm_placement == NormPlacement::kAfterResidual ? DType::kF32 : activation;
  }
  // What the method does in a layer. A layer with a window attends to all of it, and neither selects nor evicts.
  bool has_window(LayerId layer) const { return config.specs[layer.index()].window > 0; }
  bool selects(LayerId layer) const { return method.selects(layer) && !has_window(layer); }
  bool has_index(LayerId layer) const { return method.has_index(layer) && !has_window(layer); }
  bool evicts(LayerId layer) const { return method.evicts(layer) && !has_window(layer); }
  // Number of layers that the method applies to, neither dense nor with a window, among the first `layers`.
  int64_t method_layers(int64_t layers) const {
    int64_t count = 0;
    for (int64_t i = method.dense_layers; i < layers; ++i) count += has_window(LayerId(i)) ? 0 : 1;
    return count;
  }
  int64_t method_layers() const { return method_layers(config.layers); }

  int64_t query_width() const { return owned.heads * config.head_dim; }
  int64_t key_width() const { return owned.kv_heads * config.head_dim; }

  // The most tokens that any operation processes at once.
  int64_t tokens() const { return std::max(max_batch, chunk); }
  // The most tokens that select at once; a longer run of steps is divided. A list has room for the whole context, so a
  // run takes as many tokens as have lists in kRunListBytes, and at least 8. On a GPU a part of a run is a dozen kernel
  // launches in every layer, and 8 tokens occupy a tenth of the multiprocessors.
  int64_t select_tokens() const {
    constexpr int64_t kRunListBytes = int64_t{32} << 20, kFewest = 8;
    const int64_t lists = selections() + (method.has_late() ? 1 : 0);
    const int64_t token_bytes =
        std::max<int64_t>(1, lists * owned.kv_heads * pool.max_tokens) * int64_t{sizeof(int32_t)};
    const int64_t fitting = std::clamp(kRunListBytes / token_bytes, kFewest, std::max(kFewest, chunk));
    return std::max(max_batch, fitting);
  }
  SketchLayout sketch_layout() const {
    SketchLayout layout = method.sketch;
    layout.kv_heads = owned.kv_heads;
    return layout;
  }
  // The selection method's index; empty if it has none.
  IndexGeometry index() const {
    if (!method.has_index()) return {};
    return {.layout = method.select->index({config.head_dim, method.sketch}),
            .layers = method_layers(),
            .kv_heads = owned.kv_heads,
            .sequences = pool.max_sequences,
            .rows = retained_rows()};
  }
  QuotaRule quotas() const { return QuotasOf(method, pool); }
  // The most rows of a sequence in layers that evict.
  int64_t retained_rows() const { return method.evicts() ? quotas().LargestQuota(pool.max_tokens) : pool.max_tokens; }
  // A prompt gets memory on the stages of a remote pool for the time of its prefill. Not needed where steps read all
  // rows, because sequences then have stage memory permanently, nor for evicting layers, which use a PromptCache.
  bool stages_prompts() const { return remote && method.selects() && (!method.evicts() || method.dense_layers > 0); }
  // The most rows of a sequence on a stage, where steps read all rows of a remote pool.
  int64_t stage_rows() const { return method.evicts() && method.dense_layers == 0 ? retained_rows() : pool.max_tokens; }
  // The most late rows of a (token, KV head).
  int64_t late_rows() const { return method.has_late() ? std::min<int64_t>(method.rule.late, retained_rows()) : 0; }
  // The most rows that a step selects by the method's own rule, late rows included. If a request sets a larger cap, its
  // selections may not fit the fetch buffer; they are then read in the pool.
  int64_t selected_rows() const {
    const SelectRule& rule = method.rule;
    const int64_t n = retained_rows(), page = method.select->page_rows;
    if (rule.force_count > 0) return std::min<int64_t>(n, rule.force_count + page + late_rows());
    const int64_t chosen = std::max<int64_t>(rule.Capped(n), rule.min_rows) + page + late_rows();
    return std::min<int64_t>(n, chosen + rule.sinks + std::max<int64_t>(rule.window, page) + 1);
  }
  // With kPrevLayer a layer's fetch starts while the layer before still uses its own selection, so two are needed.
  bool fetches_early() const { return fetches && method.from == GuessSource::kPrevLayer; }
  int64_t selections() const { return fetches_early() ? 2 : 1; }
  // Cells of each (sequence, KV head) in a fetch buffer, and number of fetch buffers: one for each layer that selects
  // if they are a hot set, otherwise one for each concurrent selection.
  int64_t fetch_rows() const { return hot_rows > 0 ? hot_rows : selected_rows(); }
  int64_t fetch_layers() const { return !fetches ? 0 : hot_rows > 0 ? method_layers() : selections(); }
  // Fetch buffer of one layer, sequence and KV head, including the tables of a hot set.
  size_t fetch_list_bytes() const {
    const size_t tables = hot_rows > 0 ? static_cast<size_t>(2 * fetch_rows() + retained_rows()) * sizeof(int32_t) : 0;
    return static_cast<size_t>(fetch_rows()) * pool.layout.entry_bytes() + tables;
  }
  // Fetch buffer of one layer, padded so that the next layer's is aligned.
  size_t fetch_layer_bytes() const {
    return (static_cast<size_t>(pool.max_sequences * owned.kv_heads) * fetch_list_bytes() + 255) / 256 * 256;
  }
  size_t fetch_bytes() const { return static_cast<size_t>(fetch_layers()) * fetch_layer_bytes(); }
};

struct Workspace {
  // T = shape.tokens(), S = shape.select_tokens(). Tensors have the activation type unless a type is stated.
  Tensor step_residual;  // [max_batch][hidden] f32
  Tensor normed;         // [T][hidden]
  Tensor narrow;         // [T][embed_dim]; only for models with projections
  Tensor branch;         // [T][hidden] f32, output of attention or MLP; only if layers have norms on both sides
  Tensor q;              // [T][heads·head_dim]; owned heads here and below
  Tensor k, v;           // [T][kv_heads·head_dim]
  Tensor mixed;          // [T][heads·head_dim], output of attention
  // Only if entries are turned (kv/turn.h): queries, keys and values, turned.
  Tensor turned_q;       // [T][heads·head_dim]
  Tensor turned_k;       // [T][kv_heads·head_dim]
  Tensor turned_v;       // [T][kv_heads·head_dim]
  Tensor turned_select;  // [T][heads·head_dim], queries that select by entries; only if the method does
  Tensor gate, up;       // [T][ffn]; gate only if some MLP is gated
  Tensor rope;           // [ropes·T][head_dim] f32: cosines and sines, one table after the other; a table whose rotary
                         // dimensions are fewer uses the first columns
  Tensor frequencies;    // [ropes][head_dim/2] f32
  Tensor logits;         // [max(max_batch, kLogitRows)][vocab] f32

  int32_t* ids = nullptr;            // [T]
  int32_t* slots = nullptr;          // [T]
  int32_t* rows = nullptr;           // [T]
  std::byte** tables = nullptr;      // [layers][max_sequences][extents_per_slot]
  int32_t* quotas = nullptr;         // [max_sequences]
  int32_t* window_quotas = nullptr;  // [max_sequences], only if some layer has a window

  // Only if layers evict.
  int32_t* retained_rows = nullptr;      // [T] the last row of each token's cache
  int32_t* retained_quotas = nullptr;    // [max_sequences]
  int32_t* own_rows = nullptr;           // [T][kv_heads]
  int32_t* zeros = nullptr;              // [T] slots in a PromptCache, which has only slot 0
  EvictionState eviction;                // of the first layer that evicts; the next layers' follow
  SelectionTotals* uncounted = nullptr;  // [1] totals of selections outside of steps, which are ignored

  // Only for methods that need them.
  Tensor step_guess;                   // [max_batch][hidden], input of the next layer's guess
  Tensor guess_q;                      // [T][heads·head_dim], the guessed query
  Tensor last_q;                       // [layers·max_sequences][heads·head_dim], unrotated queries of the step before
  Tensor sketch_q;                     // [S][heads·dims] f32
  std::array<Selection, 2> selection;  // of S tokens; the second only if shape.selections() is 2
  std::array<FetchList, 2> fetch_lists;  // of max_batch tokens, if selections are fetched
  FetchTotals* fetch_totals = nullptr;   // [layers][max_sequences], if selections are fetched
  // Only for methods with late rows. Used by one layer at a time, between its tails and its attention.
  LateSelection late;                 // of S tokens
  FetchList late_list;                // of max_batch tokens, if selections are fetched
  FetchClock* clocks = nullptr;       // [layers], if the pool is remote
  SelectRule* rules = nullptr;        // [max_sequences]
  SelectionTotals* totals = nullptr;  // [layers][max_sequences]
  MassTotals* mass = nullptr;         // [layers]
  float* basis = nullptr;             // [index layers] of {query, key, key_offset}, see LayerViews::Basis
  // Only for methods with a tail.
  float* tail_basis = nullptr;      // [index layers] of the arrays of a TailBasis, see LayerViews::TailOf
  float* tail_levels = nullptr;     // [S][heads]
  float* tail_sums = nullptr;       // [S][heads][2 + value_dims + mean_dims]
  MassTotals* tail_mass = nullptr;  // [layers]

  static size_t Bytes(const WorkspaceShape& shape);
  // `base` has Bytes(…) bytes, 64-byte aligned.
  static Workspace Carve(std::byte* base, const WorkspaceShape& shape);
};

// The temporary cache of a prompt in one layer that evicts: one slot with room for the whole prompt. Only the survivors
// are copied to the pool.
struct PromptCache {
  LayerCache cache;
  std::byte* entries = nullptr;   // [tokens] rows, extent after extent
  std::byte** extents = nullptr;  // [extents] the table, written by CacheAttention::OpenPromptCache
  int32_t* quota = nullptr;       // [1]

  LayerIndex index() const { return {cache.sketches.data, cache.sketches.head_stride, cache.sketches.slot_stride}; }

  static size_t Bytes(const WorkspaceShape& shape, int64_t tokens);
  static PromptCache Carve(std::byte* base, const WorkspaceShape& shape, int64_t tokens);
};

}  // namespace infinigen
