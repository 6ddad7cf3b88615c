// KvMethod: which entries are retained and which of them a step attends to (docs/heart.md). Presets of the command line
// are named combinations. Resolved once per run, when model and memory are known (runtime/plan.h); immutable after
// that.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

#include "kv/index_view.h"
#include "kv/pool.h"
#include "kv/retain.h"
#include "kv/select.h"
#include "kv/selection_view.h"
#include "kv/view.h"

namespace infinigen {

// The query that is compared with the index of layer i.
enum class GuessSource : uint8_t {
  kSelf,       // layer i's own query: no guess; best where there is no fetch to overlap
  kPrevLayer,  // the attention input of layer i-1, multiplied by layer i's query weight
  kPrevMid,    // the residual stream after layer i-1's attention, with layer i's norm and query weight
  kPrevStep,   // layer i's query of the previous step, rotated to the current position
};

// How keys are projected to sketches; docs/skew.md.
enum class ProjectionKind : uint8_t { kRotation, kPair, kNone };

std::string_view Name(GuessSource source);
std::string_view Name(ProjectionKind kind);
std::string_view Name(SketchType type);

struct KvMethod {
  std::string_view preset = "full";  // name of the preset; a literal
  const SelectMethod* select = &kSelectAll;
  GuessSource from = GuessSource::kSelf;
  SelectRule rule;
  double largest_cap = 0;    // the largest cap that a request may set, if more than rule.cap
  bool mean_counts = false;  // as published: all heads of a sequence choose the mean of their counts
  int64_t dense_layers = 0;  // number of first layers that attend to everything and never evict
  SketchLayout sketch;       // of one KV head: kv_heads is 0
  double ratio = 0;          // numbers of a key's sketch as a share of head_dim
  ProjectionKind projection = ProjectionKind::kNone;
  bool prompt_columns = false;           // each prompt chooses its own sketch columns
  bool measure_mass = false;             // measure the attention mass that selections cover (MassTotals)
  const RetainPolicy* retain = nullptr;  // null: everything is retained
  RetainLimit limit;                     // how much an evicting layer retains

  bool selects() const { return select != &kSelectAll; }
  bool selects(LayerId layer) const { return selects() && layer.value() >= dense_layers; }
  // Values have sketches, so rules may ask for a tail.
  bool has_tail() const { return select->uses_basis && sketch.has_values(); }
  // A guess selects, and rows that it missed are attended to after all.
  bool has_late() const { return has_tail() && rule.LateRows() > 0 && from != GuessSource::kSelf; }
  bool has_index() const { return select->index != nullptr; }
  bool has_index(LayerId layer) const { return has_index() && layer.value() >= dense_layers; }
  bool evicts() const { return retain != nullptr; }
  bool evicts(LayerId layer) const { return evicts() && layer.value() >= dense_layers; }
  double LargestCap() const { return std::max(rule.cap, largest_cap); }
  RetainRule retain_rule() const { return {retain->on_append, retain->on_select, retain->sums_attention, rule.sinks}; }
  // Layer i's selection is computed from activations of layer i-1.
  bool guesses_from_layer() const { return from == GuessSource::kPrevLayer || from == GuessSource::kPrevMid; }
};

// The row quotas of a method that evicts. A limit in bytes is divided among the pool's sequences, unless the limit
// itself states another number.
QuotaRule QuotasOf(const KvMethod& method, const PoolOptions& pool);

// The sketch basis of one layer in host memory; see SketchBasis.
struct SketchMatrices {
  std::vector<float> query;       // [kv_heads][head_dim][dims]
  std::vector<float> key;         // [kv_heads][head_dim][dims]
  std::vector<float> key_offset;  // [kv_heads][dims]
};

// The TailBasis of one layer in host memory; empty without a tail.
struct TailMatrices {
  std::vector<float> key_mean;      // [kv_heads][head_dim]
  std::vector<float> value;         // [kv_heads][head_dim][value_dims]
  std::vector<float> value_offset;  // [kv_heads][value_dims]
  std::vector<float> value_mean;    // [kv_heads][head_dim]
};

}  // namespace infinigen
