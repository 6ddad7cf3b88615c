// Random weights in a block type, for benchmarks and tests. Any thread.
#pragma once

#include <cstddef>

#include "tensor/weight_view.h"

namespace infinigen {

// Turns random bytes into one block of a type that is not plain: overwrites the fields of scales and minima so that the
// numbers have a mean near zero and about this standard deviation. The codes stay as they are.
void SetBlockScales(WeightType type, float deviation, std::byte* block);

}  // namespace infinigen
