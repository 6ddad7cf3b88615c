// The product of one row of activations and one row of block-quantised weights, as backend/block_arithmetic.h defines
// it: the oracle of the fast kernels. A pure function, for any thread.
#pragma once

#include <cstdint>
#include <span>

#include "tensor/weight_view.h"

namespace infinigen {

// x [weight.cols] · row `row` of the weight, whose type is not plain.
float BlockProduct(const WeightView& weight, int64_t row, std::span<const float> x);

}  // namespace infinigen
