// Quantises rows of numbers into block types (tensor/block_formats.h). Pure functions, for any thread.
//
// Except in q8_0, scales are searched: the largest magnitude does not give the smallest error. Each group tries some
// scales around the obvious one, rounds its numbers with each, fits the scale (and minimum) to the codes by least
// squares and keeps the best. Numbers of large magnitude weigh more in the error, because they matter more in products.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tensor/weight_view.h"

namespace infinigen {

// True for q8_0, q4_0, q4_1, q5_0, q5_1, q4_k, q5_k and q6_k.
bool CanEncode(WeightType type);

// Writes the blocks of one row to `out`, which has room for them. The number of finite numbers is a multiple of the
// block size; CanEncode(type). A block with a number that is too large for the type gets an infinite scale
// (FirstNotFinite finds it); its other bytes are not written.
void EncodeRow(WeightType type, std::span<const float> numbers, std::byte* out);

}  // namespace infinigen
