#include "cli/console.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace infinigen {

std::string OneLine(std::string_view text) {
  std::string line(text);
  for (char& c : line)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  return line;
}

void WriteStderr(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stderr); }

int Fail(const Error& error) {
  PrintStderr("infinigen: {}\n", OneLine(error.message));
  return kExitError;
}

int FailUsage(std::string_view where, std::string_view message) {
  const std::string command = where.empty() ? "infinigen" : fmt::format("infinigen {}", where);
  PrintStderr("infinigen: {} (see {} -h)\n", OneLine(message), command);
  return kExitUsage;
}

void Warn(std::string_view message) { PrintStderr("infinigen: warning: {}\n", OneLine(message)); }

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

}  // namespace infinigen
