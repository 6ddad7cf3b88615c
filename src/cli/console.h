// What the commands say and where: results on stdout, everything else on stderr. One thread.
//
// An error is exactly one line, whatever bytes its message quotes. Exit codes: 0 done, 1 the input or the machine does
// not allow it, 2 the command line is wrong, 130 interrupted.
#pragma once

#include <fmt/core.h>

#include <string>
#include <string_view>
#include <utility>

#include "base/result.h"

namespace infinigen {

enum ExitCode : int { kExitOk = 0, kExitError = 1, kExitUsage = 2, kExitInterrupted = 130 };

// To stderr. A reader that went away, or a full disk, loses the text and nothing else: there is nobody left to tell.
void WriteStderr(std::string_view text);
template <class... Args>
void PrintStderr(fmt::format_string<Args...> format, Args&&... args) {
  WriteStderr(fmt::format(format, std::forward<Args>(args)...));
}

// Both print "infinigen: …" and return the exit code. `where` is the command ("generate"), empty before one is known.
int Fail(const Error& error);
int FailUsage(std::string_view where, std::string_view message);

void Warn(std::string_view message);

// `text` with line ends and other control characters made harmless.
std::string OneLine(std::string_view text);

// Standard output without a buffer: text appears as it is made. A reader that went away (`| head`) is not an error of
// ours: closed() tells the command to end quietly.
class Output {
 public:
  void Write(std::string_view text);
  bool closed() const { return closed_; }
  // What a failed write (a full disk) came to; Ok when every byte was taken or the reader is gone.
  Status status() const;

 private:
  bool closed_ = false;
  int failure_ = 0;  // errno of the first write that failed for another reason
};

}  // namespace infinigen
