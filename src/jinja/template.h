// jinja::Template: an interpreter for chat templates. It supports a part of Jinja, listed in docs/chat-templates.md.
// Other modules include only this header, which brings jinja/value.h (the values of template variables) with it.
//
// A template is parsed once and rendered for every request. It is immutable, so any thread may render. Templates are
// untrusted code and run under limits: no template can make Parse or Render hang, crash or throw, or read anything
// except its variables and the time.
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
  uint64_t steps = 0;         // evaluated nodes, plus one for every 256 bytes of text that are read
  uint64_t made_bytes = 0;    // size of all values that are created, including those freed again
  uint64_t output_bytes = 0;  // printed text, including text that set blocks capture
};

class Template {
 public:
  // Fails with kUnsupported and "chat template: line N: ... is not supported" for unsupported parts of Jinja.
  static Result<Template> Parse(std::string_view source);

  // Fails with the template's own message when it calls raise_exception, otherwise with "chat template: line N: ...".
  // `now`: local time for strftime_now. Text that values of `variables` borrow must outlive the call.
  Result<std::string> Render(const Variables& variables, const RenderLimits& limits, const std::tm& now) const;

 private:
  explicit Template(std::shared_ptr<const Program> program) : program_(std::move(program)) {}

  std::shared_ptr<const Program> program_;
};

}  // namespace infinigen::jinja
