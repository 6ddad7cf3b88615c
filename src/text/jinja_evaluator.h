// Evaluates the expressions of a chat template: names in nested scopes, loops, and everything an Expr can say. Belongs
// to one rendering.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/jinja_ast.h"
#include "text/jinja_builtins.h"

namespace infinigen::jinja {

using Variables = std::map<std::string, Value, std::less<>>;

// What `loop` refers to.
struct Loop {
  const List* items = nullptr;
  size_t index = 0;
};

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
