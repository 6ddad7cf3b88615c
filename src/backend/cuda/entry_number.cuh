// Reads single numbers of stored keys and values of any type, for measurements and eviction. Attention reads whole
// vectors instead. Private to backend/cuda.
#pragma once

#include <cuda_fp16.h>

#include "backend/cuda/numbers.cuh"
#include "kv/view.h"

namespace infinigen {

// Number i of the key or value at `row`, which has `dim` numbers; equal to LoadRow of kv/store.h.
template <StoreType kType>
__device__ inline float EntryNumber(const std::byte* row, int64_t dim, int64_t i) {
  if constexpr (kType == StoreType::kF32) {
    return reinterpret_cast<const float*>(row)[i];
  } else if constexpr (kType == StoreType::kF16) {
    return AsFloat(reinterpret_cast<const __half*>(row)[i]);
  } else if constexpr (kType == StoreType::kBF16) {
    return AsFloat(reinterpret_cast<const __nv_bfloat16*>(row)[i]);
  } else {
    // Quantised rows are not aligned: read bytes.
    const auto* bytes = reinterpret_cast<const uint8_t*>(row);
    const uint8_t* header = bytes + i / kStoreGroup * 4;
    const auto half_at = [&](int at) {
      return AsFloat(__ushort_as_half(static_cast<unsigned short>(header[at] | header[at + 1] << 8)));
    };
    const uint8_t* codes = bytes + StoreHeaderBytes(dim);
    int code = kType == StoreType::kInt8 ? codes[i] : codes[i / 2] >> (i % 2 * 4) & 15;
    if (kType == StoreType::kInt6) code |= (codes[LowBytes(dim) + HighByte(i)] >> (i % 4 * 2) & 3) << 4;
    return __fmaf_rn(static_cast<float>(code), half_at(0), half_at(2));
  }
}

// The same if the type is known only at run time.
__device__ inline float EntryNumber(StoreType type, const std::byte* row, int64_t dim, int64_t i) {
  switch (type) {
    case StoreType::kF32:
      return EntryNumber<StoreType::kF32>(row, dim, i);
    case StoreType::kF16:
      return EntryNumber<StoreType::kF16>(row, dim, i);
    case StoreType::kBF16:
      return EntryNumber<StoreType::kBF16>(row, dim, i);
    case StoreType::kInt8:
      return EntryNumber<StoreType::kInt8>(row, dim, i);
    case StoreType::kInt4:
      return EntryNumber<StoreType::kInt4>(row, dim, i);
    case StoreType::kInt6:
      return EntryNumber<StoreType::kInt6>(row, dim, i);
  }
  return 0;
}

}  // namespace infinigen
