// The functions of chat templates: range, namespace, dict, and those that transformers adds.
#include <fmt/format.h>

#include "text/jinja_builtins.h"
#include "text/jinja_print.h"

namespace infinigen::jinja {
namespace {

constexpr int64_t kMaxRange = 100'000;  // the limit of Jinja's sandbox

Result<Value> Range(Context& context, const std::vector<Value>& arguments) {
  if (arguments.empty() || arguments.size() > 3) return Invalid("range() takes one to three integers");
  std::vector<int64_t> numbers;
  for (const Value& argument : arguments) {
    int64_t number = 0;
    if (!AsInteger(argument, number)) return Invalid("range() takes integers, not a {}", TypeName(argument));
    numbers.push_back(number);
  }
  const int64_t start = numbers.size() > 1 ? numbers[0] : 0;
  const int64_t stop = numbers.size() > 1 ? numbers[1] : numbers[0];
  const int64_t step = numbers.size() > 2 ? numbers[2] : 1;
  if (step == 0) return Invalid("the step of range() cannot be zero");
  List items;
  for (int64_t i = start; step > 0 ? i < stop : i > stop;) {
    if (static_cast<int64_t>(items.size()) == kMaxRange) {
      return Exhausted("range() of more than {} numbers", kMaxRange);
    }
    items.emplace_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return MakeSequence(context.budget, SequenceKind::kRange, std::move(items));
}

Result<Value> RaiseException(Context& context, const std::vector<Value>& arguments) {
  if (arguments.size() != 1) return Invalid("raise_exception() takes one message");
  ASSIGN_OR_RETURN(const std::string message, ToText(context.budget, arguments[0]));
  context.raised = true;
  return Invalid("{}", message);
}

Result<Value> StrftimeNow(Context& context, const std::vector<Value>& arguments) {
  if (arguments.size() != 1 || !arguments[0].text()) return Invalid("strftime_now() takes one string");
  RETURN_IF_ERROR(context.budget.Make(8 * arguments[0].text()->size()));
  ASSIGN_OR_RETURN(std::string text, FormatTime(context.now, *arguments[0].text()));
  return MakeText(context.budget, std::move(text));
}

Result<Value> MakeDictOf(Context& context, const std::vector<Value>& arguments,
                         const std::vector<NamedValue>& keywords) {
  if (arguments.size() > 1) return Invalid("dict() takes at most one positional argument");
  std::vector<std::pair<Value, Value>> items;
  if (!arguments.empty()) {
    const Dict* dict = arguments[0].dict();
    if (!dict) return Unsupported("dict() of a {} is not supported", TypeName(arguments[0]));
    items = dict->items;
  }
  for (const NamedValue& keyword : keywords) {
    items.emplace_back(std::make_shared<const std::string>(keyword.name), keyword.value);
  }
  return MakeDict(context.budget, items);
}

Result<Value> MakeNamespace(Context& context, const std::vector<Value>& arguments,
                            const std::vector<NamedValue>& keywords) {
  ASSIGN_OR_RETURN(const Value attributes, MakeDictOf(context, arguments, keywords));
  RETURN_IF_ERROR(context.budget.Make(sizeof(Namespace)));
  Namespace space;
  for (const auto& [name, value] : attributes.dict()->items) {
    if (!name.text() || name.text()->starts_with("_")) {
      return Unsupported("a namespace attribute that is no name, or starts with '_', is not supported");
    }
    RETURN_IF_ERROR(context.budget.Make(name.text()->size() + 2 * sizeof(Value)));
    space.attributes[*name.text()] = value;
  }
  context.namespaces.push_back(std::move(space));
  return Value(&context.namespaces.back());
}

constexpr std::string_view kMonths[] = {"January", "February", "March",     "April",   "May",      "June",
                                        "July",    "August",   "September", "October", "November", "December"};
constexpr std::string_view kDays[] = {"Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"};

// One conversion; false when there is none of that letter. `pad`: to two digits.
bool AppendConversion(const std::tm& time, char letter, bool pad, std::string& out) {
  const auto two = [&](int value) { out += pad ? fmt::format("{:02}", value) : fmt::format("{}", value); };
  const std::string_view month = kMonths[static_cast<size_t>(time.tm_mon) % 12];
  const std::string_view day = kDays[static_cast<size_t>(time.tm_wday) % 7];
  switch (letter) {
    case 'd':
      two(time.tm_mday);
      return true;
    case 'e':
      out += fmt::format("{:>2}", time.tm_mday);
      return true;
    case 'm':
      two(time.tm_mon + 1);
      return true;
    case 'b':
    case 'h':
      out += month.substr(0, 3);
      return true;
    case 'B':
      out += month;
      return true;
    case 'y':
      two(time.tm_year % 100);
      return true;
    case 'Y':
      out += fmt::format("{}", time.tm_year + 1900);
      return true;
    case 'H':
      two(time.tm_hour);
      return true;
    case 'I':
      two(time.tm_hour % 12 == 0 ? 12 : time.tm_hour % 12);
      return true;
    case 'M':
      two(time.tm_min);
      return true;
    case 'S':
      two(time.tm_sec);
      return true;
    case 'p':
      out += time.tm_hour < 12 ? "AM" : "PM";
      return true;
    case 'a':
      out += day.substr(0, 3);
      return true;
    case 'A':
      out += day;
      return true;
    case 'j':
      out += pad ? fmt::format("{:03}", time.tm_yday + 1) : fmt::format("{}", time.tm_yday + 1);
      return true;
    case 'F':
      out += fmt::format("{}-{:02}-{:02}", time.tm_year + 1900, time.tm_mon + 1, time.tm_mday);
      return true;
    case 'T':
      out += fmt::format("{:02}:{:02}:{:02}", time.tm_hour, time.tm_min, time.tm_sec);
      return true;
    case '%':
      out += '%';
      return true;
    default:
      return false;
  }
}

}  // namespace

Result<std::string> FormatTime(const std::tm& time, std::string_view format) {
  std::string out;
  for (size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%') {
      out.push_back(format[i]);
      continue;
    }
    const size_t start = i++;
    const bool unpadded = i < format.size() && format[i] == '-';
    if (unpadded) ++i;
    if (i >= format.size() || !AppendConversion(time, format[i], !unpadded, out)) {
      return Unsupported("strftime_now: '{}' is not supported", format.substr(start, i + 1 - start));
    }
  }
  return out;
}

std::optional<Function> FindFunction(std::string_view name) {
  if (name == "range") return Function::kRange;
  if (name == "raise_exception") return Function::kRaiseException;
  if (name == "strftime_now") return Function::kStrftimeNow;
  if (name == "namespace") return Function::kNamespace;
  if (name == "dict") return Function::kDict;
  return std::nullopt;
}

Result<Value> CallFunction(Context& context, Function function, const std::vector<Value>& arguments,
                           const std::vector<NamedValue>& keywords) {
  switch (function) {
    case Function::kRange:
      return Range(context, arguments);
    case Function::kRaiseException:
      return RaiseException(context, arguments);
    case Function::kStrftimeNow:
      return StrftimeNow(context, arguments);
    case Function::kNamespace:
      return MakeNamespace(context, arguments, keywords);
    case Function::kDict:
      return MakeDictOf(context, arguments, keywords);
  }
  return Invalid("no such function");
}

}  // namespace infinigen::jinja
