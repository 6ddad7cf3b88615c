#include "base/check.h"

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <utility>

namespace infinigen {

void CheckFailed(const char* file, int line, const char* condition) {
  std::fprintf(stderr, "%s:%d: internal error: CHECK(%s) failed\n", file, line, condition);
  std::abort();
}

namespace {

// Global because a failed device is noticed where no server is known.
std::mutex last_words_mutex;
std::function<void()>& LastWords() {
  static std::function<void()> words;
  return words;
}

}  // namespace

void SetLastWords(std::function<void()> words) {
  const std::lock_guard lock(last_words_mutex);
  LastWords() = std::move(words);
}

void SayLastWords() {
  std::function<void()> words;
  {
    const std::lock_guard lock(last_words_mutex);
    words.swap(LastWords());
  }
  if (words) words();
}

}  // namespace infinigen
