#include "tensor/buffer.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "base/size.h"

namespace infinigen {
namespace {

// From this size on a block is likely to be walked in bulk, and 4 KiB pages would cost a TLB miss every 16 rows.
constexpr size_t kHugePageBytes = size_t{2} << 20;

}  // namespace

Result<std::byte*> HostAllocator::Allocate(size_t bytes) {
  // mmap rather than malloc: zeroed, page-aligned, returned to the system on Free, and an unreasonable size is an error
  // here instead of an exception.
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED)
    return Exhausted("cannot allocate {} of host memory: {}", FormatSize(bytes), std::strerror(errno));
  if (bytes >= kHugePageBytes) ::madvise(data, bytes, MADV_HUGEPAGE);  // a hint: failure only costs speed
  return static_cast<std::byte*>(data);
}

void HostAllocator::Free(std::byte* data, size_t bytes) { ::munmap(data, bytes); }

Result<Buffer> Buffer::Make(Allocator& allocator, size_t bytes) {
  Buffer buffer;
  if (bytes == 0) return buffer;
  ASSIGN_OR_RETURN(buffer.data_, allocator.Allocate(bytes));
  buffer.allocator_ = &allocator;
  buffer.bytes_ = bytes;
  return buffer;
}

}  // namespace infinigen
