// Where `chat` gets its lines: from a person at a terminal, with editing and history (libedit), or from a pipe or file,
// as they are. One thread; at most one of them exists at a time.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"

namespace infinigen {

enum class LineEvent {
  kLine,
  kCancelled,  // Ctrl-C: what was typed is gone
  kEnd,        // end of input, or SIGTERM
};

class LineSource {
 public:
  virtual ~LineSource() = default;
  // The next line without its end; from a terminal it may contain line breaks that were pasted. `prompt` is shown to
  // people only.
  virtual Result<LineEvent> Read(const std::string& prompt, std::string* line) = 0;
  // What the up arrow brings back.
  virtual void Remember(const std::string& text) = 0;
  virtual bool terminal() const = 0;
};

// Chooses by what standard input is. Signals must be installed (cli/interrupt.h).
Result<std::unique_ptr<LineSource>> OpenStandardInput();

}  // namespace infinigen
