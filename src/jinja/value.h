// The values of chat templates, the budget that limits a rendering, and Python's operations on values: comparison,
// printing, text.
//
// Value is the result of an expression. It is immutable, except for a Namespace, and cheap to copy, because text and
// containers are shared. Constants of a parsed template are shared between threads; every other value belongs to one
// rendering and therefore to one thread.
//
// Invariant: containers nest at most kMaxValueDepth deep, so printing, comparing and destroying may recurse. The
// rendering owns the namespaces and values refer to them by pointer, so a namespace that contains itself does not leak.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/result.h"

namespace infinigen::jinja {

// Limits the cost of one rendering, because templates are untrusted. It counts evaluated nodes, text that is read (in
// units of 256 bytes) and bytes of created values; a template that exceeds a limit ends with an error.
class Budget {
 public:
  Budget(uint64_t max_steps, uint64_t max_made_bytes) : steps_left_(max_steps), bytes_left_(max_made_bytes) {}

  Status Step(uint64_t count = 1) {
    if (count > steps_left_) return Exhausted("the template takes too many steps");
    steps_left_ -= count;
    return Ok{};
  }

  // Charges for reading `bytes` of text.
  Status Read(uint64_t bytes) { return Step(1 + bytes / kBytesPerStep); }

  // Charges for creating a value of `bytes`. Freed values still count, so this also limits the memory in use.
  Status Make(uint64_t bytes) {
    if (bytes > bytes_left_) return Exhausted("the values that the template creates are too large");
    bytes_left_ -= bytes;
    return Read(bytes);
  }

 private:
  static constexpr uint64_t kBytesPerStep = 256;  // scanning these takes about as long as evaluating a node

  uint64_t steps_left_;
  uint64_t bytes_left_;
};

class Value;
using List = std::vector<Value>;
using Text = std::shared_ptr<const std::string>;

inline constexpr int kMaxValueDepth = 32;

// A variable, attribute or element that does not exist.
struct Undefined {
  Text reason;  // message for a use that is an error; may be null
};

struct None {};

// The result of the filter 'safe'. It can be printed, joined with `~` and added to text, whose HTML characters `+`
// then escapes, as in Jinja; its methods are refused.
struct Markup {
  Text text;
};

enum class SequenceKind {
  kList,
  kTuple,
  kRange,
  kView,       // result of dict.items(): has a length but no subscripts
  kGenerator,  // result of select, map and the like: can be read only once
};

struct Sequence;
struct Dict;
struct Namespace;
struct Macro;  // jinja/parser.h; belongs to the parsed template
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
  Value(Markup value) : rep_(std::move(value)) {}       // NOLINT
  Value(SequencePtr value) : rep_(std::move(value)) {}  // NOLINT
  Value(DictPtr value) : rep_(std::move(value)) {}      // NOLINT
  Value(Namespace* value) : rep_(value) {}              // NOLINT
  Value(Function value) : rep_(value) {}                // NOLINT
  Value(const Macro* value) : rep_(value) {}            // NOLINT
  Value(const char*) = delete;                          // would convert to bool

  template <class T>
  bool Is() const {
    return std::holds_alternative<T>(rep_);
  }
  // These return null when the value has another type.
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
  std::variant<Undefined, None, bool, int64_t, double, Text, Markup, SequencePtr, DictPtr, Namespace*, Function,
               const Macro*>
      rep_;
};

struct Sequence {
  SequenceKind kind = SequenceKind::kList;
  List items;
  int depth = 1;                  // 1 + the depth of the deepest item
  mutable bool consumed = false;  // for generators, which belong to one rendering
};

struct Dict {
  std::vector<std::pair<Value, Value>> items;  // in order of insertion; keys are unique and hashable
  int depth = 1;
};

struct Namespace {
  std::map<std::string, Value, std::less<>> attributes;
};

Value MakeUndefined(std::string reason);
// The error for a use of an undefined value other than its truth, length or text.
Error UndefinedError(const Undefined& value);

// Constructors that charge the budget.
Result<Value> MakeText(Budget& budget, std::string text);
Result<Value> MakeSequence(Budget& budget, SequenceKind kind, List items);
// For equal keys, the later value replaces the earlier one and keeps its position.
Result<Value> MakeDict(Budget& budget, const std::vector<std::pair<Value, Value>>& items);

bool IsTrue(const Value& value);
// Sets `out` from an int or a bool (as 0 or 1); returns false for other types.
bool AsInteger(const Value& value, int64_t& out);
// The name of the type as in Jinja's messages: "str object", "None".
std::string TypeName(const Value& value);

Result<bool> Equals(Budget& budget, const Value& a, const Value& b);
// Returns a negative number, zero or a positive number. Fails where Python's `<` fails, and for NaN.
Result<int> Order(Budget& budget, const Value& a, const Value& b);
// The value of `key`, or null.
Result<const Value*> Find(Budget& budget, const Dict& dict, const Value& key);
const Value* Find(const Dict& dict, std::string_view key);

// The items of a loop over `value`; fails when it is not iterable. Marks a generator as consumed.
Result<SequencePtr> Iterate(Budget& budget, const Value& value);
// len(); fails for values without a length.
Result<int64_t> Length(Budget& budget, const Value& value);

// ---- values as text, in Python's forms (print.cc) ----

// str(): what {{ value }} prints.
Result<std::string> ToText(Budget& budget, const Value& value);

// repr(), on one line. Quoted is repr() of a string.
Result<std::string> ToRepr(Budget& budget, const Value& value);
std::string Quoted(std::string_view text);

struct JsonStyle {
  int64_t indent = -1;  // spaces per level; negative: everything on one line
  bool ascii = false;   // escape characters outside ASCII
  bool sort_keys = false;
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};

// json.dumps().
Result<std::string> ToJson(Budget& budget, const Value& value, const JsonStyle& style);

// ---- Python's operations on text (text.cc) ----
//
// Positions and lengths are in characters. A byte that is not valid UTF-8 counts as one character and is never changed.
// Pure functions, any thread, linear time.

// str.isspace(): the property White_Space, and the separators U+001C to U+001F.
bool IsSpace(char32_t code_point);

std::vector<std::string_view> Characters(std::string_view text);
size_t CountCharacters(std::string_view text);
// Byte offset of character `index`; text.size() when there are fewer characters.
size_t ByteOffset(std::string_view text, size_t index);

// First occurrence at or after byte `from`, or npos. Linear time for any needle, unlike string_view::find.
size_t FindText(std::string_view text, std::string_view needle, size_t from = 0);

// Removes characters of the set `characters`, or white space when it is absent, from the ends.
std::string_view Strip(std::string_view text, std::optional<std::string_view> characters, bool left, bool right);

// Splits at most `limit` times; without a limit when negative.
std::vector<std::string_view> SplitAtSpace(std::string_view text, int64_t limit);
// `separator` must not be empty.
std::vector<std::string_view> SplitAt(std::string_view text, std::string_view separator, int64_t limit);
std::vector<std::string_view> SplitLines(std::string_view text);

// Number of occurrences of `needle` that replace() would replace, at most `limit` (negative: no limit).
size_t CountReplacements(std::string_view text, std::string_view needle, int64_t limit);
std::string Replace(std::string_view text, std::string_view needle, std::string_view replacement, size_t count);

// These map each character to one character.
std::string Upper(std::string_view text);
std::string Lower(std::string_view text);
std::string Capitalize(std::string_view text);
std::string TitleWords(std::string_view text);    // Jinja's filter: words start after space and ( { [ < -
std::string TitleLetters(std::string_view text);  // str.title(): words are runs of letters
// str.islower(), str.isupper(): at least one letter has the case, and no letter has the other case.
bool HasOnlyCase(std::string_view text, bool upper);

}  // namespace infinigen::jinja
