// jinja::Template: the interpreter of chat templates, a part of Jinja (docs/chat-templates.md says which). Other
// modules include this header alone; the values that a template reads are in jinja/value.h, which comes with it.
//
// Parsed once, rendered for every request; immutable, so any thread may render. A template is foreign code and runs
// under limits: none can make Parse or Render hang, crash, throw or read anything but its variables and the time.
#pragma once

#include <cstdint>
#include <ctime>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "base/result.h"
#include "jinja/value.h"

namespace infinigen::jinja {

struct Program;  // jinja/parser.h

using Variables = std::map<std::string, Value, std::less<>>;

struct RenderLimits {
  uint64_t steps = 0;         // evaluated nodes, and reads of 256 bytes of text
  uint64_t made_bytes = 0;    // all values that are made, freed or not
  uint64_t output_bytes = 0;  // printed text, including what goes into variables
};

class Template {
 public:
  // Fails with kUnsupported and "chat template: line N: ... is not supported" for what the interpreter does not know.
  static Result<Template> Parse(std::string_view source);

  // Fails with the template's own words where it calls raise_exception, else with "chat template: line N: ...". `now`:
  // local time, for strftime_now. Values of `variables` that borrow their text must outlive the call.
  Result<std::string> Render(const Variables& variables, const RenderLimits& limits, const std::tm& now) const;

 private:
  explicit Template(std::shared_ptr<const Program> program) : program_(std::move(program)) {}

  std::shared_ptr<const Program> program_;
};

}  // namespace infinigen::jinja
