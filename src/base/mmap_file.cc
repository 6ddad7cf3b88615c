#include "base/mmap_file.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/utf8.h"

namespace infinigen {
namespace {

// Closes on scope exit; a mapping stays valid after its descriptor is closed.
struct Descriptor {
  int fd = -1;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

// Huge pages of x86-64, and of ARM with pages of 4 KiB.
constexpr size_t kHugePageBytes = size_t{2} << 20;

size_t RoundUp(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

// Reserves addresses without memory that begin at a huge page. `bytes` is a multiple of the page size. Null on failure.
std::byte* ReserveAligned(size_t bytes) {
  const size_t reserved = bytes + kHugePageBytes;
  if (reserved < bytes) return nullptr;
  void* data = ::mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) return nullptr;
  std::byte* const begin = static_cast<std::byte*>(data);
  const size_t before =
      RoundUp(reinterpret_cast<uintptr_t>(begin), kHugePageBytes) - reinterpret_cast<uintptr_t>(begin);
  if (before > 0) ::munmap(begin, before);
  ::munmap(begin + before + bytes, kHugePageBytes - before);
  return begin + before;
}

size_t PageBytes() { return static_cast<size_t>(::sysconf(_SC_PAGESIZE)); }

// Replaces the mapping of `bytes` at `data` by anonymous memory with the same contents.
void Replace(std::byte* data, size_t bytes) {
  const size_t mapped = RoundUp(bytes, PageBytes());
  std::byte* const copy = ReserveAligned(mapped);
  if (copy == nullptr) return;
  if (::mprotect(copy, mapped, PROT_READ | PROT_WRITE) != 0) {
    ::munmap(copy, mapped);
    return;
  }
  ::madvise(copy, mapped, MADV_HUGEPAGE);  // a hint: failure only costs speed
  std::memcpy(copy, data, bytes);
  if (::mprotect(copy, mapped, PROT_READ) == 0 &&
      ::mremap(copy, mapped, mapped, MREMAP_MAYMOVE | MREMAP_FIXED, data) != MAP_FAILED)
    return;
  ::munmap(copy, mapped);
  unsigned char resident = 0;
  CHECK(::mincore(data, PageBytes(), &resident) == 0);  // mremap may fail after it has removed the old mapping
}

// The mapped files, for the signal handler, which may neither lock nor allocate. An entry belongs to the thread that
// claimed it; `begin` is set last and cleared first, so the handler sees complete entries only.
struct Mapping {
  std::atomic<bool> claimed{false};
  std::atomic<uintptr_t> begin{0};
  std::atomic<size_t> size{0};
  char path[1024] = {};
};
constexpr size_t kMaxMappings = 512;  // files beyond these are not explained
Mapping mappings[kMaxMappings];
static_assert(std::atomic<uintptr_t>::is_always_lock_free && std::atomic<size_t>::is_always_lock_free);

void Register(const std::string& path, const void* data, size_t size) {
  for (Mapping& mapping : mappings) {
    if (mapping.claimed.exchange(true)) continue;
    const std::string shown = Escaped(path, sizeof(mapping.path) / 4);
    std::memcpy(mapping.path, shown.c_str(), std::min(shown.size() + 1, sizeof(mapping.path)));
    mapping.path[sizeof(mapping.path) - 1] = '\0';
    mapping.size = size;
    mapping.begin = reinterpret_cast<uintptr_t>(data);
    return;
  }
}

void Unregister(const void* data) {
  for (Mapping& mapping : mappings) {
    if (mapping.begin != reinterpret_cast<uintptr_t>(data)) continue;
    mapping.begin = 0;
    mapping.claimed = false;
    return;
  }
}

// Async-signal-safe. A pipe that is not read must not keep the process alive.
void Print(const char* text) {
  pollfd target{.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
  if (::poll(&target, 1, /*ms=*/1000) <= 0) return;
  if (::write(STDERR_FILENO, text, std::strlen(text)) < 0) return;
}

void OnBusError(int signal, siginfo_t* info, void*) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(info->si_addr);
  for (const Mapping& mapping : mappings) {
    const uintptr_t begin = mapping.begin;
    if (begin == 0 || address < begin || address - begin >= mapping.size) continue;
    Print("infinigen: ");
    Print(mapping.path);
    Print(": the file cannot be read any more: it was truncated while in use, or its disk failed\n");
    ::_exit(1);
  }
  ::signal(signal, SIG_DFL);  // the access is repeated, and ends the process
}

Result<size_t> RegularFileSize(int fd, const std::string& path) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) return IoError("{}: cannot read the file's size: {}", path, std::strerror(errno));
  if (!S_ISREG(info.st_mode)) return IoError("{}: not a regular file", path);
  return static_cast<size_t>(info.st_size);
}

}  // namespace

Result<MmapFile> MmapFile::Open(const std::string& path) {
  // O_NONBLOCK: opening a FIFO must not hang before it is refused as "not a regular file".
  Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.fd < 0) return IoError("{}: cannot open: {}", path, std::strerror(errno));
  ASSIGN_OR_RETURN(const size_t size, RegularFileSize(file.fd, path));
  if (size == 0) return MmapFile(path, nullptr, 0);
  // Aligned for ReadIntoMemory.
  std::byte* const place = size < kHugePageBytes ? nullptr : ReserveAligned(RoundUp(size, PageBytes()));
  void* data = ::mmap(place, size, PROT_READ, MAP_SHARED | (place == nullptr ? 0 : MAP_FIXED), file.fd, 0);
  if (data == MAP_FAILED) {
    const int reason = errno;
    if (place != nullptr) ::munmap(place, RoundUp(size, PageBytes()));
    return IoError("{}: cannot map {} bytes: {}", path, size, std::strerror(reason));
  }
  Register(path, data, size);
  return MmapFile(path, static_cast<const std::byte*>(data), size);
}

MmapFile::MmapFile(std::string path, const std::byte* data, size_t size)
    : path_(std::move(path)), data_(data), size_(size) {}

MmapFile::MmapFile(MmapFile&& other) noexcept
    : path_(std::move(other.path_)), data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MmapFile& MmapFile::operator=(MmapFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MmapFile::~MmapFile() {
  if (data_ == nullptr) return;
  Unregister(data_);
  ::munmap(const_cast<std::byte*>(data_), size_);
}

void MmapFile::ReadIntoMemory(ThreadPool& threads) const {
  constexpr size_t kLeastBytes = size_t{16} << 20;  // below it, a second-level TLB covers most of the file
  constexpr size_t kPieceBytes = 16 * kHugePageBytes;
  if (size_ < kLeastBytes || reinterpret_cast<uintptr_t>(data_) % kHugePageBytes != 0) return;
  std::byte* const data = const_cast<std::byte*>(data_);  // of the mapping, not of what it shows
  threads.Run(static_cast<int64_t>(RoundUp(size_, kPieceBytes) / kPieceBytes), [&](int64_t piece, int) {
    const size_t begin = static_cast<size_t>(piece) * kPieceBytes;
    Replace(data + begin, std::min(kPieceBytes, size_ - begin));
  });
}

void ExplainTruncatedFiles() {
  struct sigaction action {};
  action.sa_sigaction = OnBusError;
  action.sa_flags = SA_SIGINFO;
  ::sigemptyset(&action.sa_mask);
  ::sigaction(SIGBUS, &action, nullptr);
}

Result<std::string> ReadSmallFile(const std::string& path, size_t limit_bytes) {
  Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.fd < 0) return IoError("{}: cannot open: {}", path, std::strerror(errno));
  ASSIGN_OR_RETURN(const size_t size, RegularFileSize(file.fd, path));
  if (size > limit_bytes)
    return Invalid("{}: file of {} bytes; this kind of file may have at most {}", path, size, limit_bytes);
  std::string text(size, '\0');
  size_t done = 0;
  while (done < size) {
    const ssize_t got = ::read(file.fd, text.data() + done, size - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return IoError("{}: read failed at byte {}: {}", path, done, std::strerror(errno));
    if (got == 0) break;
    done += static_cast<size_t>(got);
  }
  text.resize(done);
  return text;
}

}  // namespace infinigen
