#include "base/new_file.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "base/check.h"
#include "base/size.h"

namespace infinigen {
namespace {

constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
constexpr int kNames = 100;  // tried before giving up

}  // namespace

Status SyncDirectoryOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string directory = slash == path.npos ? "." : path.substr(0, slash + 1);
  const auto failure = [&] {
    return IoError("{}: cannot write the directory through to the disk: {}", path, std::strerror(errno));
  };
  const int fd = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return failure();
  const bool synced = ::fsync(fd) == 0 || errno == EINVAL;  // EINVAL: this file system does not sync directories
  const Status status = synced ? Ok() : Status(failure());
  ::close(fd);
  return status;
}

NewFile::~NewFile() {
  if (fd_ >= 0) ::close(fd_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

Error NewFile::Failure() const { return IoError("{}: cannot write: {}", path_, std::strerror(errno)); }

// As mkstemp, but with the mode that a new file usually gets: the kernel applies the umask or the directory's defaults.
bool NewFile::Create() {
  for (int i = 0; i < kNames; ++i) {
    unsigned char random[6];
    if (::getrandom(random, sizeof(random), 0) != static_cast<ssize_t>(sizeof(random))) return false;
    std::string name = path_ + '.';
    for (const unsigned char byte : random) name += kLetters[byte % kLetters.size()];
    fd_ = ::open(name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd_ >= 0) temporary_.swap(name);
    if (fd_ >= 0 || errno != EEXIST) return fd_ >= 0;
  }
  return false;
}

Status NewFile::Begin(uint64_t bytes) {
  CHECK(fd_ < 0);
  struct stat old;
  if (::lstat(path_.c_str(), &old) == 0) {
    if (S_ISLNK(old.st_mode)) {
      const std::unique_ptr<char, decltype(&std::free)> target(::realpath(path_.c_str(), nullptr), &std::free);
      if (target == nullptr || ::lstat(target.get(), &old) != 0) return Failure();
      path_ = target.get();
    }
    if (!S_ISREG(old.st_mode)) return IoError("{}: cannot write: not a regular file", path_);
  }
  if (!Create()) return Failure();
  if (bytes == 0) return Ok();
  // File systems that cannot reserve answer EOPNOTSUPP.
  const int error = ::posix_fallocate(fd_, 0, static_cast<off_t>(bytes));
  if (error != ENOSPC && error != EFBIG) return Ok();
  return IoError("{}: cannot write {}: {}", path_, FormatSize(bytes), std::strerror(error));
}

Status NewFile::Append(std::string_view bytes) {
  CHECK(fd_ >= 0);
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return Failure();
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return Ok();
}

Status NewFile::Finish() {
  CHECK(fd_ >= 0);
  if (::fsync(fd_) != 0) return Failure();
  if (::close(std::exchange(fd_, -1)) != 0) return Failure();
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) return Failure();
  temporary_.clear();
  return SyncDirectoryOf(path_);
}

}  // namespace infinigen
