#include "jinja/value.h"

#include <algorithm>
#include <cmath>

namespace infinigen::jinja {
namespace {

constexpr uint64_t kItemBytes = sizeof(Value);
constexpr uint64_t kTextBytes = 64;  // a string object with its reference counts, without its characters

int Depth(const Value& value) {
  if (const Sequence* sequence = value.sequence()) return sequence->depth;
  if (const Dict* dict = value.dict()) return dict->depth;
  return 0;
}

bool AsDouble(const Value& value, double& out) {
  int64_t integer = 0;
  if (AsInteger(value, integer)) {
    out = static_cast<double>(integer);
    return true;
  }
  if (const double* real = value.If<double>()) {
    out = *real;
    return true;
  }
  return false;
}

bool IsHashable(const Value& value) {
  return value.Is<None>() || value.Is<bool>() || value.Is<int64_t>() || value.Is<double>() || value.Is<Text>();
}

Result<bool> EqualSequences(Budget& budget, const Sequence& a, const Sequence& b) {
  if (&a == &b) return true;
  if (a.kind != b.kind || a.items.size() != b.items.size()) return false;
  if (a.kind == SequenceKind::kView || a.kind == SequenceKind::kGenerator) return false;
  for (size_t i = 0; i < a.items.size(); ++i) {
    ASSIGN_OR_RETURN(const bool equal, Equals(budget, a.items[i], b.items[i]));
    if (!equal) return false;
  }
  return true;
}

Result<bool> EqualDicts(Budget& budget, const Dict& a, const Dict& b) {
  if (a.items.size() != b.items.size()) return false;
  for (const auto& [key, value] : a.items) {
    ASSIGN_OR_RETURN(const Value* other, Find(budget, b, key));
    if (!other) return false;
    ASSIGN_OR_RETURN(const bool equal, Equals(budget, value, *other));
    if (!equal) return false;
  }
  return true;
}

Result<int> OrderSequences(Budget& budget, const Sequence& a, const Sequence& b) {
  const size_t common = std::min(a.items.size(), b.items.size());
  for (size_t i = 0; i < common; ++i) {
    ASSIGN_OR_RETURN(const bool equal, Equals(budget, a.items[i], b.items[i]));
    if (!equal) return Order(budget, a.items[i], b.items[i]);
  }
  if (a.items.size() == b.items.size()) return 0;
  return a.items.size() < b.items.size() ? -1 : 1;
}

}  // namespace

Value MakeUndefined(std::string reason) { return Undefined{std::make_shared<const std::string>(std::move(reason))}; }

Error UndefinedError(const Undefined& value) {
  return Invalid("{}", value.reason ? std::string_view(*value.reason) : std::string_view("the value is undefined"));
}

Result<Value> MakeText(Budget& budget, std::string text) {
  RETURN_IF_ERROR(budget.Make(kTextBytes + text.size()));
  return Value(std::make_shared<const std::string>(std::move(text)));
}

Result<Value> MakeSequence(Budget& budget, SequenceKind kind, List items) {
  RETURN_IF_ERROR(budget.Make(kTextBytes + items.size() * kItemBytes));
  auto sequence = std::make_shared<Sequence>();
  sequence->kind = kind;
  for (const Value& item : items) sequence->depth = std::max(sequence->depth, 1 + Depth(item));
  if (sequence->depth > kMaxValueDepth)
    return Exhausted("lists are nested too deeply (more than {} levels)", kMaxValueDepth);
  sequence->items = std::move(items);
  return Value(SequencePtr(std::move(sequence)));
}

Result<Value> MakeDict(Budget& budget, const std::vector<std::pair<Value, Value>>& items) {
  RETURN_IF_ERROR(budget.Make(kTextBytes + items.size() * 2 * kItemBytes));
  auto dict = std::make_shared<Dict>();
  for (const auto& [key, value] : items) {
    if (!IsHashable(key)) return Invalid("a dict key cannot be a {}", TypeName(key));
    dict->depth = std::max(dict->depth, 1 + Depth(value));
    ASSIGN_OR_RETURN(const Value* present, Find(budget, *dict, key));
    if (present) {
      const auto same = [&](const auto& item) { return &item.second == present; };
      std::find_if(dict->items.begin(), dict->items.end(), same)->second = value;
    } else {
      dict->items.emplace_back(key, value);
    }
  }
  if (dict->depth > kMaxValueDepth)
    return Exhausted("dicts are nested too deeply (more than {} levels)", kMaxValueDepth);
  return Value(DictPtr(std::move(dict)));
}

bool IsTrue(const Value& value) {
  if (value.Is<Undefined>() || value.Is<None>()) return false;
  if (const bool* flag = value.If<bool>()) return *flag;
  if (const int64_t* integer = value.If<int64_t>()) return *integer != 0;
  if (const double* real = value.If<double>()) return *real != 0;
  if (const std::string* text = value.text()) return !text->empty();
  if (const Markup* markup = value.If<Markup>()) return !markup->text->empty();
  if (const Sequence* sequence = value.sequence()) {
    return sequence->kind == SequenceKind::kGenerator || !sequence->items.empty();
  }
  if (const Dict* dict = value.dict()) return !dict->items.empty();
  return true;
}

bool AsInteger(const Value& value, int64_t& out) {
  if (const int64_t* integer = value.If<int64_t>()) {
    out = *integer;
    return true;
  }
  if (const bool* flag = value.If<bool>()) {
    out = *flag ? 1 : 0;
    return true;
  }
  return false;
}

std::string TypeName(const Value& value) {
  if (value.Is<Undefined>()) return "jinja2.runtime.Undefined object";
  if (value.Is<None>()) return "None";
  if (value.Is<bool>()) return "bool object";
  if (value.Is<int64_t>()) return "int object";
  if (value.Is<double>()) return "float object";
  if (value.Is<Text>()) return "str object";
  if (value.Is<Markup>()) return "markup object";
  if (value.Is<DictPtr>()) return "dict object";
  if (value.Is<Namespace*>()) return "namespace object";
  if (value.Is<Function>()) return "function object";
  if (value.Is<const Macro*>()) return "macro object";
  switch (value.sequence()->kind) {
    case SequenceKind::kList:
      return "list object";
    case SequenceKind::kTuple:
      return "tuple object";
    case SequenceKind::kRange:
      return "range object";
    case SequenceKind::kView:
      return "dict view object";
    case SequenceKind::kGenerator:
      return "generator object";
  }
  return "object";
}

Result<bool> Equals(Budget& budget, const Value& a, const Value& b) {
  RETURN_IF_ERROR(budget.Step());
  int64_t ia = 0;
  int64_t ib = 0;
  if (AsInteger(a, ia) && AsInteger(b, ib)) return ia == ib;
  double da = 0;
  double db = 0;
  if (AsDouble(a, da) && AsDouble(b, db)) return da == db;
  if (a.text() && b.text()) {
    RETURN_IF_ERROR(budget.Read(std::min(a.text()->size(), b.text()->size())));
    return *a.text() == *b.text();
  }
  if (a.sequence() && b.sequence()) return EqualSequences(budget, *a.sequence(), *b.sequence());
  if (a.dict() && b.dict()) return EqualDicts(budget, *a.dict(), *b.dict());
  if (a.space() && b.space()) return a.space() == b.space();
  if (a.Is<Function>() && b.Is<Function>()) return *a.If<Function>() == *b.If<Function>();
  if (a.Is<const Macro*>() && b.Is<const Macro*>()) return *a.If<const Macro*>() == *b.If<const Macro*>();
  return (a.Is<Undefined>() && b.Is<Undefined>()) || (a.Is<None>() && b.Is<None>());
}

Result<int> Order(Budget& budget, const Value& a, const Value& b) {
  RETURN_IF_ERROR(budget.Step());
  for (const Value* side : {&a, &b}) {
    if (const Undefined* missing = side->If<Undefined>()) return UndefinedError(*missing);
  }
  int64_t ia = 0;
  int64_t ib = 0;
  if (AsInteger(a, ia) && AsInteger(b, ib)) return ia < ib ? -1 : (ia > ib ? 1 : 0);
  double da = 0;
  double db = 0;
  if (AsDouble(a, da) && AsDouble(b, db)) {
    if (std::isnan(da) || std::isnan(db)) return Invalid("NaN cannot be ordered");
    return da < db ? -1 : (da > db ? 1 : 0);
  }
  if (a.text() && b.text()) {  // UTF-8 bytes sort in the order of code points
    RETURN_IF_ERROR(budget.Read(std::min(a.text()->size(), b.text()->size())));
    return a.text()->compare(*b.text());
  }
  const Sequence* sa = a.sequence();
  const Sequence* sb = b.sequence();
  if (sa && sb && sa->kind == sb->kind && (sa->kind == SequenceKind::kList || sa->kind == SequenceKind::kTuple)) {
    return OrderSequences(budget, *sa, *sb);
  }
  return Invalid("a {} and a {} cannot be ordered", TypeName(a), TypeName(b));
}

Result<const Value*> Find(Budget& budget, const Dict& dict, const Value& key) {
  for (const auto& [candidate, value] : dict.items) {
    ASSIGN_OR_RETURN(const bool equal, Equals(budget, candidate, key));
    if (equal) return &value;
  }
  return nullptr;
}

const Value* Find(const Dict& dict, std::string_view key) {
  for (const auto& [candidate, value] : dict.items) {
    if (candidate.text() && *candidate.text() == key) return &value;
  }
  return nullptr;
}

Result<SequencePtr> Iterate(Budget& budget, const Value& value) {
  if (const SequencePtr* sequence = value.If<SequencePtr>()) {
    if ((*sequence)->kind == SequenceKind::kGenerator) {
      if ((*sequence)->consumed)
        return Unsupported("a filtered sequence is read a second time; append '| list' to the filter");
      (*sequence)->consumed = true;
    }
    return *sequence;
  }
  List items;
  if (const std::string* text = value.text()) {
    RETURN_IF_ERROR(budget.Make(text->size() * sizeof(std::string_view)));
    for (const std::string_view character : Characters(*text)) {
      ASSIGN_OR_RETURN(Value item, MakeText(budget, std::string(character)));
      items.push_back(std::move(item));
    }
  } else if (const Dict* dict = value.dict()) {
    for (const auto& item : dict->items) items.push_back(item.first);
  } else if (!value.Is<Undefined>()) {
    return Invalid("a {} is not iterable", TypeName(value));
  }
  ASSIGN_OR_RETURN(const Value list, MakeSequence(budget, SequenceKind::kList, std::move(items)));
  return *list.If<SequencePtr>();
}

Result<int64_t> Length(Budget& budget, const Value& value) {
  if (value.Is<Undefined>()) return int64_t{0};
  if (const std::string* text = value.text()) {
    RETURN_IF_ERROR(budget.Read(text->size()));
    return static_cast<int64_t>(CountCharacters(*text));
  }
  if (const Dict* dict = value.dict()) return static_cast<int64_t>(dict->items.size());
  const Sequence* sequence = value.sequence();
  if (sequence && sequence->kind != SequenceKind::kGenerator) return static_cast<int64_t>(sequence->items.size());
  return Invalid("a {} has no length", TypeName(value));
}

}  // namespace infinigen::jinja
