// A progress bar for a long prefill, on stderr, only where a person watches: a terminal, and only once a second has
// passed. Called from the engine's callbacks.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace infinigen {

// "prefill  42 % [########------------]  1234 tok/s  ETA 0:07". `tokens` in all; elapsed > 0, 0 ≤ fraction ≤ 1.
std::string ProgressLine(double fraction, int64_t tokens, double elapsed_s);

class Progress {
 public:
  // Counts nothing and draws nothing unless stderr is a terminal.
  Progress();

  // More work was announced: `units` of prefill for `tokens` tokens.
  void Expect(int64_t units, int64_t tokens);
  void Advance(int64_t units);
  // Takes the bar off the screen, before anything else is written there. It comes back with the next Advance.
  void Erase();

 private:
  using Clock = std::chrono::steady_clock;

  bool terminal_;
  bool drawn_ = false;
  int64_t units_ = 0;
  int64_t units_done_ = 0;
  int64_t tokens_ = 0;
  Clock::time_point start_ = Clock::now();
  Clock::time_point last_drawn_{};
};

}  // namespace infinigen
