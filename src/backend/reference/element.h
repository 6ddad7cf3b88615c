// One stored number of any type, read and written. Private to the reference backend.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/dtype.h"

namespace infinigen {

inline float Load(const std::byte* data, DType type, int64_t index) {
  return Dispatch(type, [&](auto tag) { return ToFloat(reinterpret_cast<const decltype(tag)*>(data)[index]); });
}

inline void Store(std::byte* data, DType type, int64_t index, float value) {
  switch (type) {
    case DType::kF32:
      reinterpret_cast<float*>(data)[index] = value;
      return;
    case DType::kF16:
      reinterpret_cast<F16*>(data)[index] = ToF16(value);
      return;
    case DType::kBF16:
      reinterpret_cast<BF16*>(data)[index] = ToBF16(value);
      return;
  }
}

}  // namespace infinigen
