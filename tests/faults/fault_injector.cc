// The functions of this file replace those of libc and libstdc++ in the program that links it (the linker prefers a
// program's own definitions), and main through --wrap=main. Each asks InjectFault whether to fail, and otherwise calls
// the replaced function. With a sanitizer that is the sanitizer's interceptor, so its checks stay.
//
// Environment:
//   INFINIGEN_FAULT=CLASS:N          the N-th call of the class fails (from 1)
//   INFINIGEN_FAULT=CLASS:N+K        K calls fail, from the N-th on: a shortage that lasts
//   INFINIGEN_FAULT=CLASS:xHASH      the first call fails whose stack has this hash
//   INFINIGEN_FAULT=CLASS:record     none fails; the distinct stacks are written
//   INFINIGEN_FAULT_LOG=FILE         what failed, or the record: lines "N COUNT HASH ADDRESS…"
//   INFINIGEN_FAULT_DEPTH=FRAMES     frames that make up a hash (default: all)
//   INFINIGEN_FAULT_KILL=1           the call does not fail: before it, SIGKILL ends the process
#include "faults/fault_injector.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

extern "C" const char __executable_start, etext;  // made by the linker

namespace infinigen {
namespace {

constexpr int kMaxFrames = 64;
constexpr size_t kMaxStacks = 1 << 15;  // a power of two

// Addresses are relative to the beginning of the program, so that they are the same in each run. Frames of shared
// libraries are left out.
struct Stack {
  uint64_t hash = 0;
  int depth = 0;
  uint32_t frames[kMaxFrames] = {};
};
struct Recorded {
  uint64_t first = 0, count = 0;
  Stack stack;
};

enum class Mode { kNumber, kStack, kRecord };

// Zero-initialised, because functions of this file run before constructors do.
struct State {
  std::atomic<bool> armed;
  FaultClass kind;
  Mode mode;
  uint64_t target;  // a number or a hash
  uint64_t count;   // calls that fail, from the target on
  bool kills;
  int depth;
  std::atomic<uint64_t> calls;
  std::atomic<bool> failed;
  std::atomic_flag lock;
  Recorded* recorded;  // [kMaxStacks], hashed
  int log;
};
State state;
thread_local bool inside = false;  // the injector's own calls are not counted

Stack Here() {
  void* addresses[kMaxFrames];
  const int count = ::backtrace(addresses, kMaxFrames);
  Stack stack;
  uint64_t hash = 14695981039346656037u;  // FNV-1a
  for (int i = 0; i < count && stack.depth < state.depth; ++i) {
    const char* address = static_cast<const char*>(addresses[i]);
    if (address < &__executable_start || address >= &etext) continue;
    const auto offset = static_cast<uint32_t>(address - &__executable_start);
    stack.frames[stack.depth++] = offset;
    for (int byte = 0; byte < 4; ++byte) hash = (hash ^ (offset >> 8 * byte & 255)) * 1099511628211u;
  }
  stack.hash = hash;
  return stack;
}

// Without stdio, which allocates.
void WriteLine(uint64_t number, uint64_t count, const Stack& stack) {
  char line[64 + 9 * kMaxFrames];
  int size = std::snprintf(line, sizeof(line), "%lu %lu x%016lx", number, count, stack.hash);
  for (int i = 0; i < stack.depth; ++i)
    size += std::snprintf(line + size, sizeof(line) - static_cast<size_t>(size), " %x", stack.frames[i]);
  line[size++] = '\n';
  if (state.log >= 0 && ::syscall(SYS_write, state.log, line, size) != size) std::abort();
}

void Record(uint64_t number, const Stack& stack) {
  while (state.lock.test_and_set(std::memory_order_acquire)) {
  }
  size_t at = stack.hash & (kMaxStacks - 1);
  while (state.recorded[at].count > 0 && state.recorded[at].stack.hash != stack.hash) at = (at + 1) & (kMaxStacks - 1);
  Recorded& entry = state.recorded[at];
  if (entry.count++ == 0) {
    entry.first = number;
    entry.stack = stack;
  }
  state.lock.clear(std::memory_order_release);
}

bool Decide(uint64_t number) {
  if (state.mode == Mode::kNumber) {
    if (number < state.target || number - state.target >= state.count) return false;
    // The first and the last one are logged, so that a test knows when a shortage begins and ends.
    if (number == state.target || number - state.target + 1 == state.count) WriteLine(number, 1, Here());
    return true;
  }
  const Stack stack = Here();
  if (state.mode == Mode::kRecord) {
    Record(number, stack);
    return false;
  }
  if (stack.hash != state.target || state.failed.exchange(true)) return false;
  WriteLine(number, 1, stack);
  return true;
}

[[noreturn]] void Refuse(const char* what) {
  std::fprintf(stderr, "fault injector: %s\n", what);
  std::_Exit(3);
}

void Configure() {
  const char* asked = std::getenv("INFINIGEN_FAULT");
  if (asked == nullptr) return;
  const std::string_view text = asked;
  const size_t colon = text.find(':');
  size_t kind = 0;
  while (kind < kFaultClasses.size() && kFaultClasses[kind] != text.substr(0, colon)) ++kind;
  if (colon == text.npos || kind == kFaultClasses.size())
    Refuse("INFINIGEN_FAULT must be CLASS:N, :N+K, :xHASH or :record");
  const char* value = asked + colon + 1;
  state.kind = static_cast<FaultClass>(kind);
  state.mode = *value == 'r' ? Mode::kRecord : *value == 'x' ? Mode::kStack : Mode::kNumber;
  if (state.mode != Mode::kRecord)
    state.target = std::strtoull(value + (*value == 'x'), nullptr, *value == 'x' ? 16 : 10);
  const char* plus = std::strchr(value, '+');
  state.count = plus == nullptr ? 1 : std::strtoull(plus + 1, nullptr, 10);
  state.kills = std::getenv("INFINIGEN_FAULT_KILL") != nullptr;
  const char* depth = std::getenv("INFINIGEN_FAULT_DEPTH");
  state.depth = depth == nullptr ? kMaxFrames : std::atoi(depth);
  state.recorded = new Recorded[state.mode == Mode::kRecord ? kMaxStacks : 1]();
  state.log = -1;
  if (const char* path = std::getenv("INFINIGEN_FAULT_LOG")) {
    const int opened = static_cast<int>(::syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC, 0666));
    state.log = ::fcntl(opened, F_DUPFD_CLOEXEC, 100);  // the program's descriptors keep their numbers
    ::syscall(SYS_close, opened);
    if (state.log < 0) Refuse("INFINIGEN_FAULT_LOG cannot be written");
  }
  Here();  // the unwinder allocates once
  state.armed = true;
}

void EndRecord() {
  state.armed = false;
  if (state.mode == Mode::kRecord && state.recorded != nullptr)
    for (size_t i = 0; i < kMaxStacks; ++i)
      if (const Recorded& entry = state.recorded[i]; entry.count > 0) WriteLine(entry.first, entry.count, entry.stack);
  delete[] state.recorded;
  state.recorded = nullptr;
}

// Descriptors between threads of the process, which cannot fail: events, and pipes that are not standard streams.
bool IsInternal(int fd) {
  struct stat info {};
  if (fd <= STDERR_FILENO || ::fstat(fd, &info) != 0) return false;
  return (info.st_mode & S_IFMT) == 0 || S_ISFIFO(info.st_mode);
}

}  // namespace

bool InjectFault(FaultClass kind) {
  if (!state.armed.load(std::memory_order_relaxed) || kind != state.kind || inside) return false;
  inside = true;
  const bool fails = Decide(state.calls.fetch_add(1) + 1);
  if (fails && state.kills) ::kill(::getpid(), SIGKILL);
  inside = false;
  return fails;
}

}  // namespace infinigen

using infinigen::FaultClass;
using infinigen::InjectFault;

extern "C" int __real_main(int argc, char** argv);
extern "C" int __wrap_main(int argc, char** argv) {
  infinigen::Configure();
  const int code = __real_main(argc, argv);
  infinigen::EndRecord();
  return code;
}

// ---- allocations ----

namespace {

void* Allocate(size_t bytes, size_t alignment) {
  if (InjectFault(FaultClass::kAlloc)) return nullptr;
  if (alignment <= __STDCPP_DEFAULT_NEW_ALIGNMENT__) return std::malloc(bytes == 0 ? 1 : bytes);
  void* data = nullptr;
  return ::posix_memalign(&data, alignment, bytes) == 0 ? data : nullptr;
}
void* AllocateOrThrow(size_t bytes, size_t alignment) {
  void* const data = Allocate(bytes, alignment);
  if (data == nullptr) throw std::bad_alloc();
  return data;
}

}  // namespace

void* operator new(size_t bytes) { return AllocateOrThrow(bytes, 0); }
void* operator new[](size_t bytes) { return AllocateOrThrow(bytes, 0); }
void* operator new(size_t bytes, std::align_val_t at) { return AllocateOrThrow(bytes, static_cast<size_t>(at)); }
void* operator new[](size_t bytes, std::align_val_t at) { return AllocateOrThrow(bytes, static_cast<size_t>(at)); }
void* operator new(size_t bytes, const std::nothrow_t&) noexcept { return Allocate(bytes, 0); }
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept { return Allocate(bytes, 0); }
void operator delete(void* data) noexcept { std::free(data); }
void operator delete[](void* data) noexcept { std::free(data); }
void operator delete(void* data, size_t) noexcept { std::free(data); }
void operator delete[](void* data, size_t) noexcept { std::free(data); }
void operator delete(void* data, std::align_val_t) noexcept { std::free(data); }
void operator delete[](void* data, std::align_val_t) noexcept { std::free(data); }
void operator delete(void* data, size_t, std::align_val_t) noexcept { std::free(data); }
void operator delete[](void* data, size_t, std::align_val_t) noexcept { std::free(data); }
void operator delete(void* data, const std::nothrow_t&) noexcept { std::free(data); }
void operator delete[](void* data, const std::nothrow_t&) noexcept { std::free(data); }

// ---- functions of libc ----

// The replaced function: a sanitizer's interceptor, else libc's.
template <class F>
F* Replaced(F* interceptor, std::atomic<void*>& found, const char* name) {
  if (interceptor != nullptr) return interceptor;
  if (found.load() == nullptr) found = ::dlsym(RTLD_NEXT, name);
  return reinterpret_cast<F*>(found.load());
}
#define REAL(name) Replaced(&__interceptor_##name, found_##name, #name)
#define DECLARE_REAL(name)                                                \
  extern "C" __attribute__((weak)) decltype(::name) __interceptor_##name; \
  static std::atomic<void*> found_##name;

// A function that fails with `error` in errno, and without having done anything.
#define FAILS(kind, error, name, result, parameters, arguments, ...)         \
  DECLARE_REAL(name)                                                         \
  extern "C" __attribute__((visibility("default"))) result name parameters { \
    if (__VA_ARGS__ InjectFault(FaultClass::kind)) {                         \
      errno = error;                                                         \
      return static_cast<result>(-1);                                        \
    }                                                                        \
    return REAL(name) arguments;                                             \
  }

#define OF_OTHERS(fd) !infinigen::IsInternal(fd)&&

FAILS(kRead, EIO, read, ssize_t, (int fd, void* data, size_t bytes), (fd, data, bytes), OF_OTHERS(fd))
FAILS(kRead, EIO, pread, ssize_t, (int fd, void* data, size_t bytes, off_t at), (fd, data, bytes, at))
FAILS(kRead, EIO, readv, ssize_t, (int fd, const iovec* parts, int count), (fd, parts, count), OF_OTHERS(fd))
FAILS(kRead, EIO, recv, ssize_t, (int fd, void* data, size_t bytes, int flags), (fd, data, bytes, flags))
FAILS(kRead, EIO, recvmsg, ssize_t, (int fd, msghdr* message, int flags), (fd, message, flags))
FAILS(kWrite, EIO, write, ssize_t, (int fd, const void* data, size_t bytes), (fd, data, bytes), OF_OTHERS(fd))
FAILS(kWrite, EIO, pwrite, ssize_t, (int fd, const void* data, size_t bytes, off_t at), (fd, data, bytes, at))
FAILS(kWrite, EIO, writev, ssize_t, (int fd, const iovec* parts, int count), (fd, parts, count), OF_OTHERS(fd))
FAILS(kWrite, EIO, send, ssize_t, (int fd, const void* data, size_t bytes, int flags), (fd, data, bytes, flags))
FAILS(kWrite, EIO, sendmsg, ssize_t, (int fd, const msghdr* message, int flags), (fd, message, flags))
FAILS(kSync, EIO, fsync, int, (int fd), (fd))
FAILS(kSync, EIO, fdatasync, int, (int fd), (fd))
FAILS(kSync, EACCES, fchmod, int, (int fd, mode_t mode), (fd, mode))
FAILS(kSync, EIO, ftruncate, int, (int fd, off_t bytes), (fd, bytes))
FAILS(kSync, EACCES, rename, int, (const char* from, const char* to), (from, to))
FAILS(kOpen, EMFILE, mkstemp, int, (char* path), (path))
FAILS(kOpen, EMFILE, socket, int, (int domain, int type, int protocol), (domain, type, protocol))
FAILS(kOpen, EADDRINUSE, bind, int, (int fd, const sockaddr* address, socklen_t bytes), (fd, address, bytes))
FAILS(kOpen, EADDRINUSE, listen, int, (int fd, int backlog), (fd, backlog))
FAILS(kOpen, EMFILE, accept, int, (int fd, sockaddr* address, socklen_t* bytes), (fd, address, bytes))
FAILS(kOpen, EMFILE, epoll_create1, int, (int flags), (flags))
FAILS(kOpen, ENOSPC, epoll_ctl, int, (int epoll, int what, int fd, epoll_event* event), (epoll, what, fd, event),
      what == EPOLL_CTL_ADD && !infinigen::IsInternal(fd) &&)
FAILS(kOpen, EMFILE, eventfd, int, (unsigned count, int flags), (count, flags))
FAILS(kOpen, EMFILE, timerfd_create, int, (int clock, int flags), (clock, flags))
// The undefined-behaviour sanitizer asks by a pipe whether an address is readable.
#ifndef __has_feature
#define __has_feature(name) 0
#endif
#if !defined(__SANITIZE_ADDRESS__) && !__has_feature(address_sanitizer)
FAILS(kOpen, EMFILE, pipe, int, (int* fds), (fds))
#endif

DECLARE_REAL(mmap)
extern "C" __attribute__((visibility("default"))) void* mmap(void* where, size_t bytes, int access, int flags, int fd,
                                                             off_t at) {
  if (InjectFault(FaultClass::kMap)) {
    errno = ENOMEM;
    return MAP_FAILED;
  }
  return REAL(mmap)(where, bytes, access, flags, fd, at);
}

// Whether what was written may be lost where the descriptor cannot be closed.
bool IsWrittenFile(int fd) {
  struct stat info {};
  const int mode = ::fcntl(fd, F_GETFL);
  return mode >= 0 && (mode & O_ACCMODE) != O_RDONLY && ::fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
}

// As on Linux, the descriptor is free also where close fails.
DECLARE_REAL(close)
extern "C" __attribute__((visibility("default"))) int close(int fd) {
  const bool fails = InjectFault(IsWrittenFile(fd) ? FaultClass::kSync : FaultClass::kClose);
  const int result = REAL(close)(fd);
  if (!fails) return result;
  errno = EIO;
  return -1;
}

extern "C" __attribute__((visibility("default"))) int open(const char* path, int flags, ...) {
  mode_t mode = 0;
  if ((flags & (O_CREAT | O_TMPFILE)) != 0) {
    va_list rest;
    va_start(rest, flags);
    mode = va_arg(rest, mode_t);
    va_end(rest);
  }
  if (InjectFault(FaultClass::kOpen)) {
    errno = EMFILE;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}

DECLARE_REAL(posix_fallocate)
extern "C" __attribute__((visibility("default"))) int posix_fallocate(int fd, off_t at, off_t bytes) {
  return InjectFault(FaultClass::kSync) ? ENOSPC : REAL(posix_fallocate)(fd, at, bytes);
}

DECLARE_REAL(pthread_create)
extern "C" __attribute__((visibility("default"))) int pthread_create(pthread_t* thread,
                                                                     const pthread_attr_t* attributes,
                                                                     void* (*run)(void*), void* argument) {
  return InjectFault(FaultClass::kThread) ? EAGAIN : REAL(pthread_create)(thread, attributes, run, argument);
}
