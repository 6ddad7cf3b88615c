// One layer's cache for every sequence slot: what eviction keeps in step. Sketches and eviction state may be missing.
#pragma once

#include "kv/retain_view.h"
#include "kv/sketch_view.h"
#include "kv/view.h"

namespace infinigen {

struct LayerCache {
  LayerEntries entries;
  LayerSketches sketches;
  EvictionState retained;
};

}  // namespace infinigen
