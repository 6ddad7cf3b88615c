// Scratch: memory of one operation, kept between operations and grown by need. Contents do not survive Reserve. Not
// thread-safe: one per thread, plus one that the calling thread reserves before it starts the team.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/check.h"
#include "tensor/buffer.h"

namespace infinigen {

class Scratch {
 public:
  explicit Scratch(Allocator& memory) : memory_(&memory) {}

  // At least `floats` floats, 64-byte aligned, contents undefined. Grows to twice the need, so that a context that
  // grows by one token a step reallocates rarely.
  float* Reserve(int64_t floats) {
    const size_t bytes = static_cast<size_t>(floats) * sizeof(float);
    if (buffer_.bytes() < bytes) Grow(std::max(2 * bytes, kSmallestBytes));
    return reinterpret_cast<float*>(buffer_.data());
  }
  // From here on Reserve of up to `floats` floats allocates nothing.
  void ReserveAhead(int64_t floats) {
    const size_t bytes = static_cast<size_t>(floats) * sizeof(float);
    if (buffer_.bytes() < bytes) Grow(bytes);
  }

 private:
  void Grow(size_t bytes) {
    buffer_ = Buffer();
    Result<Buffer> grown = Buffer::Make(*memory_, bytes);
    CHECK(grown.ok());
    buffer_ = std::move(*grown);
  }

  static constexpr size_t kSmallestBytes = size_t{64} << 10;

  Allocator* memory_;
  Buffer buffer_;
};

}  // namespace infinigen
