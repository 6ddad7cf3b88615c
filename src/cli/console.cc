#include "cli/console.h"

#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>

namespace infinigen {
namespace {

// A signal handler can reach nothing but a global.
volatile std::sig_atomic_t interrupted = 0;
volatile std::sig_atomic_t terminated = 0;

void Remember(int signal) {
  if (signal == SIGTERM) terminated = 1;
  interrupted = 1;
}

void Install(int signal, bool once) {
  struct sigaction action {};
  action.sa_handler = Remember;
  // Not SA_RESTART: a wait for standard input must end. SA_RESETHAND: the second signal kills.
  action.sa_flags = once ? static_cast<int>(SA_RESETHAND) : 0;
  sigemptyset(&action.sa_mask);
  sigaction(signal, &action, nullptr);
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

}  // namespace infinigen
