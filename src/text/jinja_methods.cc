// The methods of chat templates: text.strip(), dict.get(). The evaluator has checked what they are called on.
#include "text/jinja_builtins.h"
#include "text/jinja_operators.h"
#include "text/jinja_text.h"

namespace infinigen::jinja {
namespace {

// The string argument at `index`, which must be given.
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
    ASSIGN_OR_RETURN(characters, TextArgument(context, "strip", arguments, 0));
  }
  return MakeText(context.budget, std::string(Strip(*self.text(), characters, kLeft, kRight)));
}

template <bool kStart>
Result<Value> StartsOrEnds(Context& context, const Value& self, const Arguments& arguments) {
  const Value& given = *arguments[0];
  const bool tuple = given.sequence() && given.sequence()->kind == SequenceKind::kTuple;
  const List choices = tuple ? given.sequence()->items : List{given};
  for (const Value& choice : choices) {
    if (!choice.text()) return Invalid("startswith() takes a string or a tuple of strings, not a {}", TypeName(choice));
    RETURN_IF_ERROR(context.budget.Read(choice.text()->size()));
    if (kStart ? self.text()->starts_with(*choice.text()) : self.text()->ends_with(*choice.text())) return Value(true);
  }
  return Value(false);
}

template <bool kPrefix>
Result<Value> RemoveAffix(Context& context, const Value& self, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const std::string_view affix, TextArgument(context, "removeprefix", arguments, 0));
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
  if (separator.empty()) return Invalid("split() with an empty separator");
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

const Builtin* FindMethod(std::string_view name) {
  for (const Builtin& method : kMethods) {
    if (method.name == name) return &method;
  }
  return nullptr;
}

}  // namespace infinigen::jinja
