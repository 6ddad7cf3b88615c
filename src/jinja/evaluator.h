// Evaluating the expressions of a chat template: the state of a rendering, operators, the tables of everything that a
// template may call by name, and the Evaluator. A rendering belongs to one thread.
#pragma once

#include <array>
#include <ctime>
#include <deque>
#include <optional>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "jinja/parser.h"
#include "jinja/template.h"
#include "jinja/value.h"

namespace infinigen::jinja {

// The state of one rendering that builtins work on.
struct Context {
  Budget budget;
  std::tm now = {};                  // local time, which strftime_now formats
  std::deque<Namespace> namespaces;  // the only owner; addresses are stable
  int line = 0;                      // of the expression being evaluated, for messages
  bool raised = false;               // the error is the template's own: raise_exception
};

using Arguments = std::vector<std::optional<Value>>;  // one for each parameter; empty where none was given
// An argument of none counts as not given.
inline bool Given(const Arguments& arguments, size_t index) {
  return arguments[index].has_value() && !arguments[index]->Is<None>();
}

// ---- builtins (filters.cc, functions.cc) ----
//
// The parser looks names up in these tables, so an unknown one is refused before anything runs; the evaluator calls
// what was found.

enum class Receiver { kAny, kText, kDict };

struct Builtin {
  static constexpr size_t kMaxParameters = 4;

  std::string_view name;
  // `self` is filtered or tested, or its method is called; it must have the type that `receiver` says.
  Result<Value> (*call)(Context& context, const Value& self, const Arguments& arguments);
  size_t required = 0;  // so many parameters, the first ones, must be given
  std::array<std::string_view, kMaxParameters> parameters = {};
  Receiver receiver = Receiver::kAny;  // other than kAny for methods only

  size_t parameter_count() const {
    size_t count = 0;
    while (count < kMaxParameters && !parameters[count].empty()) ++count;
    return count;
  }
};

// Null when the name is unknown. Tests return a bool.
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

// ---- operators (operators.cc) ----

// Python's and Jinja's rules for mixed types.
Result<Value> ApplyBinary(Context& context, Operator op, const Value& left, const Value& right);
Result<Value> Negate(const Value& value, bool negative);  // -x, or +x
// ==, !=, <, <=, >, >=, in, not in.
Result<bool> ApplyComparison(Context& context, Operator op, const Value& left, const Value& right);

// Attributes are keys of dicts and names in namespaces. One that does not exist is undefined; one of an undefined value
// is an error.
Result<Value> GetAttribute(Context& context, const Value& object, std::string_view name);
Result<Value> GetItem(Context& context, const Value& object, const Value& key);
// "a.b.0": the form in which filters take attributes.
Result<Value> GetPath(Context& context, const Value& object, const Value& path);

struct SliceBounds {
  std::optional<int64_t> start, stop, step;
};
Result<Value> GetSlice(Context& context, const Value& object, const SliceBounds& bounds);

// ---- expressions (evaluator.cc) ----

// The object that `loop` refers to.
struct Loop {
  const List* items = nullptr;
  size_t index = 0;
};

// Names in nested scopes, loops, and every kind of Expr.
class Evaluator {
 public:
  // `globals` must outlive the evaluator.
  Evaluator(Context& context, const Variables& globals) : context_(context), globals_(globals), scopes_(1) {}

  Result<Value> Evaluate(const Expr& expr);

  Status Assign(const Targets& targets, const Value& value);
  // Names assigned in between are forgotten. As many pops as pushes.
  void PushScope() { scopes_.emplace_back(); }
  void PopScope() { scopes_.pop_back(); }
  // `loop` must outlive its pop.
  void PushLoop(const Loop* loop) { loops_.push_back(loop); }
  void PopLoop() { loops_.pop_back(); }

 private:
  Value Lookup(std::string_view name) const;
  Status AssignOne(const Target& target, const Value& value);
  Result<Value> EvaluateLoop(const Expr& expr);
  Result<Value> EvaluateSequence(const Expr& expr);
  Result<Value> EvaluateDict(const Expr& expr);
  Result<Value> EvaluateSlice(const Expr& expr);
  Result<Value> EvaluateCall(const Expr& expr);
  Result<Value> EvaluateBuiltin(const Expr& expr);
  Result<Value> EvaluateConditional(const Expr& expr);
  Result<Value> EvaluateCompare(const Expr& expr);
  Result<Value> EvaluateConcat(const Expr& expr);

  Context& context_;
  const Variables& globals_;
  std::vector<Variables> scopes_;   // innermost last
  std::vector<const Loop*> loops_;  // innermost last
};

}  // namespace infinigen::jinja
