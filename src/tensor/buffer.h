// Buffer: move-only owner of raw memory. The caller supplies the allocator, so the same type holds host, pinned and
// device memory.
#pragma once

#include <cstddef>
#include <string_view>
#include <utility>

#include "base/result.h"

namespace infinigen {

// Must outlive every Buffer made with it. Implementations: HostAllocator (here), pinned and device memory (GPU
// backend).
class Allocator {
 public:
  virtual ~Allocator() = default;
  // Returns memory aligned to at least 64 bytes, contents undefined; kExhausted when there is not enough.
  virtual Result<std::byte*> Allocate(size_t bytes) = 0;
  virtual void Free(std::byte* data, size_t bytes) = 0;
};

// Page-aligned anonymous memory; large blocks request huge pages. Pages occupy no memory until they are touched.
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
