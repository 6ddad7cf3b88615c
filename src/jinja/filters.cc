// The filters of chat templates: `value | name(arguments)`.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "jinja/evaluator.h"

namespace infinigen::jinja {
namespace {

bool TrueArgument(const Arguments& arguments, size_t index) { return arguments[index] && IsTrue(*arguments[index]); }

// Text filters accept any value and work on its printed form.
template <std::string (*kTransform)(std::string_view)>
Result<Value> TransformText(Context& context, const Value& self, const Arguments&) {
  ASSIGN_OR_RETURN(const std::string text, ToText(context.budget, self));
  return MakeText(context.budget, kTransform(text));
}

Result<Value> Trim(Context& context, const Value& self, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const std::string text, ToText(context.budget, self));
  std::optional<std::string_view> characters;
  if (Given(arguments, 0)) {
    if (!arguments[0]->text()) return Invalid("filter 'trim' takes a string, not a {}", TypeName(*arguments[0]));
    characters = *arguments[0]->text();
    RETURN_IF_ERROR(context.budget.Read(characters->size()));
  }
  return MakeText(context.budget, std::string(Strip(text, characters, true, true)));
}

Result<Value> ToString(Context& context, const Value& self, const Arguments&) {
  if (self.text()) return self;
  ASSIGN_OR_RETURN(std::string text, ToText(context.budget, self));
  return MakeText(context.budget, std::move(text));
}

Result<Value> LengthOf(Context& context, const Value& self, const Arguments&) {
  ASSIGN_OR_RETURN(const int64_t length, Length(context.budget, self));
  return Value(length);
}

Result<Value> Default(Context& context, const Value& self, const Arguments& arguments) {
  const bool replace_false = arguments[1] && IsTrue(*arguments[1]);
  if (!self.Is<Undefined>() && !(replace_false && !IsTrue(self))) return self;
  if (arguments[0]) return *arguments[0];
  return MakeText(context.budget, "");
}

Result<Value> Join(Context& context, const Value& self, const Arguments& arguments) {
  std::string separator;
  if (arguments[0]) {
    ASSIGN_OR_RETURN(separator, ToText(context.budget, *arguments[0]));
  }
  ASSIGN_OR_RETURN(const SequencePtr items, Iterate(context.budget, self));
  std::string out;
  bool first = true;
  for (const Value& item : items->items) {
    if (!first) {
      RETURN_IF_ERROR(context.budget.Make(separator.size()));
      out += separator;
    }
    first = false;
    Value part = item;
    if (Given(arguments, 1)) {
      ASSIGN_OR_RETURN(part, GetPath(context, item, *arguments[1]));
    }
    ASSIGN_OR_RETURN(const std::string text, ToText(context.budget, part));
    out += text;
  }
  return MakeText(context.budget, std::move(out));
}

Result<Value> First(Context& context, const Value& self, const Arguments&) {
  if (self.text() && !self.text()->empty()) return GetItem(context, self, Value(int64_t{0}));
  ASSIGN_OR_RETURN(const SequencePtr items, Iterate(context.budget, self));
  if (items->items.empty()) return MakeUndefined("No first item, sequence was empty.");
  return items->items.front();
}

Result<Value> Last(Context& context, const Value& self, const Arguments&) {
  if (self.text() && !self.text()->empty()) return GetItem(context, self, Value(int64_t{-1}));
  const bool generator = self.sequence() && self.sequence()->kind == SequenceKind::kGenerator;
  if (generator) return Invalid("a {} has no last item", TypeName(self));
  ASSIGN_OR_RETURN(const SequencePtr items, Iterate(context.budget, self));
  if (items->items.empty()) return MakeUndefined("No last item, sequence was empty.");
  return items->items.back();
}

Result<Value> ToList(Context& context, const Value& self, const Arguments&) {
  ASSIGN_OR_RETURN(const SequencePtr items, Iterate(context.budget, self));
  return MakeSequence(context.budget, SequenceKind::kList, items->items);
}

Result<Value> Reverse(Context& context, const Value& self, const Arguments&) {
  if (self.text()) return GetSlice(context, self, {.step = -1});
  ASSIGN_OR_RETURN(const SequencePtr items, Iterate(context.budget, self));
  return MakeSequence(context.budget, SequenceKind::kGenerator, List(items->items.rbegin(), items->items.rend()));
}

Result<Value> Items(Context& context, const Value& self, const Arguments&) {
  List items;
  if (const Dict* dict = self.dict()) {
    for (const auto& [key, value] : dict->items) {
      ASSIGN_OR_RETURN(Value pair, MakeSequence(context.budget, SequenceKind::kTuple, {key, value}));
      items.push_back(std::move(pair));
    }
  } else if (!self.Is<Undefined>()) {
    return Invalid("Can only get item pairs from a mapping.");
  }
  return MakeSequence(context.budget, SequenceKind::kGenerator, std::move(items));
}

Result<Value> ReplaceText(Context& context, const Value& self, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const Value text, ToString(context, self, {}));
  ASSIGN_OR_RETURN(const Value needle, ToString(context, *arguments[0], {}));
  ASSIGN_OR_RETURN(const Value replacement, ToString(context, *arguments[1], {}));
  std::optional<Value> count = Given(arguments, 2) ? arguments[2] : std::nullopt;
  return FindMethod("replace")->call(context, text, {needle, replacement, std::move(count)});
}

// Python's int(text): digits with an optional sign and surrounding spaces.
std::optional<int64_t> ParseInteger(std::string_view text) {
  text = Strip(text, std::nullopt, true, true);
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

Result<Value> ToInteger(Context& context, const Value& self, const Arguments& arguments) {
  if (const Undefined* missing = self.If<Undefined>()) return UndefinedError(*missing);
  int64_t integer = 0;
  if (AsInteger(self, integer)) return Value(integer);
  const Value fallback = arguments[0] ? *arguments[0] : Value(int64_t{0});
  double real = NAN;
  if (const std::string* text = self.text()) {
    RETURN_IF_ERROR(context.budget.Read(text->size()));
    if (const std::optional<int64_t> parsed = ParseInteger(*text)) return Value(*parsed);
    const std::string_view digits = Strip(*text, std::nullopt, true, true);
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), real);
    if (error != std::errc() || end != digits.data() + digits.size()) return fallback;
  } else if (const double* number = self.If<double>()) {
    real = *number;
  }
  if (std::isnan(real)) return fallback;
  if (std::fabs(real) >= 9.2e18) return Invalid("integer overflow");
  return Value(static_cast<int64_t>(real));
}

Result<Value> AbsoluteValue(Context& context, const Value& self, const Arguments&) {
  ASSIGN_OR_RETURN(const Value negative, Negate(self, true));
  ASSIGN_OR_RETURN(const bool less, ApplyComparison(context, Operator::kLt, self, negative));
  return less ? negative : Negate(self, false);
}

Result<Value> Tojson(Context& context, const Value& self, const Arguments& arguments) {
  JsonStyle style;
  style.ascii = arguments[0] && IsTrue(*arguments[0]);
  if (Given(arguments, 1)) {
    int64_t indent = 0;
    if (!AsInteger(*arguments[1], indent))
      return Unsupported("tojson: an indent that is not an integer is not supported");
    if (indent > 64) return Unsupported("tojson: an indent of more than 64 is not supported");
    style.indent = std::max<int64_t>(indent, 0);
    style.item_separator = ",";
  }
  if (Given(arguments, 2)) {
    const Sequence* pair = arguments[2]->sequence();
    if (!pair || pair->items.size() != 2 || !pair->items[0].text() || !pair->items[1].text()) {
      return Invalid("tojson: separators must be two strings");
    }
    style.item_separator = *pair->items[0].text();
    style.key_separator = *pair->items[1].text();
  }
  style.sort_keys = arguments[3] && IsTrue(*arguments[3]);
  ASSIGN_OR_RETURN(std::string text, ToJson(context.budget, self, style));
  return MakeText(context.budget, std::move(text));
}

// The items for select and map, which treat any false value as empty.
Result<SequencePtr> IterateIfTrue(Context& context, const Value& value) {
  return Iterate(context.budget, IsTrue(value) ? value : Value(Undefined{}));
}

// select and reject; with kByAttribute selectattr and rejectattr, which take the attribute as first argument.
template <bool kKeep, bool kByAttribute>
Result<Value> Select(Context& context, const Value& self, const Arguments& arguments) {
  constexpr size_t kTest = kByAttribute ? 1 : 0;
  const Builtin* test = arguments[kTest] ? FindTest(*arguments[kTest]->text()) : nullptr;
  Arguments test_arguments(test ? test->parameter_count() : 0);
  if (arguments[kTest + 1]) {
    if (test_arguments.empty()) return Invalid("test '{}' takes no argument", test ? test->name : "");
    test_arguments[0] = arguments[kTest + 1];
  } else if (test && test->required > 0) {
    return Invalid("test '{}' needs an argument", test->name);
  }
  ASSIGN_OR_RETURN(const SequencePtr items, IterateIfTrue(context, self));
  List kept;
  for (const Value& item : items->items) {
    RETURN_IF_ERROR(context.budget.Step());
    Value subject = item;
    if (kByAttribute) {
      ASSIGN_OR_RETURN(subject, GetPath(context, item, *arguments[0]));
    }
    if (test) {
      ASSIGN_OR_RETURN(subject, test->call(context, subject, test_arguments));
    }
    if (IsTrue(subject) == kKeep) kept.push_back(item);
  }
  return MakeSequence(context.budget, SequenceKind::kGenerator, std::move(kept));
}

Result<Value> Map(Context& context, const Value& self, const Arguments& arguments) {
  if (arguments[0].has_value() == arguments[1].has_value())
    return Invalid("filter 'map' takes either a filter or an attribute");
  const Builtin* filter = arguments[0] ? FindFilter(*arguments[0]->text()) : nullptr;
  ASSIGN_OR_RETURN(const SequencePtr items, IterateIfTrue(context, self));
  List mapped;
  for (const Value& item : items->items) {
    RETURN_IF_ERROR(context.budget.Step());
    Value value;
    if (filter) {
      ASSIGN_OR_RETURN(value, filter->call(context, item, Arguments(filter->parameter_count())));
    } else {
      ASSIGN_OR_RETURN(value, GetPath(context, item, *arguments[1]));
      if (value.Is<Undefined>() && Given(arguments, 2)) value = *arguments[2];
    }
    mapped.push_back(std::move(value));
  }
  return MakeSequence(context.budget, SequenceKind::kGenerator, std::move(mapped));
}

Result<Value> Indent(Context& context, const Value& self, const Arguments& arguments) {
  if (const Undefined* missing = self.If<Undefined>()) return UndefinedError(*missing);
  if (!self.text()) return Invalid("filter 'indent' takes a string, not a {}", TypeName(self));
  std::string space(4, ' ');
  if (arguments[0]) {
    int64_t width = 0;
    if (arguments[0]->text()) {
      space = *arguments[0]->text();
    } else if (AsInteger(*arguments[0], width) && width <= 64) {
      space.assign(static_cast<size_t>(std::max<int64_t>(width, 0)), ' ');
    } else {
      return Unsupported("indent: a width that is no string and no integer up to 64 is not supported");
    }
  }
  RETURN_IF_ERROR(context.budget.Make(self.text()->size() * sizeof(std::string_view)));
  const std::string ended = *self.text() + "\n";
  const std::vector<std::string_view> lines = SplitLines(ended);
  RETURN_IF_ERROR(context.budget.Make(lines.size() * (space.size() + 1)));
  std::string out;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out += '\n';
    const bool indented = i == 0 ? TrueArgument(arguments, 1) : TrueArgument(arguments, 2) || !lines[i].empty();
    if (indented) out += space;
    out += lines[i];
  }
  return MakeText(context.budget, std::move(out));
}

Result<Value> Safe(Context& context, const Value& self, const Arguments&) {
  ASSIGN_OR_RETURN(const Value text, ToString(context, self, {}));
  return Value(Markup{*text.If<Text>()});
}

// ---- filters that compare items ----

// `value`, or its attribute at `path`. Text in lower case unless `case_sensitive`, as Jinja's filters compare it.
Result<Value> SortKey(Context& context, const Value& value, const std::optional<Value>& path, bool case_sensitive) {
  Value key = value;
  if (path && !path->Is<None>()) {
    ASSIGN_OR_RETURN(key, GetPath(context, value, *path));
  }
  if (case_sensitive || !key.text()) return key;
  return MakeText(context.budget, Lower(*key.text()));
}

// Sorts `items` by `keys`; equal keys keep their order, also in reverse. [items]
Result<List> SortBy(Context& context, const List& items, const List& keys, bool reverse) {
  std::vector<size_t> order(items.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  Status failure = Ok{};
  const auto less = [&](size_t a, size_t b) {
    if (!failure.ok()) return false;
    const Result<int> compared =
        reverse ? Order(context.budget, keys[b], keys[a]) : Order(context.budget, keys[a], keys[b]);
    if (!compared.ok()) failure = compared.error();
    return compared.ok() && *compared < 0;
  };
  std::stable_sort(order.begin(), order.end(), less);
  RETURN_IF_ERROR(failure);
  List out;
  for (const size_t index : order) out.push_back(items[index]);
  return out;
}

Result<List> SortKeys(Context& context, const List& items, const std::optional<Value>& path, bool case_sensitive) {
  List keys;
  for (const Value& item : items) {
    ASSIGN_OR_RETURN(Value key, SortKey(context, item, path, case_sensitive));
    keys.push_back(std::move(key));
  }
  return keys;
}

Result<Value> Sort(Context& context, const Value& self, const Arguments& arguments) {
  if (Given(arguments, 2) && arguments[2]->text() && arguments[2]->text()->find(',') != std::string::npos)
    return Unsupported("sort: several attributes are not supported");
  ASSIGN_OR_RETURN(const SequencePtr items, Iterate(context.budget, self));
  ASSIGN_OR_RETURN(List keys, SortKeys(context, items->items, arguments[2], TrueArgument(arguments, 1)));
  for (Value& key : keys) {  // Jinja compares lists of one value, so that equal values need no order
    ASSIGN_OR_RETURN(key, MakeSequence(context.budget, SequenceKind::kList, {key}));
  }
  ASSIGN_OR_RETURN(List sorted, SortBy(context, items->items, keys, TrueArgument(arguments, 0)));
  return MakeSequence(context.budget, SequenceKind::kList, std::move(sorted));
}

Result<Value> SortDict(Context& context, const Value& self, const Arguments& arguments) {
  if (const Undefined* missing = self.If<Undefined>()) return UndefinedError(*missing);
  if (!self.dict()) return Invalid("filter 'dictsort' takes a dict, not a {}", TypeName(self));
  int64_t part = 0;
  if (arguments[1]) {
    const std::string* by = arguments[1]->text();
    if (!by || (*by != "key" && *by != "value")) return Invalid("You can only sort by either \"key\" or \"value\"");
    part = *by == "key" ? 0 : 1;
  }
  List pairs;
  for (const auto& [key, value] : self.dict()->items) {
    ASSIGN_OR_RETURN(Value pair, MakeSequence(context.budget, SequenceKind::kTuple, {key, value}));
    pairs.push_back(std::move(pair));
  }
  ASSIGN_OR_RETURN(const List keys, SortKeys(context, pairs, Value(part), TrueArgument(arguments, 0)));
  ASSIGN_OR_RETURN(List sorted, SortBy(context, pairs, keys, TrueArgument(arguments, 2)));
  return MakeSequence(context.budget, SequenceKind::kList, std::move(sorted));
}

Result<Value> Unique(Context& context, const Value& self, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const SequencePtr items, Iterate(context.budget, self));
  List kept, seen;
  for (const Value& item : items->items) {
    ASSIGN_OR_RETURN(Value key, SortKey(context, item, arguments[1], TrueArgument(arguments, 0)));
    if (key.dict() || (key.sequence() && key.sequence()->kind == SequenceKind::kList))
      return Invalid("filter 'unique' cannot compare a {}", TypeName(key));
    bool known = false;
    for (size_t i = 0; i < seen.size() && !known; ++i) {
      ASSIGN_OR_RETURN(known, Equals(context.budget, seen[i], key));
    }
    if (known) continue;
    kept.push_back(item);
    seen.push_back(std::move(key));
  }
  return MakeSequence(context.budget, SequenceKind::kGenerator, std::move(kept));
}

// min and max: the first of the items with the extreme key.
template <bool kMax>
Result<Value> Extreme(Context& context, const Value& self, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const SequencePtr items, Iterate(context.budget, self));
  if (items->items.empty()) return MakeUndefined("No aggregated item, sequence was empty.");
  ASSIGN_OR_RETURN(const List keys, SortKeys(context, items->items, arguments[1], TrueArgument(arguments, 0)));
  size_t best = 0;
  for (size_t i = 1; i < keys.size(); ++i) {
    ASSIGN_OR_RETURN(const int order, Order(context.budget, keys[i], keys[best]));
    if (kMax ? order > 0 : order < 0) best = i;
  }
  return items->items[best];
}

constexpr Builtin kFilters[] = {
    {"abs", AbsoluteValue},
    {"capitalize", TransformText<Capitalize>},
    {"count", LengthOf},
    {"d", Default, 0, {"default_value", "boolean"}},
    {"default", Default, 0, {"default_value", "boolean"}},
    {"dictsort", SortDict, 0, {"case_sensitive", "by", "reverse"}},
    {"first", First},
    {"indent", Indent, 0, {"width", "first", "blank"}},
    {"int", ToInteger, 0, {"default"}},
    {"items", Items},
    {"join", Join, 0, {"d", "attribute"}},
    {"last", Last},
    {"length", LengthOf},
    {"list", ToList},
    {"lower", TransformText<Lower>},
    {"map", Map, 0, {"filter", "attribute", "default"}},
    {"max", Extreme<true>, 0, {"case_sensitive", "attribute"}},
    {"min", Extreme<false>, 0, {"case_sensitive", "attribute"}},
    {"reject", Select<false, false>, 0, {"test", "argument"}},
    {"rejectattr", Select<false, true>, 1, {"attribute", "test", "argument"}},
    {"replace", ReplaceText, 2, {"old", "new", "count"}},
    {"reverse", Reverse},
    {"safe", Safe},
    {"select", Select<true, false>, 0, {"test", "argument"}},
    {"selectattr", Select<true, true>, 1, {"attribute", "test", "argument"}},
    {"sort", Sort, 0, {"reverse", "case_sensitive", "attribute"}},
    {"string", ToString},
    {"title", TransformText<TitleWords>},
    {"tojson", Tojson, 0, {"ensure_ascii", "indent", "separators", "sort_keys"}},
    {"trim", Trim, 0, {"chars"}},
    {"unique", Unique, 0, {"case_sensitive", "attribute"}},
    {"upper", TransformText<Upper>},
};

}  // namespace

const Builtin* FindFilter(std::string_view name) {
  for (const Builtin& filter : kFilters) {
    if (filter.name == name) return &filter;
  }
  return nullptr;
}

}  // namespace infinigen::jinja
