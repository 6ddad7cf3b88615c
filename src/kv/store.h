// Entries in plain host form: how a row of numbers is rounded into its stored type and what is read back. For the
// integer types this and kv/store_view.h are the definition that every backend's own form is tested against, bit for
// bit.
#pragma once

#include <span>

#include "kv/view.h"

namespace infinigen {

// Writes StoredBytes(type, row.size()) bytes at `out`, which needs no alignment.
void StoreRow(StoreType type, std::span<const float> row, std::byte* out);
// The stored numbers.
void LoadRow(StoreType type, const std::byte* in, std::span<float> row);

}  // namespace infinigen
