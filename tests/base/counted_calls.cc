#include "base/counted_calls.h"

#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

namespace infinigen {

CountedCalls& Counted() {
  static CountedCalls counted;
  return counted;
}

}  // namespace infinigen

extern "C" mode_t umask(mode_t mask) noexcept {
  ++infinigen::Counted().umasks;
  return static_cast<mode_t>(::syscall(SYS_umask, mask));
}

extern "C" int fsync(int fd) {
  infinigen::CountedCalls& counted = infinigen::Counted();
  struct stat info {};
  const bool directory = ::fstat(fd, &info) == 0 && S_ISDIR(info.st_mode);
  ++(directory ? counted.directory_syncs : counted.file_syncs);
  if (const auto& called = directory ? counted.directory_sync : counted.file_sync) called();
  if (directory && counted.directory_sync_fails) {
    errno = EIO;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_fsync, fd));
}
