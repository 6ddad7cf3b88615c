#include "kv/index_view.h"
#include "kv/select.h"

namespace infinigen {
namespace {

IndexLayout SketchIndex(const IndexShape& shape) {
  return {.block_rows = kSketchBlock, .block_bytes = shape.sketch.block_bytes()};
}

}  // namespace

// InfiniGen: every key has a sketch, a projection to a few numbers (kv/index.h).
const SelectMethod kSelectSketch{.name = "sketch",
                                 .summary = "the entries with the best-scoring sketches",
                                 .index = SketchIndex,
                                 .can_guess = true,
                                 .uses_basis = true};

}  // namespace infinigen
