#include "cli/terminal.h"

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

Terminal::Terminal() : terminal_(::isatty(STDERR_FILENO) == 1) {}

Callbacks Terminal::callbacks() {
  return {.on_warning =
              [this](std::string_view message) {
                Erase();
                Warn(message);
              },
          .on_notice =
              [this](std::string_view message) {
                Erase();
                PrintStderr("{}\n", OneLine(message));
              },
          .on_status = [this](std::string_view text) { text.empty() ? Erase() : Draw(text); },
          .on_progress =
              [this](const WorkProgress& progress) {
                if (progress.kind == WorkKind::kPrefill) return ShowPrefill(progress);
                if (progress.done == progress.total) return Erase();
                Draw(fmt::format("calibrating: {} %", 100 * progress.done / progress.total));
              },
          .cancelled = Interrupted};
}

void Terminal::ShowPrefill(const WorkProgress& progress) {
  if (progress.done == 1) {
    if (units_ == units_done_) start_ = Clock::now();  // nothing was under way
    units_ += progress.total;
    tokens_ += progress.tokens;
  }
  ++units_done_;
  if (units_done_ >= units_) return Erase();
  const Clock::time_point now = Clock::now();
  if (now - start_ < kFirstDrawn || now - last_drawn_ < kRedrawn) return;
  const double elapsed = std::chrono::duration<double>(now - start_).count();
  Draw(ProgressLine(static_cast<double>(units_done_) / static_cast<double>(units_), tokens_, elapsed));
  last_drawn_ = now;
}

void Terminal::Draw(std::string_view text) {
  if (!terminal_) return;
  PrintStderr("\r\x1b[K{}", text);
  std::fflush(stderr);
  drawn_ = true;
}

void Terminal::Erase() {
  if (!drawn_) return;
  PrintStderr("\r\x1b[K");
  std::fflush(stderr);
  drawn_ = false;
}

}  // namespace infinigen
