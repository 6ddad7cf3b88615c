// The console of a command: exit codes, results on stdout, messages and progress on stderr, Ctrl-C. One thread, except
// for the signal handlers.
//
// An error message is always exactly one line: line breaks and control characters in quoted text are replaced.
#pragma once

#include <fmt/core.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "base/result.h"
#include "runtime/callbacks.h"

namespace infinigen {

enum ExitCode : int {
  kExitOk = 0,
  kExitError = 1,          // invalid input, or the machine cannot do it
  kExitUsage = 2,          // the command line is wrong
  kExitInterrupted = 130,  // Ctrl-C or SIGTERM
};

// ---- stderr ----

// Text that cannot be written (closed pipe, full disk) is lost silently.
void WriteStderr(std::string_view text);
template <class... Args>
void PrintStderr(fmt::format_string<Args...> format, Args&&... args) {
  WriteStderr(fmt::format(format, std::forward<Args>(args)...));
}

void Warn(std::string_view message);

// Both print "infinigen: …" and return the exit code. `where` is the command ("generate"), empty if it is not known.
int Fail(const Error& error);
int FailUsage(std::string_view where, std::string_view message);

// The exit code of a command that returned `result`. Prints its error unless the command was interrupted.
int Finish(const Result<int>& result);

// ---- stdout ----

// Unbuffered standard output, so that streamed text appears at once. A closed pipe (`| head`) is not an error: closed()
// tells the command to end quietly.
class Output {
 public:
  void Write(std::string_view text);
  bool closed() const { return closed_; }
  // The error of the first failed write (a full disk); Ok if every byte was written or the pipe was closed.
  Status status() const;

 private:
  bool closed_ = false;
  int failure_ = 0;  // errno of the failed write
};

// ---- progress on stderr ----

// "prefill  42 % [########------------] 5000 tokens  1234 tok/s  ETA 0:07". `tokens` is the total; elapsed_s > 0,
// 0 ≤ fraction ≤ 1.
std::string ProgressLine(double fraction, int64_t tokens, double elapsed_s);
// "downloading  42 % [########------------] 1.9 GiB of 4.6 GiB  35.1 MiB/s  ETA 1:18". `rate`: bytes per second; below
// 1, rate and time are left out. done ≤ total.
std::string DownloadLine(uint64_t done, uint64_t total, double rate);

// Shows what runtime and eval report through callbacks (runtime/callbacks.h). Warnings and notices are always printed;
// a progress bar and a status line only if stderr is a terminal. Ctrl-C cancels the work.
class Terminal {
 public:
  Terminal();
  ~Terminal() { Erase(); }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  // The callbacks refer to this object, which outlives them.
  Callbacks callbacks();
  // Removes the bar or status line. Call it before writing anything else to the screen.
  void Erase();

 private:
  using Clock = std::chrono::steady_clock;

  void ShowPrefill(const WorkProgress& progress);
  void ShowDownload(const WorkProgress& progress);
  void Draw(std::string_view text);

  const bool terminal_;
  bool drawn_ = false;
  // Sums over all prefills that run together. The bar appears after a second.
  int64_t units_ = 0, units_done_ = 0, tokens_ = 0;
  Clock::time_point start_ = Clock::now(), last_drawn_{};
  int64_t first_bytes_ = 0;  // of a download: done when the bar appeared
};

// ---- Ctrl-C and SIGTERM ----

// A command calls one of these two once, before it loads anything. Blocking reads return EINTR when a signal arrives.
//
// The first signal sets a flag; a second one has the system's default action and ends the process.
void InstallInterrupt();
// For a command that continues after Ctrl-C: every SIGINT sets the flag. SIGTERM works as above.
void InstallRepeatedInterrupt();

// Whether SIGINT or SIGTERM arrived.
bool Interrupted();
// The same, and clears the flag.
bool TakeInterrupt();
// Whether SIGTERM arrived; never cleared.
bool Terminated();

}  // namespace infinigen
