// A KV method: what is retained, what is selected, how it is stored. Three independent questions (docs/heart.md); the
// presets of the command line are points in this space. This version retains everything.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "kv/ids.h"
#include "kv/page_bounds_view.h"
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
  bool mean_counts = false;  // one count for all heads of a sequence: their mean (published)
  int64_t dense_layers = 0;  // the first so many layers attend to everything
  SketchType sketch_type = SketchType::kInt8;
  double ratio = 0;                      // of head_dim, as asked for
  int64_t sketch_dims = 0;               // what it came to
  std::string_view projection = "none";  // how sketches are made, by name; a literal
  bool prompt_columns = false;           // sketch columns chosen by each prompt
  bool measure_mass = false;

  bool selects(LayerId layer) const { return select != SelectKind::kAll && layer.value() >= dense_layers; }
  bool has_sketch(LayerId layer) const { return select == SelectKind::kSketch && layer.value() >= dense_layers; }
  bool has_bounds(LayerId layer) const { return select == SelectKind::kQuest && layer.value() >= dense_layers; }
  // Rows that are chosen together.
  int64_t page() const { return select == SelectKind::kQuest ? kPageRows : 1; }
  // Whether a step of layer i reads something that layer i-1 left behind.
  bool guesses_from_layer() const { return from == GuessSource::kPrevLayer || from == GuessSource::kPrevMid; }
};

// The basis of one layer's sketches in host memory; see SketchBasis for what the matrices do.
struct SketchMatrices {
  std::vector<float> query;       // [kv_heads][head_dim][dims]
  std::vector<float> key;         // [kv_heads][head_dim][dims]
  std::vector<float> key_offset;  // [kv_heads][dims]
};

}  // namespace infinigen
