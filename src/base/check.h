// CHECK: for bugs only. A failed check prints where and what, then aborts. What can happen to a correct program (a bad
// file, a full pool, a wrong flag) is a Result (base/result.h), never a CHECK.
#pragma once

namespace infinigen {

[[noreturn]] void CheckFailed(const char* file, int line, const char* condition);

}  // namespace infinigen

// Always on: each one guards memory or an invariant, and none stands in an inner loop.
#define CHECK(condition)                                        \
  do {                                                          \
    if (!(condition)) [[unlikely]]                              \
      ::infinigen::CheckFailed(__FILE__, __LINE__, #condition); \
  } while (false)

// For inner loops: off in release builds.
#ifdef NDEBUG
#define DCHECK(condition) static_cast<void>(false && (condition))
#else
#define DCHECK(condition) CHECK(condition)
#endif
