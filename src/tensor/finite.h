// Finds numbers that are NaN or infinite in stored weights. Of a quantised block only the scales are read: codes are
// integers, so a block is finite if its scales are. Pure functions, any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "tensor/weight_view.h"

namespace infinigen {

// Index of the first number that is not finite; in a quantised type, of the first number of its block. `bytes` are
// whole blocks of any alignment.
std::optional<int64_t> FirstNotFinite(WeightType type, std::span<const std::byte> bytes);

bool AllFinite(std::span<const float> numbers);

}  // namespace infinigen
