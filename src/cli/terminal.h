// Terminal: what a command shows on stderr while it works. Warnings and notices are always written; a progress bar and
// a status line only where stderr is a terminal. Commands pass its callbacks (runtime/callbacks.h) to runtime and eval;
// Ctrl-C becomes cancellation. One thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/callbacks.h"

namespace infinigen {

// "prefill  42 % [########------------]  1234 tok/s  ETA 0:07". `tokens` in all; elapsed > 0, 0 ≤ fraction ≤ 1.
std::string ProgressLine(double fraction, int64_t tokens, double elapsed_s);

class Terminal {
 public:
  Terminal();
  ~Terminal() { Erase(); }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  // They call this object, which outlives them.
  Callbacks callbacks();
  // Removes bar or status line; call it before anything else is written to the screen.
  void Erase();

 private:
  using Clock = std::chrono::steady_clock;

  void ShowPrefill(const WorkProgress& progress);
  void Draw(std::string_view text);

  const bool terminal_;
  bool drawn_ = false;
  // All prefills under way together. The bar appears after a second.
  int64_t units_ = 0, units_done_ = 0, tokens_ = 0;
  Clock::time_point start_ = Clock::now(), last_drawn_{};
};

}  // namespace infinigen
