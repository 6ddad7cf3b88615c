// Value: what an expression of a chat template evaluates to. Immutable and cheap to copy (text and containers are
// shared); only a Namespace can be changed. Values built into a parsed template are shared between threads; all others
// belong to one rendering.
//
// Invariant: containers nest at most kMaxValueDepth deep, so printing, comparing and destroying may recurse. Namespaces
// are owned by the rendering and referred to by pointer: a namespace that holds itself is no leak.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/result.h"
#include "text/jinja_budget.h"

namespace infinigen::jinja {

class Value;
using List = std::vector<Value>;
using Text = std::shared_ptr<const std::string>;

inline constexpr int kMaxValueDepth = 32;

// A variable, attribute or element that does not exist, and the sentence that says so.
struct Undefined {
  Text reason;
};

struct None {};

enum class SequenceKind {
  kList,
  kTuple,
  kRange,
  kView,       // what dict.items() returns: has a length, no subscripts
  kGenerator,  // what select, map and the like return: can be read once
};

struct Sequence;
struct Dict;
struct Namespace;
using SequencePtr = std::shared_ptr<const Sequence>;
using DictPtr = std::shared_ptr<const Dict>;

enum class Function { kRange, kRaiseException, kStrftimeNow, kNamespace, kDict };

class Value {
 public:
  Value() : rep_(Undefined{}) {}
  Value(Undefined value) : rep_(std::move(value)) {}    // NOLINT: implicit by design, as are those below
  Value(None value) : rep_(value) {}                    // NOLINT
  Value(bool value) : rep_(value) {}                    // NOLINT
  Value(int64_t value) : rep_(value) {}                 // NOLINT
  Value(double value) : rep_(value) {}                  // NOLINT
  Value(Text value) : rep_(std::move(value)) {}         // NOLINT
  Value(SequencePtr value) : rep_(std::move(value)) {}  // NOLINT
  Value(DictPtr value) : rep_(std::move(value)) {}      // NOLINT
  Value(Namespace* value) : rep_(value) {}              // NOLINT
  Value(Function value) : rep_(value) {}                // NOLINT
  Value(const char*) = delete;                          // would become a bool

  template <class T>
  bool Is() const {
    return std::holds_alternative<T>(rep_);
  }
  // Null when the value is of another type. For text and containers, what the pointer points to.
  template <class T>
  const T* If() const {
    return std::get_if<T>(&rep_);
  }
  const std::string* text() const {
    const Text* pointer = If<Text>();
    return pointer ? pointer->get() : nullptr;
  }
  const Sequence* sequence() const {
    const SequencePtr* pointer = If<SequencePtr>();
    return pointer ? pointer->get() : nullptr;
  }
  const Dict* dict() const {
    const DictPtr* pointer = If<DictPtr>();
    return pointer ? pointer->get() : nullptr;
  }
  Namespace* space() const {
    Namespace* const* pointer = If<Namespace*>();
    return pointer ? *pointer : nullptr;
  }

 private:
  std::variant<Undefined, None, bool, int64_t, double, Text, SequencePtr, DictPtr, Namespace*, Function> rep_;
};

struct Sequence {
  SequenceKind kind = SequenceKind::kList;
  List items;
  int depth = 1;                  // 1 + the depth of the deepest item
  mutable bool consumed = false;  // generators only, which never outlive their rendering
};

struct Dict {
  std::vector<std::pair<Value, Value>> items;  // in order of insertion; keys are distinct and hashable
  int depth = 1;
};

struct Namespace {
  std::map<std::string, Value, std::less<>> attributes;
};

Value MakeUndefined(std::string reason);
// What Jinja raises when an undefined value is used for more than its truth, its length or its text.
Error UndefinedError(const Undefined& value);

// Constructors that are paid for.
Result<Value> MakeText(Budget& budget, std::string text);
Result<Value> MakeSequence(Budget& budget, SequenceKind kind, List items);
// A later value replaces an earlier one under an equal key, in the place of the earlier.
Result<Value> MakeDict(Budget& budget, const std::vector<std::pair<Value, Value>>& items);

bool IsTrue(const Value& value);
// An int, or a bool read as 0 or 1.
bool AsInteger(const Value& value, int64_t& out);
// The name Python gives the type, as it stands in Jinja's messages: "str object", "None".
std::string TypeName(const Value& value);

Result<bool> Equals(Budget& budget, const Value& a, const Value& b);
// Negative, zero or positive. Fails where Python's `<` does, and for NaN.
Result<int> Order(Budget& budget, const Value& a, const Value& b);
// The value under `key`, or null.
Result<const Value*> Find(Budget& budget, const Dict& dict, const Value& key);
const Value* Find(const Dict& dict, std::string_view key);

// The items a loop over `value` visits; fails where it cannot be iterated. Marks a generator as read.
Result<SequencePtr> Iterate(Budget& budget, const Value& value);
// What len() says; fails for what has none.
Result<int64_t> Length(Budget& budget, const Value& value);

}  // namespace infinigen::jinja
