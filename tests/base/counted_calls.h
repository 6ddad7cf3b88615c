// Counts calls that a test binary and its libraries make to libc: counted_calls.cc defines the functions, and the
// linker prefers a program's own definitions. One thread.
#pragma once

#include <functional>

namespace infinigen {

struct CountedCalls {
  int umasks = 0;
  int file_syncs = 0, directory_syncs = 0;          // calls of fsync
  bool directory_sync_fails = false;                // with EIO
  std::function<void()> file_sync, directory_sync;  // called before each
};
CountedCalls& Counted();

}  // namespace infinigen
