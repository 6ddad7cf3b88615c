// The decoder's fixed memory on the compute device: one block, carved once. What a plan prints is what is allocated,
// because both come from the same walk.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "kv/cache_view.h"
#include "kv/fetch_view.h"
#include "kv/method.h"
#include "kv/pool.h"
#include "model/config.h"
#include "tensor/view.h"

namespace infinigen {

// What the sizes follow from.
struct WorkspaceShape {
  const ModelConfig& config;
  const PoolOptions& pool;
  const KvMethod& method;
  OwnedHeads owned;  // pool.layout.kv_heads are its KV heads
  int64_t max_batch = 1;
  int64_t chunk = 1;  // tokens of a prefill unit
  DType activation = DType::kF32;
  bool remote = false;     // the pool is behind a link
  bool fetches = false;    // selected entries are copied to the device
  double forced_hits = 0;  // share of a selection that counts as hits, for benchmarks
  int64_t hot_rows = 0;    // hot-set slots of each (sequence, layer, KV head); 0: no hot set

  // What a layer leaves for the next one's guess: a norm's output, or the residual stream itself.
  DType guess_type() const {
    return config.specs.front().norm_placement == NormPlacement::kBefore ? activation : DType::kF32;
  }
  int64_t query_width() const { return owned.heads * config.head_dim; }
  int64_t key_width() const { return owned.kv_heads * config.head_dim; }

  // Tokens of any call.
  int64_t tokens() const { return std::max(max_batch, chunk); }
  // Tokens whose selections exist at once; a longer run of steps goes in parts.
  int64_t select_tokens() const { return std::max<int64_t>(max_batch, 8); }
  SketchLayout sketch_layout() const {
    return {.type = method.sketch_type, .kv_heads = owned.kv_heads, .dims = method.sketch_dims};
  }
  // What the selection method keeps beside the entries.
  IndexGeometry index() const {
    if (!method.has_index()) return {};
    return {.layout = method.select->index({config.head_dim, method.sketch_type, method.sketch_dims}),
            .layers = std::max<int64_t>(config.layers - method.dense_layers, 0),
            .kv_heads = owned.kv_heads,
            .sequences = pool.max_sequences,
            .rows = retained_rows()};
  }
  QuotaRule quotas() const { return QuotasOf(method, pool.layout, config.layers, pool.max_sequences); }
  // Rows of the longest sequence in layers that evict.
  int64_t retained_rows() const { return method.evicts() ? quotas().LargestQuota(pool.max_tokens) : pool.max_tokens; }
  // A prompt has memory on the stages of a remote pool while it is read. Where steps walk all rows, every sequence has
  // it for good; layers that evict have a stage of another kind.
  bool stages_prompts() const { return remote && method.selects() && (!method.evicts() || method.dense_layers > 0); }
  // Rows of the longest sequence on the stage of a remote pool, where steps walk them all.
  int64_t stage_rows() const { return method.evicts() && method.dense_layers == 0 ? retained_rows() : pool.max_tokens; }
  // Rows that a step attends to at most, in layers that select, by the method's own rule. A sequence whose rule lets it
  // have more reads them where they are.
  int64_t selected_rows() const {
    const SelectRule& rule = method.rule;
    const int64_t n = retained_rows(), page = method.select->page_rows;
    if (rule.force_count > 0) return std::min<int64_t>(n, rule.force_count + page);
    const int64_t chosen = std::max<int64_t>(rule.Capped(n), rule.min_rows) + page;
    return std::min<int64_t>(n, chosen + rule.sinks + std::max<int64_t>(rule.window, page) + 1);
  }
  // Where the guess is what the layer before began with, a layer's entries are on their way while that one still waits
  // for its own: two layers have a selection at once.
  bool fetches_early() const { return fetches && method.from == GuessSource::kPrevLayer; }
  int64_t selections() const { return fetches_early() ? 2 : 1; }
  // Places of each (sequence, KV head) for entries that were fetched: of the layers that need them at once, or of a hot
  // set in every layer.
  int64_t fetch_rows() const { return hot_rows > 0 ? hot_rows : selected_rows(); }
  int64_t fetch_layers() const {
    return !fetches ? 0 : hot_rows > 0 ? std::max<int64_t>(0, config.layers - method.dense_layers) : selections();
  }
  // Of one layer, sequence and KV head, tables included.
  size_t fetch_list_bytes() const {
    const size_t tables = hot_rows > 0 ? static_cast<size_t>(2 * fetch_rows() + retained_rows()) * sizeof(int32_t) : 0;
    return static_cast<size_t>(fetch_rows()) * pool.layout.entry_bytes() + tables;
  }
  // Of one layer; the next one's entries are as well aligned as its own.
  size_t fetch_layer_bytes() const {
    return (static_cast<size_t>(pool.max_sequences * owned.kv_heads) * fetch_list_bytes() + 255) / 256 * 256;
  }
  size_t fetch_bytes() const { return static_cast<size_t>(fetch_layers()) * fetch_layer_bytes(); }
};

struct Workspace {
  // T = shape.tokens(), S = shape.select_tokens(); activation type unless said otherwise.
  Tensor step_residual;  // [max_batch][hidden] f32
  Tensor normed;         // [T][hidden]
  Tensor narrow;         // [T][embed_dim], models with projections only
  Tensor q;              // [T][heads·head_dim], owned heads here and below
  Tensor k, v;           // [T][kv_heads·head_dim]
  Tensor mixed;          // [T][heads·head_dim], attention's output
  Tensor gate, up;       // [T][ffn]; gate only where an MLP is gated
  Tensor rope;           // [ropes·T][head_dim] f32: cosines, sines; one table after the other
  Tensor frequencies;    // [ropes][head_dim/2] f32
  Tensor logits;         // [max(max_batch, kLogitRows)][vocab] f32

  int32_t* ids = nullptr;        // [T]
  int32_t* slots = nullptr;      // [T]
  int32_t* rows = nullptr;       // [T]
  std::byte** tables = nullptr;  // [layers][max_sequences][extents_per_slot]
  int32_t* quotas = nullptr;     // [max_sequences]

  // Only where layers evict.
  int32_t* retained_rows = nullptr;      // [T] the last row of each token's cache
  int32_t* retained_quotas = nullptr;    // [max_sequences]
  int32_t* own_rows = nullptr;           // [T][kv_heads]
  int32_t* zeros = nullptr;              // [T] slots of a stage, which has one
  EvictionState eviction;                // of the first layer that evicts; the others follow
  SelectionTotals* uncounted = nullptr;  // [1] of selections that are no step

  // Only for methods that need them.
  Tensor step_guess;                   // [max_batch][hidden], what the layer before left for the next one's guess
  Tensor guess_q;                      // [T][heads·head_dim], the guessed query
  Tensor last_q;                       // [layers·max_sequences][heads·head_dim], unrotated queries of the step before
  Tensor sketch_q;                     // [S][heads·dims] f32
  std::array<Selection, 2> selection;  // of S tokens; the second only where a shape has two selections
  std::array<FetchList, 2> fetch_lists;  // of the selections, where they are fetched
  FetchTotals* fetch_totals = nullptr;   // [layers][max_sequences], likewise
  FetchClock* clocks = nullptr;          // [layers], where the pool is remote
  SelectRule* rules = nullptr;           // [max_sequences]
  SelectionTotals* totals = nullptr;     // [layers][max_sequences]
  MassTotals* mass = nullptr;            // [layers]
  float* basis = nullptr;                // [sketch_layers][1 or max_sequences] of query, key, key_offset

  static size_t Bytes(const WorkspaceShape& shape);
  // `base` has Bytes(…) bytes, 64-byte aligned.
  static Workspace Carve(std::byte* base, const WorkspaceShape& shape);
};

// Where the prompt of a sequence that evicts lies while one layer is prefilled: a cache of one slot with room for all
// of it. Only survivors enter the pool.
struct PromptCache {
  LayerCache cache;
  std::byte* entries = nullptr;   // [tokens] rows, extent after extent
  std::byte** extents = nullptr;  // the table, still to be written
  int32_t* quota = nullptr;       // [1]

  LayerIndex index() const { return {cache.sketches.data, cache.sketches.head_stride, cache.sketches.slot_stride}; }

  static size_t Bytes(const WorkspaceShape& shape, int64_t tokens);
  static PromptCache Carve(std::byte* base, const WorkspaceShape& shape, int64_t tokens);
};

}  // namespace infinigen
