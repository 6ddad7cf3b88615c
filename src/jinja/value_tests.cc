// The tests of chat templates: `value is name(argument)`.
#include "jinja/evaluator.h"

namespace infinigen::jinja {
namespace {

template <class... Types>
Result<Value> IsOneOf(Context&, const Value& self, const Arguments&) {
  return Value((self.Is<Types>() || ...));
}

Result<Value> IsDefined(Context&, const Value& self, const Arguments&) { return Value(!self.Is<Undefined>()); }

Result<Value> IsTrueConstant(Context&, const Value& self, const Arguments&) {
  const bool* flag = self.If<bool>();
  return Value(flag && *flag);
}

Result<Value> IsFalseConstant(Context&, const Value& self, const Arguments&) {
  const bool* flag = self.If<bool>();
  return Value(flag && !*flag);
}

Result<Value> IsIterable(Context&, const Value& self, const Arguments&) {
  return Value(self.text() || self.sequence() || self.dict() || self.Is<Undefined>());
}

// Values with a length and subscripts, and in Jinja also undefined values.
Result<Value> IsSequence(Context&, const Value& self, const Arguments&) {
  const Sequence* sequence = self.sequence();
  const bool indexed = sequence && sequence->kind != SequenceKind::kView && sequence->kind != SequenceKind::kGenerator;
  return Value(self.text() || indexed || self.dict() || self.Is<Undefined>());
}

template <bool kUpper>
Result<Value> HasCase(Context& context, const Value& self, const Arguments&) {
  ASSIGN_OR_RETURN(const std::string text, ToText(context.budget, self));
  return Value(HasOnlyCase(text, kUpper));
}

template <Operator kOperator>
Result<Value> Compares(Context& context, const Value& self, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const bool holds, ApplyComparison(context, kOperator, self, *arguments[0]));
  return Value(holds);
}

Result<Value> HasRemainder(Context& context, const Value& self, const Value& divisor, int64_t remainder) {
  ASSIGN_OR_RETURN(const Value rest, ApplyBinary(context, Operator::kMod, self, divisor));
  ASSIGN_OR_RETURN(const bool equal, Equals(context.budget, rest, Value(remainder)));
  return Value(equal);
}

Result<Value> IsOdd(Context& context, const Value& self, const Arguments&) {
  return HasRemainder(context, self, Value(int64_t{2}), 1);
}

Result<Value> IsEven(Context& context, const Value& self, const Arguments&) {
  return HasRemainder(context, self, Value(int64_t{2}), 0);
}

Result<Value> IsDivisible(Context& context, const Value& self, const Arguments& arguments) {
  return HasRemainder(context, self, *arguments[0], 0);
}

constexpr Builtin kTests[] = {
    {"!=", Compares<Operator::kNe>, 1, {"other"}},
    {"<", Compares<Operator::kLt>, 1, {"other"}},
    {"<=", Compares<Operator::kLe>, 1, {"other"}},
    {"==", Compares<Operator::kEq>, 1, {"other"}},
    {">", Compares<Operator::kGt>, 1, {"other"}},
    {">=", Compares<Operator::kGe>, 1, {"other"}},
    {"boolean", IsOneOf<bool>},
    {"callable", IsOneOf<Function, Undefined>},  // in Jinja also undefined values
    {"defined", IsDefined},
    {"divisibleby", IsDivisible, 1, {"num"}},
    {"eq", Compares<Operator::kEq>, 1, {"other"}},
    {"equalto", Compares<Operator::kEq>, 1, {"other"}},
    {"even", IsEven},
    {"false", IsFalseConstant},
    {"float", IsOneOf<double>},
    {"ge", Compares<Operator::kGe>, 1, {"other"}},
    {"greaterthan", Compares<Operator::kGt>, 1, {"other"}},
    {"gt", Compares<Operator::kGt>, 1, {"other"}},
    {"in", Compares<Operator::kIn>, 1, {"seq"}},
    {"integer", IsOneOf<int64_t>},
    {"iterable", IsIterable},
    {"le", Compares<Operator::kLe>, 1, {"other"}},
    {"lessthan", Compares<Operator::kLt>, 1, {"other"}},
    {"lower", HasCase<false>},
    {"lt", Compares<Operator::kLt>, 1, {"other"}},
    {"mapping", IsOneOf<DictPtr>},
    {"ne", Compares<Operator::kNe>, 1, {"other"}},
    {"none", IsOneOf<None>},
    {"number", IsOneOf<int64_t, double, bool>},
    {"odd", IsOdd},
    {"sequence", IsSequence},
    {"string", IsOneOf<Text, Markup>},
    {"true", IsTrueConstant},
    {"undefined", IsOneOf<Undefined>},
    {"upper", HasCase<true>},
};

}  // namespace

const Builtin* FindTest(std::string_view name) {
  for (const Builtin& test : kTests) {
    if (test.name == name) return &test;
  }
  return nullptr;
}

}  // namespace infinigen::jinja
