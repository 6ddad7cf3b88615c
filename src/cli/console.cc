#include "cli/console.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstring>

namespace infinigen {
namespace {

// Global because a signal handler cannot reach anything else.
volatile std::sig_atomic_t interrupted = 0;
volatile std::sig_atomic_t terminated = 0;

void Remember(int signal) {
  if (signal == SIGTERM) terminated = 1;
  interrupted = 1;
}

void Install(int signal, bool once) {
  struct sigaction action {};
  action.sa_handler = Remember;
  // Without SA_RESTART a blocking read of standard input ends. With SA_RESETHAND the second signal kills the process.
  action.sa_flags = once ? static_cast<int>(SA_RESETHAND) : 0;
  sigemptyset(&action.sa_mask);
  sigaction(signal, &action, nullptr);
}

constexpr std::chrono::milliseconds kFirstDrawn{1000};
constexpr std::chrono::milliseconds kRedrawn{100};
constexpr int kBarCells = 24;

}  // namespace

void WriteStderr(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stderr); }

void Warn(std::string_view message) { PrintStderr("infinigen: warning: {}\n", OneLine(message)); }

int Fail(const Error& error) {
  PrintStderr("infinigen: {}\n", OneLine(error.message));
  return kExitError;
}

int FailUsage(std::string_view where, std::string_view message) {
  const std::string command = where.empty() ? "infinigen" : fmt::format("infinigen {}", where);
  PrintStderr("infinigen: {} (see {} -h)\n", OneLine(message), command);
  return kExitUsage;
}

int Finish(const Result<int>& result) {
  if (result.ok()) return *result;
  return Interrupted() ? static_cast<int>(kExitInterrupted) : Fail(result.error());
}

void Output::Write(std::string_view text) {
  while (!text.empty() && !closed_ && failure_ == 0) {
    const ssize_t written = ::write(STDOUT_FILENO, text.data(), text.size());
    if (written >= 0)
      text.remove_prefix(static_cast<size_t>(written));
    else if (errno == EPIPE)
      closed_ = true;
    else if (errno != EINTR)
      failure_ = errno;
  }
}

Status Output::status() const {
  if (failure_ != 0) return IoError("standard output: write failed: {}", std::strerror(failure_));
  return Ok();
}

void InstallInterrupt() {
  Install(SIGINT, /*once=*/true);
  Install(SIGTERM, /*once=*/true);
}

void InstallRepeatedInterrupt() {
  Install(SIGINT, /*once=*/false);
  Install(SIGTERM, /*once=*/true);
}

bool Interrupted() { return interrupted != 0; }

bool TakeInterrupt() {
  const bool was = interrupted != 0;
  interrupted = 0;
  return was;
}

bool Terminated() { return terminated != 0; }

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
    if (units_ == units_done_) start_ = Clock::now();  // no other prefill is running
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
