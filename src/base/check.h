// CHECK and DCHECK assert that the program has no bug. A failed check prints file, line and condition, then aborts.
// Conditions that a correct program can meet (a bad file, a full pool, a wrong flag) return a Result (base/result.h).
#pragma once

#include <functional>

namespace infinigen {

[[noreturn]] void CheckFailed(const char* file, int line, const char* condition);

// What a server still says to its clients before a lost device ends the process. SayLastWords calls the function that
// was set, if any, and at most once. Any thread.
void SetLastWords(std::function<void()> words);
void SayLastWords();

}  // namespace infinigen

// Compiled into every build. Use it to guard memory and invariants, outside inner loops.
#define CHECK(condition)                                        \
  do {                                                          \
    if (!(condition)) [[unlikely]]                              \
      ::infinigen::CheckFailed(__FILE__, __LINE__, #condition); \
  } while (false)

// For inner loops: compiled out of release builds.
#ifdef NDEBUG
#define DCHECK(condition) static_cast<void>(false && (condition))
#else
#define DCHECK(condition) CHECK(condition)
#endif
