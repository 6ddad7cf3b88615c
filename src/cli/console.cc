#include "cli/console.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "base/size.h"

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

std::string Bar(double fraction) {
  const int filled = std::clamp(static_cast<int>(fraction * kBarCells), 0, kBarCells);
  return std::string(static_cast<size_t>(filled), '#') + std::string(static_cast<size_t>(kBarCells - filled), '-');
}

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
  Install(SIGHUP, /*once=*/true);
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

std::string DownloadLine(uint64_t done, uint64_t total, double rate) {
  const double fraction = total == 0 ? 1 : static_cast<double>(done) / static_cast<double>(total);
  std::string line = fmt::format("downloading {:3.0f} % [{}] {} of {}", std::floor(fraction * 100), Bar(fraction),
                                 FormatSize(done), FormatSize(total));
  if (rate >= 1) {
    const int64_t left = std::llround(static_cast<double>(total - done) / rate);
    line += fmt::format("  {}/s  ETA {}:{:02}", FormatSize(static_cast<uint64_t>(rate)), left / 60, left % 60);
  }
  return line;
}

std::string ProgressLine(double fraction, int64_t tokens, double elapsed_s) {
  const double rate = fraction * static_cast<double>(tokens) / elapsed_s;
  std::string line =
      fmt::format("prefill {:3.0f} % [{}] {} tokens  {:.0f} tok/s", fraction * 100, Bar(fraction), tokens, rate);
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
                if (progress.kind == WorkKind::kDownload) return ShowDownload(progress);
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

void Terminal::ShowDownload(const WorkProgress& progress) {
  if (progress.done >= progress.total) return Erase();
  const Clock::time_point now = Clock::now();
  if (now - last_drawn_ < kRedrawn) return;
  // The rate counts from the first report: bytes of an earlier run are read from the disk.
  if (!drawn_) {
    start_ = now;
    first_bytes_ = progress.done;
  }
  const double elapsed = std::chrono::duration<double>(now - start_).count();
  const auto arrived = static_cast<double>(progress.done - first_bytes_);
  Draw(DownloadLine(static_cast<uint64_t>(progress.done), static_cast<uint64_t>(progress.total),
                    elapsed > 0 ? std::max(arrived / elapsed, 0.0) : 0));
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
