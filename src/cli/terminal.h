// What a person at a terminal sees while a command works, on stderr: warnings and notices everywhere, a progress bar
// and a status line only where stderr is a terminal. It turns runtime's callbacks (runtime/callbacks.h) into these, and
// Ctrl-C into cancellation. One thread.
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

  // They call this object, so it outlives them.
  Callbacks callbacks();
  // Takes bar or status line off the screen, before anything else is written there.
  void Erase();

 private:
  using Clock = std::chrono::steady_clock;

  void ShowPrefill(const WorkProgress& progress);
  void Draw(std::string_view text);

  const bool terminal_;
  bool drawn_ = false;
  // The prefills under way, taken together. The bar appears once a second has passed.
  int64_t units_ = 0, units_done_ = 0, tokens_ = 0;
  Clock::time_point start_ = Clock::now(), last_drawn_{};
};

}  // namespace infinigen
