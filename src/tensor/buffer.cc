#include "tensor/buffer.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "base/size.h"

#ifdef INFINIGEN_ASAN
#include <sanitizer/asan_interface.h>
#include <unistd.h>
#endif

namespace infinigen {
namespace {

// Blocks of this size and more are read in bulk, where 4 KiB pages would cost a TLB miss every 16 rows.
constexpr size_t kHugePageBytes = size_t{2} << 20;

// The address sanitizer knows the bounds of malloc blocks only. In its builds each block is mapped with one extra page;
// that page and the rest of the block's last page are poisoned.
#ifdef INFINIGEN_ASAN
size_t BytesMapped(size_t bytes) {
  const size_t page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  if (bytes > SIZE_MAX - 2 * page) return bytes;  // mmap will refuse it
  return (bytes + page - 1) / page * page + page;
}
void Guard(std::byte* data, size_t bytes) { ASAN_POISON_MEMORY_REGION(data + bytes, BytesMapped(bytes) - bytes); }
void Unguard(std::byte* data, size_t bytes) { ASAN_UNPOISON_MEMORY_REGION(data + bytes, BytesMapped(bytes) - bytes); }
#else
size_t BytesMapped(size_t bytes) { return bytes; }
void Guard(std::byte*, size_t) {}
void Unguard(std::byte*, size_t) {}
#endif

}  // namespace

Result<std::byte*> HostAllocator::Allocate(size_t bytes) {
  // mmap instead of malloc: zeroed, page-aligned, returned to the system by Free, and an oversized request fails here
  // with an error instead of an exception.
  void* data = ::mmap(nullptr, BytesMapped(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED)
    return Exhausted("cannot allocate {} of host memory: {}", FormatSize(bytes), std::strerror(errno));
  if (bytes >= kHugePageBytes) ::madvise(data, bytes, MADV_HUGEPAGE);  // a hint: failure only costs speed
  Guard(static_cast<std::byte*>(data), bytes);
  return static_cast<std::byte*>(data);
}

void HostAllocator::Free(std::byte* data, size_t bytes) {
  Unguard(data, bytes);  // a later mapping may reuse these addresses
  ::munmap(data, BytesMapped(bytes));
}

Result<Buffer> Buffer::Make(Allocator& allocator, size_t bytes) {
  Buffer buffer;
  if (bytes == 0) return buffer;
  ASSIGN_OR_RETURN(buffer.data_, allocator.Allocate(bytes));
  buffer.allocator_ = &allocator;
  buffer.bytes_ = bytes;
  return buffer;
}

}  // namespace infinigen
