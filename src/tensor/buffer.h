// Buffer: move-only owner of raw memory. Its allocator is given, so that code that only holds memory treats host, pinned
// and device memory alike.
#pragma once

#include <cstddef>
#include <string_view>
#include <utility>

#include "base/result.h"

namespace infinigen {

// Outlives every Buffer made with it. Implementations: HostAllocator here; pinned and device memory with the GPU
// backend.
class Allocator {
 public:
  virtual ~Allocator() = default;
  // At least 64-byte aligned, contents undefined. kExhausted when there is no such memory.
  virtual Result<std::byte*> Allocate(size_t bytes) = 0;
  virtual void Free(std::byte* data, size_t bytes) = 0;
};

// Page-aligned anonymous memory; large blocks ask for huge pages. Pages cost nothing until they are touched.
class HostAllocator final : public Allocator {
 public:
  Result<std::byte*> Allocate(size_t bytes) override;
  void Free(std::byte* data, size_t bytes) override;
};

class Buffer {
 public:
  Buffer() = default;
  static Result<Buffer> Make(Allocator& allocator, size_t bytes);
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(allocator_, other.allocator_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() {
    if (data_ != nullptr) allocator_->Free(data_, bytes_);
  }

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  Allocator* allocator_ = nullptr;
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace infinigen
