// Refuses models whose files hold NaN or infinite numbers, before they can answer with text (docs/loading.md). Any
// thread.
#pragma once

#include "base/result.h"
#include "loader/tensor_source.h"

namespace infinigen {

// Reads every tensor once, on `threads` threads. The error names file, tensor and position of the first broken number
// of the first broken tensor.
Status CheckFinite(const TensorSource& source, int threads);

}  // namespace infinigen
