#include "cli/progress.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "cli/console.h"

namespace infinigen {
namespace {

constexpr std::chrono::milliseconds kFirstDrawn{1000};
constexpr std::chrono::milliseconds kRedrawn{100};
constexpr int kBarCells = 24;

}  // namespace

std::string ProgressLine(double fraction, int64_t tokens, double elapsed_s) {
  const int filled = std::clamp(static_cast<int>(fraction * kBarCells), 0, kBarCells);
  const std::string bar(static_cast<size_t>(filled), '#'), rest(static_cast<size_t>(kBarCells - filled), '-');
  const double rate = fraction * static_cast<double>(tokens) / elapsed_s;
  std::string line =
      fmt::format("prefill {:3.0f} % [{}{}] {} tokens  {:.0f} tok/s", fraction * 100, bar, rest, tokens, rate);
  if (fraction > 0) {
    const int64_t left = std::llround(elapsed_s / fraction * (1 - fraction));
    line += fmt::format("  ETA {}:{:02}", left / 60, left % 60);
  }
  return line;
}

Progress::Progress() : terminal_(::isatty(STDERR_FILENO) == 1) {}

void Progress::Expect(int64_t units, int64_t tokens) {
  if (units_ == units_done_) start_ = Clock::now();  // nothing was under way
  units_ += units;
  tokens_ += tokens;
}

void Progress::Advance(int64_t units) {
  units_done_ += units;
  if (!terminal_) return;
  if (units_done_ >= units_) return Erase();
  const Clock::time_point now = Clock::now();
  if (now - start_ < kFirstDrawn || now - last_drawn_ < kRedrawn) return;
  const double elapsed = std::chrono::duration<double>(now - start_).count();
  PrintStderr("\r\x1b[K{}",
              ProgressLine(static_cast<double>(units_done_) / static_cast<double>(units_), tokens_, elapsed));
  std::fflush(stderr);
  drawn_ = true;
  last_drawn_ = now;
}

void Progress::Erase() {
  if (!drawn_) return;
  PrintStderr("\r\x1b[K");
  std::fflush(stderr);
  drawn_ = false;
}

}  // namespace infinigen
