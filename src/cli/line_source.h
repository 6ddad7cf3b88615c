// LineSource: the input of `chat`, line by line. At a terminal, lines are typed with editing and history (libedit);
// from a pipe or file they are read unchanged. One thread; at most one object at a time.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"

namespace infinigen {

enum class LineEvent {
  kLine,
  kCancelled,  // Ctrl-C: the typed text is discarded
  kEnd,        // end of input, or SIGTERM
};

class LineSource {
 public:
  virtual ~LineSource() = default;
  // Reads the next line, without its end; at a terminal it may contain pasted line breaks. `prompt` is shown only at a
  // terminal.
  virtual Result<LineEvent> Read(const std::string& prompt, std::string* line) = 0;
  // Adds a line to the history.
  virtual void Remember(const std::string& text) = 0;
  virtual bool terminal() const = 0;
};

// Opens standard input as a terminal or a pipe. Precondition: InstallInterrupt or InstallRepeatedInterrupt was called.
Result<std::unique_ptr<LineSource>> OpenStandardInput();

}  // namespace infinigen
