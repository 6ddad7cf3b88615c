// Evaluation of the expressions of a chat template: the state of a rendering, the operators, the tables of functions,
// methods, filters and tests, and the Evaluator. A rendering is used by one thread.
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

// The state of one rendering, shared by evaluator and builtins.
struct Context {
  Budget budget;
  std::tm now = {};                  // local time for strftime_now
  std::deque<Namespace> namespaces;  // owns all namespaces; addresses are stable
  int line = 0;                      // line of the expression being evaluated, for messages
  bool raised = false;               // the error comes from raise_exception
  int depth = 0;                     // nested expressions, blocks and macro calls being evaluated

  // Bounds the recursion of evaluation, which macros make possible. Every Enter that succeeds needs a Leave.
  Status Enter() {
    if (depth >= kMaxDepth) return Exhausted("expressions and macro calls are nested more than {} deep", kMaxDepth);
    ++depth;
    return Ok{};
  }
  void Leave() { --depth; }

  // A template without macros needs at most kMaxExpressionDepth + kMaxNesting.
  static constexpr int kMaxDepth = 600;
};

using Arguments = std::vector<std::optional<Value>>;  // one per parameter; nullopt when not given
// True when the argument was given and is not None.
inline bool Given(const Arguments& arguments, size_t index) {
  return arguments[index].has_value() && !arguments[index]->Is<None>();
}

// ---- builtins (filters.cc, value_tests.cc, functions.cc) ----
//
// The parser looks up names in these tables, so an unknown name is an error before anything runs. The evaluator calls
// the entries.

enum class Receiver { kAny, kText, kDict };

struct Builtin {
  static constexpr size_t kMaxParameters = 4;

  std::string_view name;
  // `self` is the value that is filtered or tested, or the object of the method; its type is that of `receiver`.
  Result<Value> (*call)(Context& context, const Value& self, const Arguments& arguments);
  size_t required = 0;  // number of leading parameters that must be given
  std::array<std::string_view, kMaxParameters> parameters = {};
  Receiver receiver = Receiver::kAny;  // kAny for filters and tests

  size_t parameter_count() const {
    size_t count = 0;
    while (count < kMaxParameters && !parameters[count].empty()) ++count;
    return count;
  }
};

// Return null when the name is unknown. Tests return a bool.
const Builtin* FindFilter(std::string_view name);
const Builtin* FindTest(std::string_view name);
const Builtin* FindMethod(std::string_view name);

struct NamedValue {
  std::string_view name;
  Value value;
};
Result<Value> CallFunction(Context& context, Function function, const std::vector<Value>& arguments,
                           const std::vector<NamedValue>& keywords);

// ---- operators (operators.cc) ----

// Types are mixed by the rules of Python and Jinja.
Result<Value> ApplyBinary(Context& context, Operator op, const Value& left, const Value& right);
Result<Value> Negate(const Value& value, bool negative);  // -x, or +x
// ==, !=, <, <=, >, >=, in, not in.
Result<bool> ApplyComparison(Context& context, Operator op, const Value& left, const Value& right);

// Attributes are keys of dicts and names in namespaces. An attribute that does not exist is undefined; an attribute of
// an undefined value is an error.
Result<Value> GetAttribute(Context& context, const Value& object, std::string_view name);
Result<Value> GetItem(Context& context, const Value& object, const Value& key);
// `path` is "a.b.0", the form of attributes in filter arguments.
Result<Value> GetPath(Context& context, const Value& object, const Value& path);

struct SliceBounds {
  std::optional<int64_t> start, stop, step;
};
Result<Value> GetSlice(Context& context, const Value& object, const SliceBounds& bounds);

// ---- expressions (evaluator.cc) ----

// The state behind the template's `loop` object.
struct Loop {
  const List* items = nullptr;
  size_t index = 0;
};

// Runs the statements of a macro for the evaluator. The renderer implements it.
class BlockRunner {
 public:
  // The text that `block` prints.
  virtual Result<std::string> Capture(const Block& block) = 0;

 protected:
  ~BlockRunner() = default;
};

// Evaluates every kind of Expr, with nested scopes of names and nested loops.
class Evaluator {
 public:
  // `globals` and `runner` must outlive the evaluator.
  Evaluator(Context& context, const Variables& globals, BlockRunner& runner)
      : context_(context), globals_(globals), runner_(runner), scopes_(1) {}

  Result<Value> Evaluate(const Expr& expr);

  Status Assign(const Targets& targets, const Value& value);
  Status AssignName(const std::string& name, const Value& value) { return AssignOne({name, ""}, value); }
  // Names that are assigned in a scope are dropped by PopScope. Every push needs a pop.
  void PushScope() { scopes_.emplace_back(); }
  void PopScope() { scopes_.pop_back(); }
  // `loop` must live until PopLoop.
  void PushLoop(const Loop* loop) { loops_.push_back(loop); }
  void PopLoop() { loops_.pop_back(); }

 private:
  Result<Value> EvaluateNode(const Expr& expr);
  Value Lookup(std::string_view name) const;
  Status AssignOne(const Target& target, const Value& value);
  Result<Value> EvaluateLoop(const Expr& expr);
  Result<Value> EvaluateSequence(const Expr& expr);
  Result<Value> EvaluateDict(const Expr& expr);
  Result<Value> EvaluateSlice(const Expr& expr);
  Result<Value> EvaluateCall(const Expr& expr);
  Result<Value> EvaluateMacroCall(const Expr& expr);
  Status EvaluateArguments(const Expr& expr, std::vector<Value>& arguments, std::vector<NamedValue>& keywords);
  // Assigns the parameters of a macro in the current scope.
  Status BindParameters(const Macro& macro, std::vector<Value> arguments, std::vector<NamedValue> keywords);
  Result<Value> EvaluateBuiltin(const Expr& expr);
  Result<Value> EvaluateConditional(const Expr& expr);
  Result<Value> EvaluateCompare(const Expr& expr);
  Result<Value> EvaluateConcat(const Expr& expr);

  Context& context_;
  const Variables& globals_;
  BlockRunner& runner_;
  std::vector<Variables> scopes_;   // innermost last; the first is the template's
  std::vector<const Loop*> loops_;  // innermost last
  // A macro sees its own scopes and loops, and the template's scope. These are the first of its own.
  size_t first_scope_ = 1;
  size_t first_loop_ = 0;
};

}  // namespace infinigen::jinja
