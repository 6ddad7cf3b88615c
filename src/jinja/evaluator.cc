#include "jinja/evaluator.h"

#include <algorithm>
#include <optional>

namespace infinigen::jinja {

Value Evaluator::Lookup(std::string_view name) const {
  for (size_t i = scopes_.size(); i > first_scope_; --i) {
    const auto found = scopes_[i - 1].find(name);
    if (found != scopes_[i - 1].end()) return found->second;
  }
  const auto outermost = scopes_[0].find(name);
  if (outermost != scopes_[0].end()) return outermost->second;
  const auto found = globals_.find(name);
  if (found != globals_.end()) return found->second;
  if (const std::optional<Function> function = FindFunction(name)) return *function;
  return MakeUndefined(fmt::format("'{}' is undefined", name));
}

Status Evaluator::AssignOne(const Target& target, const Value& value) {
  RETURN_IF_ERROR(context_.budget.Make(target.name.size() + target.attribute.size() + sizeof(Value)));
  if (target.attribute.empty()) {
    scopes_.back()[target.name] = value;
    return Ok{};
  }
  const Value holder = Lookup(target.name);
  if (const Undefined* missing = holder.If<Undefined>()) return UndefinedError(*missing);
  if (!holder.space())
    return Invalid("cannot assign to attribute '{}' of '{}', which is not a namespace", target.attribute, target.name);
  holder.space()->attributes[target.attribute] = value;
  return Ok{};
}

Status Evaluator::Assign(const Targets& targets, const Value& value) {
  if (!targets.unpack) return AssignOne(targets.names[0], value);
  ASSIGN_OR_RETURN(const SequencePtr items, Iterate(context_.budget, value));
  if (items->items.size() != targets.names.size()) {
    return Invalid("cannot unpack {} values into {} names", items->items.size(), targets.names.size());
  }
  for (size_t i = 0; i < targets.names.size(); ++i) RETURN_IF_ERROR(AssignOne(targets.names[i], items->items[i]));
  return Ok{};
}

Result<Value> Evaluator::Evaluate(const Expr& expr) {
  RETURN_IF_ERROR(context_.Enter());
  Result<Value> value = EvaluateNode(expr);
  context_.Leave();
  return value;
}

Result<Value> Evaluator::EvaluateNode(const Expr& expr) {
  RETURN_IF_ERROR(context_.budget.Step());
  context_.line = expr.line;
  switch (expr.kind) {
    case ExprKind::kConstant:
      return expr.constant;
    case ExprKind::kName:
      return Lookup(expr.name);
    case ExprKind::kLoop:
      return EvaluateLoop(expr);
    case ExprKind::kList:
    case ExprKind::kTuple:
      return EvaluateSequence(expr);
    case ExprKind::kDict:
      return EvaluateDict(expr);
    case ExprKind::kSlice:
      return EvaluateSlice(expr);
    case ExprKind::kCall:
      return EvaluateCall(expr);
    case ExprKind::kMacroCall:
      return EvaluateMacroCall(expr);
    case ExprKind::kMethod:
    case ExprKind::kFilter:
    case ExprKind::kTest:
      return EvaluateBuiltin(expr);
    case ExprKind::kConditional:
      return EvaluateConditional(expr);
    case ExprKind::kCompare:
      return EvaluateCompare(expr);
    case ExprKind::kConcat:
      return EvaluateConcat(expr);
    default:
      break;
  }
  ASSIGN_OR_RETURN(Value first, Evaluate(*expr.args[0]));
  switch (expr.kind) {
    case ExprKind::kAttribute:
      return GetAttribute(context_, first, expr.name);
    case ExprKind::kNegate:
      return Negate(first, true);
    case ExprKind::kPlus:
      return Negate(first, false);
    case ExprKind::kNot:
      return Value(!IsTrue(first));
    case ExprKind::kAnd:
      return IsTrue(first) ? Evaluate(*expr.args[1]) : first;
    case ExprKind::kOr:
      return IsTrue(first) ? first : Evaluate(*expr.args[1]);
    default:
      break;
  }
  ASSIGN_OR_RETURN(const Value second, Evaluate(*expr.args[1]));
  context_.line = expr.line;
  if (expr.kind == ExprKind::kItem) return GetItem(context_, first, second);
  return ApplyBinary(context_, expr.ops[0], first, second);
}

Result<Value> Evaluator::EvaluateLoop(const Expr& expr) {
  if (loops_.size() == first_loop_) return Invalid("'loop' is undefined");
  const Loop& loop = *loops_.back();
  const auto index = static_cast<int64_t>(loop.index);
  const auto length = static_cast<int64_t>(loop.items->size());
  if (expr.name == "index") return Value(index + 1);
  if (expr.name == "index0") return Value(index);
  if (expr.name == "revindex") return Value(length - index);
  if (expr.name == "revindex0") return Value(length - index - 1);
  if (expr.name == "first") return Value(index == 0);
  if (expr.name == "last") return Value(index + 1 == length);
  if (expr.name == "length") return Value(length);
  if (expr.name == "depth") return Value(int64_t{1});  // depth of recursive loops, which are not supported
  if (expr.name == "depth0") return Value(int64_t{0});
  if (expr.name == "previtem") {
    return index > 0 ? (*loop.items)[loop.index - 1] : MakeUndefined("there is no previous item");
  }
  if (expr.name == "nextitem") {
    return index + 1 < length ? (*loop.items)[loop.index + 1] : MakeUndefined("there is no next item");
  }
  CHECK(expr.name == "cycle");
  Value chosen;
  for (size_t i = 0; i < expr.args.size(); ++i) {
    ASSIGN_OR_RETURN(Value value, Evaluate(*expr.args[i]));
    if (i == loop.index % expr.args.size()) chosen = std::move(value);
  }
  return chosen;
}

Result<Value> Evaluator::EvaluateSequence(const Expr& expr) {
  List items;
  for (const ExprPtr& arg : expr.args) {
    ASSIGN_OR_RETURN(Value item, Evaluate(*arg));
    items.push_back(std::move(item));
  }
  const SequenceKind kind = expr.kind == ExprKind::kList ? SequenceKind::kList : SequenceKind::kTuple;
  return MakeSequence(context_.budget, kind, std::move(items));
}

Result<Value> Evaluator::EvaluateDict(const Expr& expr) {
  std::vector<std::pair<Value, Value>> items;
  for (size_t i = 0; i + 1 < expr.args.size(); i += 2) {
    ASSIGN_OR_RETURN(Value key, Evaluate(*expr.args[i]));
    ASSIGN_OR_RETURN(Value value, Evaluate(*expr.args[i + 1]));
    items.emplace_back(std::move(key), std::move(value));
  }
  return MakeDict(context_.budget, items);
}

Result<Value> Evaluator::EvaluateSlice(const Expr& expr) {
  ASSIGN_OR_RETURN(const Value object, Evaluate(*expr.args[0]));
  SliceBounds bounds;
  std::optional<int64_t>* const slots[] = {&bounds.start, &bounds.stop, &bounds.step};
  for (size_t i = 0; i < 3; ++i) {
    if (!expr.args[1 + i]) continue;
    ASSIGN_OR_RETURN(const Value bound, Evaluate(*expr.args[1 + i]));
    int64_t index = 0;
    if (AsInteger(bound, index)) {
      *slots[i] = index;
    } else if (!bound.Is<None>()) {
      return Invalid("the bounds of a slice must be integers or none, not a {}", TypeName(bound));
    }
  }
  context_.line = expr.line;
  return GetSlice(context_, object, bounds);
}

Result<Value> Evaluator::EvaluateCall(const Expr& expr) {
  const Value callee = Lookup(expr.name);
  if (!callee.Is<Function>()) return Invalid("'{}' is not callable", expr.name);
  std::vector<Value> arguments;
  std::vector<NamedValue> keywords;
  RETURN_IF_ERROR(EvaluateArguments(expr, arguments, keywords));
  // The parser has checked the arguments against the builtin function of this name.
  if (*callee.If<Function>() != expr.function)
    return Unsupported("calling '{0}' after an assignment to '{0}' is not supported", expr.name);
  return CallFunction(context_, expr.function, arguments, keywords);
}

Status Evaluator::EvaluateArguments(const Expr& expr, std::vector<Value>& arguments,
                                    std::vector<NamedValue>& keywords) {
  const size_t positional = expr.args.size() - expr.keywords.size();
  for (size_t i = 0; i < expr.args.size(); ++i) {
    ASSIGN_OR_RETURN(Value value, Evaluate(*expr.args[i]));
    if (i < positional) {
      arguments.push_back(std::move(value));
    } else {
      keywords.push_back({expr.keywords[i - positional], std::move(value)});
    }
  }
  context_.line = expr.line;
  return Ok{};
}

Status Evaluator::BindParameters(const Macro& macro, std::vector<Value> arguments, std::vector<NamedValue> keywords) {
  if (arguments.size() > macro.parameters.size()) {
    return Invalid("macro '{}' takes not more than {} argument(s)", macro.name, macro.parameters.size());
  }
  size_t used = 0;
  for (size_t i = 0; i < macro.parameters.size(); ++i) {
    const std::string& name = macro.parameters[i];
    const auto given = std::find_if(keywords.begin(), keywords.end(), [&](const auto& k) { return k.name == name; });
    Value value;
    if (i < arguments.size()) {
      value = std::move(arguments[i]);
    } else if (given != keywords.end()) {
      value = std::move(given->value);
      ++used;
    } else if (macro.defaults[i]) {
      ASSIGN_OR_RETURN(value, Evaluate(*macro.defaults[i]));  // sees the parameters before it
    } else {
      value = MakeUndefined(fmt::format("parameter '{}' was not provided", name));
    }
    RETURN_IF_ERROR(AssignName(name, value));
  }
  if (used < keywords.size()) return Invalid("macro '{}' is given an argument that it does not take", macro.name);
  return Ok{};
}

Result<Value> Evaluator::EvaluateMacroCall(const Expr& expr) {
  const Value callee = Lookup(expr.name);
  if (const Undefined* missing = callee.If<Undefined>()) return UndefinedError(*missing);
  if (!callee.Is<const Macro*>()) return Invalid("'{}' is not callable", expr.name);
  const Macro& macro = **callee.If<const Macro*>();
  std::vector<Value> arguments;
  std::vector<NamedValue> keywords;
  RETURN_IF_ERROR(EvaluateArguments(expr, arguments, keywords));
  const size_t scope = std::exchange(first_scope_, scopes_.size());
  const size_t loop = std::exchange(first_loop_, loops_.size());
  PushScope();
  RETURN_IF_ERROR(BindParameters(macro, std::move(arguments), std::move(keywords)));
  ASSIGN_OR_RETURN(std::string text, runner_.Capture(macro.body));
  PopScope();
  first_scope_ = scope;
  first_loop_ = loop;
  context_.line = expr.line;
  return MakeText(context_.budget, std::move(text));
}

Result<Value> Evaluator::EvaluateBuiltin(const Expr& expr) {
  ASSIGN_OR_RETURN(const Value self, Evaluate(*expr.args[0]));
  Arguments arguments(expr.args.size() - 1);
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!expr.args[1 + i]) continue;
    ASSIGN_OR_RETURN(arguments[i], Evaluate(*expr.args[1 + i]));
  }
  context_.line = expr.line;
  const Receiver receiver = expr.builtin->receiver;
  if ((receiver == Receiver::kText && !self.text()) || (receiver == Receiver::kDict && !self.dict())) {
    if (const Undefined* missing = self.If<Undefined>()) return UndefinedError(*missing);
    if (self.Is<Markup>()) return Unsupported("a method of the result of filter 'safe' is not supported");
    return Invalid("'{}' has no attribute '{}'", TypeName(self), expr.name);
  }
  return expr.builtin->call(context_, self, arguments);
}

Result<Value> Evaluator::EvaluateConditional(const Expr& expr) {
  ASSIGN_OR_RETURN(const Value condition, Evaluate(*expr.args[1]));
  if (IsTrue(condition)) return Evaluate(*expr.args[0]);
  if (expr.args[2]) return Evaluate(*expr.args[2]);
  return MakeUndefined(fmt::format(
      "the inline if-expression on line {} evaluated to false and no else section was defined.", expr.line));
}

Result<Value> Evaluator::EvaluateCompare(const Expr& expr) {
  ASSIGN_OR_RETURN(Value left, Evaluate(*expr.args[0]));
  for (size_t i = 0; i < expr.ops.size(); ++i) {
    ASSIGN_OR_RETURN(Value right, Evaluate(*expr.args[1 + i]));
    context_.line = expr.line;
    ASSIGN_OR_RETURN(const bool holds, ApplyComparison(context_, expr.ops[i], left, right));
    if (!holds) return Value(false);
    left = std::move(right);
  }
  return Value(true);
}

Result<Value> Evaluator::EvaluateConcat(const Expr& expr) {
  std::string out;
  for (const ExprPtr& arg : expr.args) {
    ASSIGN_OR_RETURN(const Value part, Evaluate(*arg));
    ASSIGN_OR_RETURN(const std::string text, ToText(context_.budget, part));
    out += text;
  }
  return MakeText(context_.budget, std::move(out));
}

}  // namespace infinigen::jinja
