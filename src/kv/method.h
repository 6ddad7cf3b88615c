// A KV method: what is retained, what is selected, how it is stored. Three independent questions (docs/heart.md); the
// presets of the command line are points in this space.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

#include "kv/ids.h"
#include "kv/page_bounds_view.h"
#include "kv/retain.h"
#include "kv/selection_view.h"
#include "kv/sketch_view.h"

namespace infinigen {

enum class SelectKind : uint8_t {
  kAll,     // attend to every entry
  kSketch,  // those whose sketches score well
  kQuest,   // pages whose bounds on their keys score well
  kOracle,  // those whose keys score well: reads every key, for measurement
};

// Which query is compared with the sketches of layer i.
enum class GuessSource : uint8_t {
  kSelf,       // layer i's own: no guess; right where fetching needs no hiding
  kPrevLayer,  // the attention input of layer i-1 through layer i's query weight
  kPrevMid,    // the residual stream after layer i-1's attention, with layer i's norm and query weight
  kPrevStep,   // layer i's query of the previous step, rotated to the current position
};

std::string_view Name(GuessSource source);
std::string_view Name(SketchType type);

struct KvMethod {
  std::string_view preset = "full";  // as the user calls it; a literal
  SelectKind select = SelectKind::kAll;
  GuessSource from = GuessSource::kSelf;
  SelectRule rule;
  double largest_cap = 0;    // that the rule of a single sequence may have; rule.cap where that is more
  bool mean_counts = false;  // one count for all heads of a sequence: their mean (published)
  int64_t dense_layers = 0;  // the first so many layers attend to everything and never evict
  SketchType sketch_type = SketchType::kInt8;
  double ratio = 0;                      // of head_dim, as asked for
  int64_t sketch_dims = 0;               // what it came to
  std::string_view projection = "none";  // how sketches are made, by name; a literal
  bool prompt_columns = false;           // sketch columns chosen by each prompt
  bool measure_mass = false;
  // Of a pool that is not compute memory:
  int64_t hot_rows = 0;    // places of each (sequence, layer, KV head) for entries that stay near; 0: none
  double forced_hits = 0;  // for benchmarks without a hot set: this share is taken to be near already
  const RetainPolicy* retain = nullptr;  // who leaves a full cache; null: nobody, everything is retained
  RetainLimit limit;                     // where somebody has to leave

  bool selects(LayerId layer) const { return select != SelectKind::kAll && layer.value() >= dense_layers; }
  bool has_sketch(LayerId layer) const { return select == SelectKind::kSketch && layer.value() >= dense_layers; }
  bool evicts() const { return retain != nullptr; }
  bool evicts(LayerId layer) const { return evicts() && layer.value() >= dense_layers; }
  double LargestCap() const { return std::max(rule.cap, largest_cap); }
  RetainRule retain_rule() const { return {retain->on_append, retain->on_select, retain->sums_attention, rule.sinks}; }
  // Rows of a sequence that will have so many tokens, in layers that evict; all of them where none does.
  int64_t Quota(int64_t final_tokens) const { return evicts() ? limit.Quota(final_tokens) : final_tokens; }
  bool has_bounds(LayerId layer) const { return select == SelectKind::kQuest && layer.value() >= dense_layers; }
  // Rows that are chosen together.
  int64_t page() const { return select == SelectKind::kQuest ? kPageRows : 1; }
  // Whether a step of layer i reads something that layer i-1 left behind.
  // What reads all keys anyway gains nothing by it.
  bool may_guess() const { return select == SelectKind::kSketch || select == SelectKind::kQuest; }
  bool guesses_from_layer() const { return from == GuessSource::kPrevLayer || from == GuessSource::kPrevMid; }
};

// The basis of one layer's sketches in host memory; see SketchBasis for what the matrices do.
struct SketchMatrices {
  std::vector<float> query;       // [kv_heads][head_dim][dims]
  std::vector<float> key;         // [kv_heads][head_dim][dims]
  std::vector<float> key_offset;  // [kv_heads][dims]
};

}  // namespace infinigen
