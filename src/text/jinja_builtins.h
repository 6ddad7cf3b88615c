// The tables of everything a chat template may call by name, and the state of a rendering that they work on. The parser
// looks names up here, so an unknown one is refused before anything runs; the evaluator calls what was found.
#pragma once

#include <array>
#include <ctime>
#include <deque>
#include <optional>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/jinja_budget.h"
#include "text/jinja_value.h"

namespace infinigen::jinja {

// One rendering. Never shared between threads.
struct Context {
  Budget budget;
  std::tm now = {};                  // local time, what strftime_now formats
  std::deque<Namespace> namespaces;  // the only owner; addresses are stable
  int line = 0;                      // of the expression being evaluated, for messages
  bool raised = false;               // the error is the template's own: raise_exception
};

using Arguments = std::vector<std::optional<Value>>;  // one for each parameter; empty where none was given
// An argument of none counts as not given.
inline bool Given(const Arguments& arguments, size_t index) {
  return arguments[index].has_value() && !arguments[index]->Is<None>();
}

enum class Receiver { kAny, kText, kDict };

struct Builtin {
  static constexpr size_t kMaxParameters = 4;

  std::string_view name;
  // `self`: what is filtered, tested, or whose method is called; it must be what `receiver` says.
  Result<Value> (*call)(Context& context, const Value& self, const Arguments& arguments);
  size_t required = 0;  // the first so many parameters must be given
  std::array<std::string_view, kMaxParameters> parameters = {};
  Receiver receiver = Receiver::kAny;  // other than kAny for methods only

  size_t parameter_count() const {
    size_t count = 0;
    while (count < kMaxParameters && !parameters[count].empty()) ++count;
    return count;
  }
};

// Null when there is none of that name. Tests return a bool.
const Builtin* FindFilter(std::string_view name);
const Builtin* FindTest(std::string_view name);
const Builtin* FindMethod(std::string_view name);

std::optional<Function> FindFunction(std::string_view name);

struct NamedValue {
  std::string_view name;
  Value value;
};
Result<Value> CallFunction(Context& context, Function function, const std::vector<Value>& arguments,
                           const std::vector<NamedValue>& keywords);

// datetime.strftime, for the conversions that dates in prompts use; others are refused by name.
Result<std::string> FormatTime(const std::tm& time, std::string_view format);

}  // namespace infinigen::jinja
