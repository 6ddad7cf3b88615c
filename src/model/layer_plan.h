// LayerPlan: what one layer does with the cache in one kind of pass. Computed once per executor: where
// entries are read, which query selects, and when. The decoder and CacheAttention follow these fields.
#pragma once

#include <cstdint>
#include <vector>

#include "kv/method.h"
#include "kv/view.h"
#include "model/config.h"
#include "model/workspace.h"

namespace infinigen {

// The ways in which tokens go through the layers.
enum class Pass : uint8_t {
  kPrefill,  // a chunk of a prompt: every token attends to all tokens before it
  kRun,      // a chunk of one sequence, each token attending as a decode step would: teacher forcing in bulk
  kStep,     // one token of each sequence of a batch
};

// Where attention reads a layer's entries.
enum class EntrySource : uint8_t {
  kPool,     // in place, in the pool
  kStage,    // on a stage, to which the whole layer is copied
  kFetched,  // in the fetch buffer, to which the selected entries are copied
};

// When a layer selects rows for the next layer and starts to fetch them.
enum class SelectNext : uint8_t {
  kNever,            // the next layer selects its own rows
  kBeforeAttention,  // by a guess from this layer's attention input: the fetch overlaps this layer's attention and MLP
  kAfterAttention,   // by a guess from the residual stream after attention: the fetch overlaps this layer's MLP
};

struct LayerPlan {
  LayerId layer;
  const LayerSpec* spec = nullptr;
  bool selects = false;    // attends to selected rows; false: to every retained row
  bool evicts = false;     // retains at most a quota of rows, so a new entry may replace an old one
  bool has_index = false;  // new keys are appended to the selection method's index
  EntrySource entries = EntrySource::kPool;
  GuessSource query = GuessSource::kSelf;  // the query that selects rows
  bool ahead = false;                      // the layer before selects this layer's rows and starts their fetch
  bool leaves_guess = false;               // stores the input of the next layer's guess
  SelectNext select_next = SelectNext::kNever;

  // The current token's key is in the index when rows are selected. A guess is made before the key is known.
  bool knows_current() const { return query == GuessSource::kSelf; }
};

// One plan for each layer.
std::vector<LayerPlan> PlanLayers(const WorkspaceShape& shape, Pass pass);

}  // namespace infinigen
