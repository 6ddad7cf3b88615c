// The operators, attributes, subscripts and slices of chat templates.
#include <algorithm>
#include <cmath>

#include "jinja/evaluator.h"

namespace infinigen::jinja {
namespace {

constexpr std::string_view kSymbols[] = {"+", "-", "*", "/", "//", "%", "**"};

Error BadOperands(Operator op, const Value& left, const Value& right) {
  return Invalid("unsupported operands for {}: {} and {}", kSymbols[static_cast<size_t>(op)], TypeName(left),
                 TypeName(right));
}

std::optional<double> AsReal(const Value& value) {
  int64_t integer = 0;
  if (AsInteger(value, integer)) return static_cast<double>(integer);
  if (const double* real = value.If<double>()) return *real;
  return std::nullopt;
}

Result<Value> IntegerPower(int64_t base, int64_t exponent) {
  if (exponent < 0) {
    if (base == 0) return Invalid("division by zero");
    return Value(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  int64_t out = 1;
  if (base == 0 || base == 1) return exponent == 0 ? Value(int64_t{1}) : Value(base);
  if (base == -1) return Value(exponent % 2 == 0 ? int64_t{1} : int64_t{-1});
  for (; exponent > 0; --exponent) {  // overflows after at most 63 iterations
    if (__builtin_mul_overflow(out, base, &out)) return Invalid("integer overflow");
  }
  return Value(out);
}

Result<Value> ApplyToIntegers(Operator op, int64_t a, int64_t b) {
  int64_t out = 0;
  bool overflow = false;
  switch (op) {
    case Operator::kAdd:
      overflow = __builtin_add_overflow(a, b, &out);
      break;
    case Operator::kSub:
      overflow = __builtin_sub_overflow(a, b, &out);
      break;
    case Operator::kMul:
      overflow = __builtin_mul_overflow(a, b, &out);
      break;
    case Operator::kPow:
      return IntegerPower(a, b);
    case Operator::kDiv:
      if (b == 0) return Invalid("division by zero");
      return Value(static_cast<double>(a) / static_cast<double>(b));
    default:
      if (b == 0) return Invalid("division by zero");
      if (b == -1) {  // the only divisor for which the quotient can overflow
        overflow = op == Operator::kFloorDiv && __builtin_sub_overflow(int64_t{0}, a, &out);
        break;
      }
      const bool uneven = a % b != 0 && ((a < 0) != (b < 0));  // Python rounds down
      out = op == Operator::kFloorDiv ? a / b - (uneven ? 1 : 0) : a % b + (uneven ? b : 0);
  }
  if (overflow) return Invalid("integer overflow");
  return Value(out);
}

Result<Value> ApplyToReals(Operator op, double a, double b) {
  switch (op) {
    case Operator::kAdd:
      return Value(a + b);
    case Operator::kSub:
      return Value(a - b);
    case Operator::kMul:
      return Value(a * b);
    case Operator::kPow: {
      const double power = std::pow(a, b);
      if (!std::isfinite(power) && std::isfinite(a) && std::isfinite(b)) return Invalid("the power is out of range");
      return Value(power);
    }
    default:
      break;
  }
  if (b == 0) return Invalid("division by zero");
  if (op == Operator::kDiv) return Value(a / b);
  double remainder = std::fmod(a, b);
  if (remainder != 0 && ((remainder < 0) != (b < 0))) remainder += b;
  if (op == Operator::kMod) return Value(remainder == 0 ? std::copysign(0.0, b) : remainder);
  return Value(std::floor((a - remainder) / b + 0.5));
}

// text * n and list * n.
Result<Value> Repeat(Context& context, const Value& value, int64_t times) {
  const auto count = static_cast<uint64_t>(std::max<int64_t>(times, 0));
  if (const std::string* text = value.text()) {
    uint64_t bytes = 0;
    if (__builtin_mul_overflow(count, text->size(), &bytes)) bytes = UINT64_MAX;
    RETURN_IF_ERROR(context.budget.Make(bytes));
    std::string out;
    out.reserve(bytes);
    for (uint64_t i = 0; i < count && !text->empty(); ++i) out += *text;
    return MakeText(context.budget, std::move(out));
  }
  const Sequence& sequence = *value.sequence();
  uint64_t items = 0;
  if (__builtin_mul_overflow(count, sequence.items.size(), &items) || items > UINT64_MAX / sizeof(Value)) {
    return Exhausted("the values that the template creates are too large");
  }
  RETURN_IF_ERROR(context.budget.Make(items * sizeof(Value)));
  List out;
  out.reserve(items);
  for (uint64_t i = 0; i < count && !sequence.items.empty(); ++i) {
    out.insert(out.end(), sequence.items.begin(), sequence.items.end());
  }
  return MakeSequence(context.budget, sequence.kind, std::move(out));
}

bool IsListOrTuple(const Value& value) {
  const Sequence* sequence = value.sequence();
  return sequence && (sequence->kind == SequenceKind::kList || sequence->kind == SequenceKind::kTuple);
}

// Markup + Markup; text is escaped first.
Result<Value> AddMarkup(Context& context, const Value& left, const Value& right) {
  std::string out;
  for (const Value* side : {&left, &right}) {
    const Markup* markup = side->If<Markup>();
    if (!markup && !side->text()) return BadOperands(Operator::kAdd, left, right);
    const std::string& text = markup ? *markup->text : *side->text();
    RETURN_IF_ERROR(context.budget.Make(5 * text.size()));  // the longest escape has five characters
    for (const char c : text) {
      const size_t at = markup ? std::string_view::npos : std::string_view("&<>'\"").find(c);
      constexpr std::string_view kEscapes[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
      if (at == std::string_view::npos) {
        out.push_back(c);
      } else {
        out += kEscapes[at];
      }
    }
  }
  return Value(Markup{std::make_shared<const std::string>(std::move(out))});
}

Result<Value> Add(Context& context, const Value& left, const Value& right) {
  if (left.Is<Markup>() || right.Is<Markup>()) return AddMarkup(context, left, right);
  if (left.text() && right.text()) {
    RETURN_IF_ERROR(context.budget.Make(left.text()->size() + right.text()->size()));
    return MakeText(context.budget, *left.text() + *right.text());
  }
  if (IsListOrTuple(left) && IsListOrTuple(right) && left.sequence()->kind == right.sequence()->kind) {
    const List& a = left.sequence()->items;
    const List& b = right.sequence()->items;
    RETURN_IF_ERROR(context.budget.Make((a.size() + b.size()) * sizeof(Value)));
    List items = a;
    items.insert(items.end(), b.begin(), b.end());
    return MakeSequence(context.budget, left.sequence()->kind, std::move(items));
  }
  return BadOperands(Operator::kAdd, left, right);
}

Result<bool> Contains(Context& context, const Value& container, const Value& item) {
  if (const std::string* text = container.text()) {
    if (!item.text()) return Invalid("'in <string>' requires a string, not a {}", TypeName(item));
    RETURN_IF_ERROR(context.budget.Read(text->size() + item.text()->size()));
    return FindText(*text, *item.text()) != std::string_view::npos;
  }
  if (const Dict* dict = container.dict()) {
    const bool tuple = item.sequence() && item.sequence()->kind == SequenceKind::kTuple;
    if (!tuple && (item.sequence() || item.dict())) return Invalid("a dict key cannot be a {}", TypeName(item));
    ASSIGN_OR_RETURN(const Value* found, Find(context.budget, *dict, item));
    return found != nullptr;
  }
  ASSIGN_OR_RETURN(const SequencePtr items, Iterate(context.budget, container));
  for (const Value& candidate : items->items) {
    ASSIGN_OR_RETURN(const bool equal, Equals(context.budget, candidate, item));
    if (equal) return true;
  }
  return false;
}

// True for names of Python's methods, which `object.name` would return. Methods as values are not supported.
bool IsMethodName(const Value& object, std::string_view name) {
  constexpr std::string_view kDict[] = {"clear", "copy",    "fromkeys",   "get",    "items", "keys",
                                        "pop",   "popitem", "setdefault", "update", "values"};
  constexpr std::string_view kList[] = {"append", "clear", "copy",   "count",   "extend", "index",
                                        "insert", "pop",   "remove", "reverse", "sort"};
  constexpr std::string_view kText[] = {
      "capitalize", "casefold",     "center",       "count",   "encode",     "endswith",    "expandtabs",
      "find",       "format",       "format_map",   "index",   "isalnum",    "isalpha",     "isascii",
      "isdecimal",  "isdigit",      "isidentifier", "islower", "isnumeric",  "isprintable", "isspace",
      "istitle",    "isupper",      "join",         "ljust",   "lower",      "lstrip",      "maketrans",
      "partition",  "removeprefix", "removesuffix", "replace", "rfind",      "rindex",      "rjust",
      "rpartition", "rsplit",       "rstrip",       "split",   "splitlines", "startswith",  "strip",
      "swapcase",   "title",        "translate",    "upper",   "zfill"};
  const auto in = [&](const auto& names) {
    return std::find(std::begin(names), std::end(names), name) != std::end(names);
  };
  if (object.dict()) return in(kDict);
  if (object.sequence()) return in(kList);
  if (object.text()) return in(kText);
  return false;
}

Result<Value> MissingAttribute(Context& context, const Value& object, std::string_view name) {
  if (IsMethodName(object, name)) return Unsupported("the method '{}' as a value is not supported", name);
  RETURN_IF_ERROR(context.budget.Make(4 * name.size()));
  return MakeUndefined(fmt::format("'{}' has no attribute {}", TypeName(object), Quoted(name)));
}

// The item at `index`, from the end when negative; null when out of range.
const Value* At(const List& items, int64_t index) {
  const auto size = static_cast<int64_t>(items.size());
  if (index < -size || index >= size) return nullptr;
  return &items[static_cast<size_t>(index < 0 ? index + size : index)];
}

Result<Value> GetIndex(Context& context, const Value& object, int64_t index) {
  if (const std::string* text = object.text()) {
    RETURN_IF_ERROR(context.budget.Read(text->size()));
    const auto size = static_cast<int64_t>(CountCharacters(*text));
    if (index >= -size && index < size) {
      const size_t begin = ByteOffset(*text, static_cast<size_t>(index < 0 ? index + size : index));
      const std::string_view rest = std::string_view(*text).substr(begin);
      return MakeText(context.budget, std::string(rest.substr(0, ByteOffset(rest, 1))));
    }
  } else if (const Sequence* sequence = object.sequence();
             sequence && sequence->kind != SequenceKind::kView && sequence->kind != SequenceKind::kGenerator) {
    if (const Value* found = At(sequence->items, index)) return *found;
  }
  return MakeUndefined(fmt::format("{} has no element {}", TypeName(object), index));
}

}  // namespace

Result<Value> ApplyBinary(Context& context, Operator op, const Value& left, const Value& right) {
  for (const Value* side : {&left, &right}) {
    if (const Undefined* missing = side->If<Undefined>()) return UndefinedError(*missing);
  }
  int64_t a = 0;
  int64_t b = 0;
  const bool left_integer = AsInteger(left, a);
  const bool right_integer = AsInteger(right, b);
  if (left_integer && right_integer) return ApplyToIntegers(op, a, b);
  const std::optional<double> real_a = AsReal(left);
  const std::optional<double> real_b = AsReal(right);
  if (real_a && real_b) return ApplyToReals(op, *real_a, *real_b);
  if (op == Operator::kAdd) return Add(context, left, right);
  if (op == Operator::kMul && right_integer && (left.text() || IsListOrTuple(left))) return Repeat(context, left, b);
  if (op == Operator::kMul && left_integer && (right.text() || IsListOrTuple(right))) return Repeat(context, right, a);
  if (op == Operator::kMod && left.text()) return Unsupported("string formatting with '%' is not supported");
  return BadOperands(op, left, right);
}

Result<Value> Negate(const Value& value, bool negative) {
  if (const Undefined* missing = value.If<Undefined>()) return UndefinedError(*missing);
  int64_t integer = 0;
  if (AsInteger(value, integer)) {
    if (!negative) return Value(integer);
    if (__builtin_sub_overflow(int64_t{0}, integer, &integer)) return Invalid("integer overflow");
    return Value(integer);
  }
  if (const double* real = value.If<double>()) return Value(negative ? -*real : *real);
  return Invalid("the sign + or - cannot be applied to a {}", TypeName(value));
}

Result<bool> ApplyComparison(Context& context, Operator op, const Value& left, const Value& right) {
  if (op == Operator::kEq || op == Operator::kNe) {
    ASSIGN_OR_RETURN(const bool equal, Equals(context.budget, left, right));
    return equal == (op == Operator::kEq);
  }
  if (op == Operator::kIn || op == Operator::kNotIn) {
    ASSIGN_OR_RETURN(const bool contained, Contains(context, right, left));
    return contained == (op == Operator::kIn);
  }
  ASSIGN_OR_RETURN(const int order, Order(context.budget, left, right));
  switch (op) {
    case Operator::kLt:
      return order < 0;
    case Operator::kLe:
      return order <= 0;
    case Operator::kGt:
      return order > 0;
    default:
      return order >= 0;
  }
}

Result<Value> GetAttribute(Context& context, const Value& object, std::string_view name) {
  if (const Undefined* missing = object.If<Undefined>()) return UndefinedError(*missing);
  if (const Namespace* space = object.space()) {
    const auto found = space->attributes.find(name);
    if (found != space->attributes.end()) return found->second;
  } else if (const Dict* dict = object.dict(); dict && !IsMethodName(object, name)) {
    RETURN_IF_ERROR(context.budget.Step(dict->items.size()));
    if (const Value* found = Find(*dict, name)) return *found;
  }
  return MissingAttribute(context, object, name);
}

Result<Value> GetItem(Context& context, const Value& object, const Value& key) {
  if (const Undefined* missing = object.If<Undefined>()) return UndefinedError(*missing);
  if (const Dict* dict = object.dict(); dict && !key.sequence() && !key.dict()) {
    ASSIGN_OR_RETURN(const Value* found, Find(context.budget, *dict, key));
    if (found) return *found;
  }
  if (const std::string* name = key.text()) {
    if (object.space()) return GetAttribute(context, object, *name);
    return MissingAttribute(context, object, *name);
  }
  int64_t index = 0;
  if (AsInteger(key, index)) return GetIndex(context, object, index);
  ASSIGN_OR_RETURN(const std::string shown, ToRepr(context.budget, key));
  return MakeUndefined(fmt::format("{} has no element {}", TypeName(object), shown));
}

Result<Value> GetPath(Context& context, const Value& object, const Value& path) {
  if (!path.text()) return GetItem(context, object, path);
  RETURN_IF_ERROR(context.budget.Make(path.text()->size() * sizeof(std::string_view)));
  Value out = object;
  for (const std::string_view part : SplitAt(*path.text(), ".", -1)) {
    const bool number = !part.empty() && part.size() < 10 && part.find_first_not_of("0123456789") == part.npos;
    Value key =
        number ? Value(int64_t{std::stoi(std::string(part))}) : Value(std::make_shared<const std::string>(part));
    ASSIGN_OR_RETURN(out, GetItem(context, out, key));
  }
  return out;
}

Result<Value> GetSlice(Context& context, const Value& object, const SliceBounds& bounds) {
  if (const Undefined* missing = object.If<Undefined>()) return UndefinedError(*missing);
  const Sequence* sequence = object.sequence();
  const bool sliceable = object.text() || IsListOrTuple(object) || (sequence && sequence->kind == SequenceKind::kRange);
  if (!sliceable) return Invalid("a {} cannot be sliced", TypeName(object));
  ASSIGN_OR_RETURN(const int64_t size, Length(context.budget, object));
  const int64_t step = bounds.step.value_or(1);
  if (step == 0) return Invalid("the step of a slice cannot be zero");
  const auto clamp = [&](std::optional<int64_t> bound, int64_t absent) {
    if (!bound) return absent;
    const int64_t index = *bound < 0 ? std::max<int64_t>(*bound, -size - 1) + size : *bound;
    return step > 0 ? std::clamp<int64_t>(index, 0, size) : std::clamp<int64_t>(index, -1, size - 1);
  };
  const int64_t start = clamp(bounds.start, step > 0 ? 0 : size - 1);
  const int64_t stop = clamp(bounds.stop, step > 0 ? size : -1);
  if (object.text() && step == 1) {
    const std::string_view text = *object.text();
    const std::string_view rest = text.substr(ByteOffset(text, static_cast<size_t>(start)));
    const size_t bytes = stop > start ? ByteOffset(rest, static_cast<size_t>(stop - start)) : 0;
    return MakeText(context.budget, std::string(rest.substr(0, bytes)));
  }
  if (object.text()) RETURN_IF_ERROR(context.budget.Make(object.text()->size() * sizeof(std::string_view)));
  const std::vector<std::string_view> characters =
      object.text() ? Characters(*object.text()) : std::vector<std::string_view>();
  RETURN_IF_ERROR(context.budget.Make(static_cast<uint64_t>(sequence ? size : 0) * sizeof(Value)));
  List items;
  std::string text;
  for (int64_t i = start; step > 0 ? i < stop : i > stop;) {
    if (sequence) {
      items.push_back(sequence->items[static_cast<size_t>(i)]);
    } else {
      text += characters[static_cast<size_t>(i)];
    }
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  if (object.text()) return MakeText(context.budget, std::move(text));
  return MakeSequence(context.budget, sequence->kind, std::move(items));
}

}  // namespace infinigen::jinja
