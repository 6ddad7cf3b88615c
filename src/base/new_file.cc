#include "base/new_file.h"

#include <fcntl.h>
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

// The mode that a new file gets: mkstemp's is for the owner alone.
mode_t UsualMode() {
  const mode_t mask = ::umask(0);
  ::umask(mask);
  return 0666 & ~mask;
}

}  // namespace

NewFile::~NewFile() {
  if (fd_ >= 0) ::close(fd_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

Error NewFile::Failure() const { return IoError("{}: cannot write: {}", path_, std::strerror(errno)); }

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
  temporary_ = path_ + ".XXXXXX";
  fd_ = ::mkstemp(temporary_.data());
  if (fd_ < 0) {
    temporary_.clear();
    return Failure();
  }
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
  if (::fchmod(fd_, UsualMode()) != 0 || ::fsync(fd_) != 0) return Failure();
  if (::close(std::exchange(fd_, -1)) != 0) return Failure();
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) return Failure();
  temporary_.clear();
  return Ok();
}

}  // namespace infinigen
