// LineSource: the lines that `chat` reads. At a terminal they are typed with editing and history (libedit); from a pipe
// or file they are read as they are. One thread; at most one object at a time.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"

namespace infinigen {

enum class LineEvent {
  kLine,
  kCancelled,  // Ctrl-C: the typed text is dropped
  kEnd,        // end of input, or SIGTERM
};

class LineSource {
 public:
  virtual ~LineSource() = default;
  // The next line without its end; from a terminal it may contain pasted line breaks. `prompt` is shown at a terminal
  // only.
  virtual Result<LineEvent> Read(const std::string& prompt, std::string* line) = 0;
  // Adds a line to the history of the up arrow.
  virtual void Remember(const std::string& text) = 0;
  virtual bool terminal() const = 0;
};

// The source that fits standard input. Precondition: signals are installed (cli/console.h).
Result<std::unique_ptr<LineSource>> OpenStandardInput();

}  // namespace infinigen
