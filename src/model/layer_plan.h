// LayerPlan: what one layer does with the cache, decided once per executor for each kind of pass, so that nothing is
// left to decide while a step runs. The decoder and CacheAttention read these fields and nothing else about the method.
#pragma once

#include <cstdint>
#include <vector>

#include "kv/ids.h"
#include "kv/method.h"
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
  kPool,     // in the pool, in place
  kStage,    // on the device, where the whole layer is copied
  kFetched,  // on the device, where the selected entries are copied
};

// When a layer starts to select, and to fetch, for the layer after it.
enum class SelectNext : uint8_t {
  kNever,            // the next layer selects for itself
  kBeforeAttention,  // by the input of this layer's attention: fetching overlaps this layer's own wait
  kAfterAttention,   // by the residual stream after this layer's attention: fetching overlaps the MLP
};

struct LayerPlan {
  LayerId layer;
  const LayerSpec* spec = nullptr;
  bool selects = false;    // attends to selected rows; else to every retained row
  bool evicts = false;     // retains a quota of rows, so that a new entry may replace an old one
  bool has_index = false;  // new keys are added to the selection method's index
  EntrySource entries = EntrySource::kPool;
  GuessSource query = GuessSource::kSelf;  // the query that selects rows
  bool ahead = false;                      // the layer before has selected, and its fetch is under way
  bool leaves_guess = false;               // it leaves the input of the next layer's guess
  SelectNext select_next = SelectNext::kNever;

  // The current token's key is in the index when rows are selected: a guess is made before the key is known.
  bool knows_current() const { return query == GuessSource::kSelf; }
};

// One plan for each layer.
std::vector<LayerPlan> PlanLayers(const WorkspaceShape& shape, Pass pass);

}  // namespace infinigen
