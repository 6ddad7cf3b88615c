// A KV method: which entries are retained, which of them a step attends to, how they are stored. Three independent
// choices (docs/heart.md); the presets of the command line are points in this space. Made once per run, when model and
// memory are known (runtime/plan.h), and never changed after that.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

#include "kv/ids.h"
#include "kv/index.h"
#include "kv/retain.h"
#include "kv/select.h"
#include "kv/selection_view.h"
#include "kv/sketch_view.h"

namespace infinigen {

// The query that is compared with the index of layer i.
enum class GuessSource : uint8_t {
  kSelf,       // layer i's own: no guess; right where fetching needs no hiding
  kPrevLayer,  // the attention input of layer i-1 through layer i's query weight
  kPrevMid,    // the residual stream after layer i-1's attention, with layer i's norm and query weight
  kPrevStep,   // layer i's query of the previous step, rotated to the current position
};

// From keys to sketches; docs/skew.md.
enum class ProjectionKind : uint8_t { kRotation, kPair, kNone };

std::string_view Name(GuessSource source);
std::string_view Name(ProjectionKind kind);
std::string_view Name(SketchType type);

struct KvMethod {
  std::string_view preset = "full";  // the name that the user knows; a literal
  const SelectMethod* select = &kSelectAll;
  GuessSource from = GuessSource::kSelf;
  SelectRule rule;
  double largest_cap = 0;    // the largest cap that a single sequence may ask for; rule.cap where that is more
  bool mean_counts = false;  // all heads of a sequence choose the mean of their counts (published)
  int64_t dense_layers = 0;  // the first layers, which attend to everything and never evict
  SketchType sketch_type = SketchType::kInt8;
  double ratio = 0;         // sketch size as a share of head_dim, as asked for
  int64_t sketch_dims = 0;  // numbers of a sketch
  ProjectionKind projection = ProjectionKind::kNone;
  bool prompt_columns = false;  // each prompt chooses its own sketch columns
  bool measure_mass = false;
  const RetainPolicy* retain = nullptr;  // which entries a full cache evicts; null: everything is retained
  RetainLimit limit;                     // rows that an evicting layer retains

  bool selects() const { return select != &kSelectAll; }
  bool selects(LayerId layer) const { return selects() && layer.value() >= dense_layers; }
  bool has_index() const { return select->index != nullptr; }
  bool has_index(LayerId layer) const { return has_index() && layer.value() >= dense_layers; }
  bool evicts() const { return retain != nullptr; }
  bool evicts(LayerId layer) const { return evicts() && layer.value() >= dense_layers; }
  double LargestCap() const { return std::max(rule.cap, largest_cap); }
  RetainRule retain_rule() const { return {retain->on_append, retain->on_select, retain->sums_attention, rule.sinks}; }
  // Whether layer i's selection is computed from something that layer i-1 leaves behind.
  bool guesses_from_layer() const { return from == GuessSource::kPrevLayer || from == GuessSource::kPrevMid; }
};

// The row quotas of a method that evicts. `sequences` run at once; they share a limit in bytes unless the limit names
// another number.
QuotaRule QuotasOf(const KvMethod& method, const EntryLayout& layout, int64_t layers, int64_t sequences);

// The basis of one layer's sketches in host memory; SketchBasis says what the matrices do.
struct SketchMatrices {
  std::vector<float> query;       // [kv_heads][head_dim][dims]
  std::vector<float> key;         // [kv_heads][head_dim][dims]
  std::vector<float> key_offset;  // [kv_heads][dims]
};

}  // namespace infinigen
