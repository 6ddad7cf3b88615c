// What every command shares with the person or script that runs it: exit codes, results on stdout, everything else on
// stderr, and Ctrl-C as a question. One thread, but for the signal handlers.
//
// An error is exactly one line, whatever bytes its message quotes.
#pragma once

#include <fmt/core.h>

#include <string>
#include <string_view>
#include <utility>

#include "base/result.h"

namespace infinigen {

enum ExitCode : int {
  kExitOk = 0,
  kExitError = 1,          // the input or the machine does not allow it
  kExitUsage = 2,          // the command line is wrong
  kExitInterrupted = 130,  // Ctrl-C or SIGTERM
};

// ---- stderr ----

// Text that stderr does not take (the reader is gone, the disk is full) is lost; nothing else happens.
void WriteStderr(std::string_view text);
template <class... Args>
void PrintStderr(fmt::format_string<Args...> format, Args&&... args) {
  WriteStderr(fmt::format(format, std::forward<Args>(args)...));
}

void Warn(std::string_view message);

// Both print "infinigen: …" and return the exit code. `where` is the command ("generate"), empty before one is known.
int Fail(const Error& error);
int FailUsage(std::string_view where, std::string_view message);

// The exit code of a command that ended with `result`: prints its error, unless Ctrl-C is the reason.
int Finish(const Result<int>& result);

// ---- stdout ----

// Standard output without a buffer: text appears as it is made. A reader that went away (`| head`) is no error:
// closed() tells the command to end quietly.
class Output {
 public:
  void Write(std::string_view text);
  bool closed() const { return closed_; }
  // The first write that failed (a full disk); Ok when every byte was taken or the reader is gone.
  Status status() const;

 private:
  bool closed_ = false;
  int failure_ = 0;  // errno of that write
};

// ---- Ctrl-C and SIGTERM ----

// A command calls one of the two once, before it loads anything. Blocking reads return EINTR when a signal arrives.
//
// The first signal is remembered; the second one has the system's default action and ends the process.
void InstallInterrupt();
// For a command that goes on after Ctrl-C: every SIGINT is remembered until it is taken. SIGTERM as above.
void InstallRepeatedInterrupt();

bool Interrupted();
// The same, and forgets the signal, so that the next one counts anew.
bool TakeInterrupt();
// Whether SIGTERM came; never forgotten.
bool Terminated();

}  // namespace infinigen
