#include "base/mmap_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace infinigen {
namespace {

// Closes on scope exit; a mapping stays valid after its descriptor is closed.
struct Descriptor {
  int fd = -1;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

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
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file.fd, 0);
  if (data == MAP_FAILED) return IoError("{}: cannot map {} bytes: {}", path, size, std::strerror(errno));
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
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
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
