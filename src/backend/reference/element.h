// One stored number of any type. Private to the reference backend.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/dtype.h"

namespace infinigen {

inline float Load(const std::byte* data, DType type, int64_t index) {
  return Dispatch(type, [&](auto tag) { return ToFloat(reinterpret_cast<const decltype(tag)*>(data)[index]); });
}

}  // namespace infinigen
