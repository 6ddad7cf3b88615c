// What operators, attributes and subscripts of chat templates do, with Python's and Jinja's rules for mixed types.
#pragma once

#include <optional>
#include <string_view>

#include "base/result.h"
#include "text/jinja_ast.h"
#include "text/jinja_builtins.h"

namespace infinigen::jinja {

Result<Value> ApplyBinary(Context& context, Operator op, const Value& left, const Value& right);
Result<Value> Negate(const Value& value, bool negative);  // -x, or +x
// ==, !=, <, <=, >, >=, in, not in.
Result<bool> ApplyComparison(Context& context, Operator op, const Value& left, const Value& right);

// Attributes are keys of dicts and names in namespaces. What does not exist is undefined; on an undefined value an
// error.
Result<Value> GetAttribute(Context& context, const Value& object, std::string_view name);
Result<Value> GetItem(Context& context, const Value& object, const Value& key);
// "a.b.0": the form in which filters take attributes.
Result<Value> GetPath(Context& context, const Value& object, const Value& path);

struct SliceBounds {
  std::optional<int64_t> start, stop, step;
};
Result<Value> GetSlice(Context& context, const Value& object, const SliceBounds& bounds);

}  // namespace infinigen::jinja
