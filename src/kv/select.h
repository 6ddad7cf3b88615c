// Selection methods: how a decode step decides which retained rows it attends to.
//
// A method scores rows by its index (kv/index_view.h); kv/selection.h turns scores into a list of rows, the same way
// for every method. So a method is described by what it keeps of a row and by how its rows may be chosen. Each has a
// file of its own in kv/select/; docs/methods.md shows how to add one. model/index_ops.h is the one place where a
// method meets the backend operations that append to its index and score it.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "kv/index_view.h"
#include "kv/sketch_view.h"

namespace infinigen {

// What the size of an index follows from.
struct IndexShape {
  int64_t head_dim = 0;
  SketchType sketch_type = SketchType::kInt8;
  int64_t sketch_dims = 0;
};

struct SelectMethod {
  std::string_view name;     // as --kv-select takes it
  std::string_view summary;  // for help
  // The index of `shape`; null: the method keeps none.
  IndexLayout (*index)(const IndexShape& shape) = nullptr;
  // Scores need the index and a query, never the keys: then a guessed query can choose a layer's rows ahead of it.
  bool can_guess = false;
  // The index of a single row can be written anew: when its entry is evicted, or when a sequence is rewound.
  bool rewrites_rows = true;
  // Rows that are chosen together, in runs that begin at multiples of it.
  int64_t page_rows = 1;
  // Keys are projected to sketches, by a basis that is calibrated once per model.
  bool uses_basis = false;
};

// kSelectAll attends to every retained row: it chooses nothing and keeps nothing.
extern const SelectMethod kSelectAll, kSelectSketch, kSelectQuest, kSelectPageMean, kSelectOracle;

std::span<const SelectMethod* const> SelectMethods();
// Null where no method has the name.
const SelectMethod* FindSelectMethod(std::string_view name);

}  // namespace infinigen
