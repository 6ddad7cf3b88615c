// The functions and methods of chat templates: range(), namespace(), strftime_now(), text.strip(), dict.get().
#include <fmt/format.h>

#include "base/utf8.h"
#include "jinja/evaluator.h"

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
      return Exhausted("range() of more than {} numbers is not allowed", kMaxRange);
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

constexpr std::string_view kMonths[] = {"January", "February", "March",     "April",   "May",      "June",
                                        "July",    "August",   "September", "October", "November", "December"};
constexpr std::string_view kDays[] = {"Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"};

// Appends one conversion; false when the letter is unknown. `pad`: pad with zeros.
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

// datetime.strftime for the conversions that occur in prompts; the error for another one names it.
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
      return Unsupported("strftime_now: format {} is not supported",
                         infinigen::Quoted(format.substr(start, i + 1 - start)));
    }
  }
  return out;
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
      return Unsupported("namespace(): an attribute that is not a string or starts with '_' is not supported");
    }
    RETURN_IF_ERROR(context.budget.Make(name.text()->size() + 2 * sizeof(Value)));
    space.attributes[*name.text()] = value;
  }
  context.namespaces.push_back(std::move(space));
  return Value(&context.namespaces.back());
}

// ---- methods; the evaluator has checked the type of `self` ----

// The string argument at `index`. Precondition: it was given.
Result<std::string_view> TextArgument(Context& context, std::string_view method, const Arguments& arguments,
                                      size_t index) {
  const std::string* text = arguments[index]->text();
  if (!text) return Invalid("{}() takes a string, not a {}", method, TypeName(*arguments[index]));
  RETURN_IF_ERROR(context.budget.Read(text->size()));
  return std::string_view(*text);
}

Result<int64_t> IntegerArgument(std::string_view method, const Arguments& arguments, size_t index, int64_t absent) {
  int64_t value = absent;
  if (arguments[index] && !AsInteger(*arguments[index], value)) {
    return Invalid("{}() takes an integer, not a {}", method, TypeName(*arguments[index]));
  }
  return value;
}

Result<Value> MakeTexts(Context& context, const std::vector<std::string_view>& parts) {
  List items;
  for (const std::string_view part : parts) {
    ASSIGN_OR_RETURN(Value item, MakeText(context.budget, std::string(part)));
    items.push_back(std::move(item));
  }
  return MakeSequence(context.budget, SequenceKind::kList, std::move(items));
}

template <std::string (*kTransform)(std::string_view)>
Result<Value> Transform(Context& context, const Value& self, const Arguments&) {
  RETURN_IF_ERROR(context.budget.Read(self.text()->size()));
  return MakeText(context.budget, kTransform(*self.text()));
}

template <bool kLeft, bool kRight>
Result<Value> StripText(Context& context, const Value& self, const Arguments& arguments) {
  RETURN_IF_ERROR(context.budget.Read(self.text()->size()));
  std::optional<std::string_view> characters;
  if (Given(arguments, 0)) {
    ASSIGN_OR_RETURN(characters, TextArgument(context,
                                              kLeft && kRight ? "strip"
                                              : kLeft         ? "lstrip"
                                                              : "rstrip",
                                              arguments, 0));
  }
  return MakeText(context.budget, std::string(Strip(*self.text(), characters, kLeft, kRight)));
}

template <bool kStart>
Result<Value> StartsOrEnds(Context& context, const Value& self, const Arguments& arguments) {
  const Value& given = *arguments[0];
  const bool tuple = given.sequence() && given.sequence()->kind == SequenceKind::kTuple;
  const List choices = tuple ? given.sequence()->items : List{given};
  for (const Value& choice : choices) {
    if (!choice.text())
      return Invalid("{}() takes a string or a tuple of strings, not a {}", kStart ? "startswith" : "endswith",
                     TypeName(choice));
    RETURN_IF_ERROR(context.budget.Read(choice.text()->size()));
    if (kStart ? self.text()->starts_with(*choice.text()) : self.text()->ends_with(*choice.text())) return Value(true);
  }
  return Value(false);
}

template <bool kPrefix>
Result<Value> RemoveAffix(Context& context, const Value& self, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const std::string_view affix,
                   TextArgument(context, kPrefix ? "removeprefix" : "removesuffix", arguments, 0));
  std::string_view text = *self.text();
  if (kPrefix && text.starts_with(affix)) text.remove_prefix(affix.size());
  if (!kPrefix && text.ends_with(affix)) text.remove_suffix(affix.size());
  return MakeText(context.budget, std::string(text));
}

Result<Value> Split(Context& context, const Value& self, const Arguments& arguments) {
  RETURN_IF_ERROR(context.budget.Make(self.text()->size() * sizeof(std::string_view)));
  ASSIGN_OR_RETURN(const int64_t limit, IntegerArgument("split", arguments, 1, -1));
  if (!Given(arguments, 0)) return MakeTexts(context, SplitAtSpace(*self.text(), limit));
  ASSIGN_OR_RETURN(const std::string_view separator, TextArgument(context, "split", arguments, 0));
  if (separator.empty()) return Invalid("split(): the separator is empty");
  return MakeTexts(context, SplitAt(*self.text(), separator, limit));
}

Result<Value> SplitIntoLines(Context& context, const Value& self, const Arguments&) {
  RETURN_IF_ERROR(context.budget.Make(self.text()->size() * sizeof(std::string_view)));
  return MakeTexts(context, SplitLines(*self.text()));
}

Result<Value> ReplaceIn(Context& context, const Value& self, const Arguments& arguments) {
  const std::string& text = *self.text();
  ASSIGN_OR_RETURN(const std::string_view needle, TextArgument(context, "replace", arguments, 0));
  ASSIGN_OR_RETURN(const std::string_view replacement, TextArgument(context, "replace", arguments, 1));
  ASSIGN_OR_RETURN(const int64_t limit, IntegerArgument("replace", arguments, 2, -1));
  RETURN_IF_ERROR(context.budget.Read(2 * text.size()));
  const size_t count = CountReplacements(text, needle, limit);
  uint64_t added = 0;
  if (__builtin_mul_overflow(count, replacement.size(), &added)) added = UINT64_MAX;
  RETURN_IF_ERROR(context.budget.Make(added));
  return MakeText(context.budget, Replace(text, needle, replacement, count));
}

Result<Value> FindIn(Context& context, const Value& self, const Arguments& arguments) {
  RETURN_IF_ERROR(context.budget.Read(2 * self.text()->size()));
  ASSIGN_OR_RETURN(const std::string_view needle, TextArgument(context, "find", arguments, 0));
  const size_t found = FindText(*self.text(), needle);
  if (found == std::string_view::npos) return Value(int64_t{-1});
  return Value(static_cast<int64_t>(CountCharacters(std::string_view(*self.text()).substr(0, found))));
}

Result<Value> JoinTexts(Context& context, const Value& self, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const SequencePtr items, Iterate(context.budget, *arguments[0]));
  std::string out;
  bool first = true;
  for (const Value& item : items->items) {
    if (!item.text()) return Invalid("join() takes strings, not a {}", TypeName(item));
    RETURN_IF_ERROR(context.budget.Make(item.text()->size() + self.text()->size()));
    if (!first) out += *self.text();
    first = false;
    out += *item.text();
  }
  return MakeText(context.budget, std::move(out));
}

Result<Value> Get(Context& context, const Value& self, const Arguments& arguments) {
  const Dict* dict = self.dict();
  if (arguments[0]->sequence() || arguments[0]->dict())
    return Invalid("a dict key cannot be a {}", TypeName(*arguments[0]));
  ASSIGN_OR_RETURN(const Value* found, Find(context.budget, *dict, *arguments[0]));
  if (found) return *found;
  return arguments[1] ? *arguments[1] : Value(None{});
}

enum class Part { kKey, kValue, kBoth };

template <Part kPart>
Result<Value> Entries(Context& context, const Value& self, const Arguments&) {
  const Dict* dict = self.dict();
  List items;
  for (const auto& [key, value] : dict->items) {
    RETURN_IF_ERROR(context.budget.Step());
    if (kPart == Part::kBoth) {
      ASSIGN_OR_RETURN(Value pair, MakeSequence(context.budget, SequenceKind::kTuple, {key, value}));
      items.push_back(std::move(pair));
    } else {
      items.push_back(kPart == Part::kKey ? key : value);
    }
  }
  return MakeSequence(context.budget, SequenceKind::kView, std::move(items));
}

constexpr Builtin kMethods[] = {
    {"capitalize", Transform<Capitalize>, 0, {}, Receiver::kText},
    {"endswith", StartsOrEnds<false>, 1, {"suffix"}, Receiver::kText},
    {"find", FindIn, 1, {"sub"}, Receiver::kText},
    {"get", Get, 1, {"key", "default"}, Receiver::kDict},
    {"items", Entries<Part::kBoth>, 0, {}, Receiver::kDict},
    {"join", JoinTexts, 1, {"iterable"}, Receiver::kText},
    {"keys", Entries<Part::kKey>, 0, {}, Receiver::kDict},
    {"lower", Transform<Lower>, 0, {}, Receiver::kText},
    {"lstrip", StripText<true, false>, 0, {"chars"}, Receiver::kText},
    {"removeprefix", RemoveAffix<true>, 1, {"prefix"}, Receiver::kText},
    {"removesuffix", RemoveAffix<false>, 1, {"suffix"}, Receiver::kText},
    {"replace", ReplaceIn, 2, {"old", "new", "count"}, Receiver::kText},
    {"rstrip", StripText<false, true>, 0, {"chars"}, Receiver::kText},
    {"split", Split, 0, {"sep", "maxsplit"}, Receiver::kText},
    {"splitlines", SplitIntoLines, 0, {}, Receiver::kText},
    {"startswith", StartsOrEnds<true>, 1, {"prefix"}, Receiver::kText},
    {"strip", StripText<true, true>, 0, {"chars"}, Receiver::kText},
    {"title", Transform<TitleLetters>, 0, {}, Receiver::kText},
    {"upper", Transform<Upper>, 0, {}, Receiver::kText},
    {"values", Entries<Part::kValue>, 0, {}, Receiver::kDict},
};

}  // namespace

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
  CHECK(false);
}

const Builtin* FindMethod(std::string_view name) {
  for (const Builtin& method : kMethods) {
    if (method.name == name) return &method;
  }
  return nullptr;
}

}  // namespace infinigen::jinja
