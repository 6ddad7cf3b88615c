// Stored keys and values on the host: rounds numbers to their stored type and reads them back. For the integer types
// this code, with the format in kv/view.h, is the definition; every backend's own implementation must agree bit for
// bit. Pure functions, any thread.
#pragma once

#include <span>

#include "kv/view.h"

namespace infinigen {

// Rounds a key or value to StoredBytes(type, row.size()) bytes at `out`, which needs no alignment.
void StoreRow(StoreType type, std::span<const float> row, std::byte* out);
// The numbers of a stored key or value.
void LoadRow(StoreType type, const std::byte* in, std::span<float> row);

}  // namespace infinigen
