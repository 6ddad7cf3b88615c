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
  if (::fstat(fd, &info) == 0 && S_ISDIR(info.st_mode)) {
    ++counted.directory_syncs;
    if (counted.directory_sync) counted.directory_sync();
    if (counted.directory_sync_fails) {
      errno = EIO;
      return -1;
    }
  }
  return static_cast<int>(::syscall(SYS_fsync, fd));
}
