// Values as text, in Python's forms.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "text/jinja_budget.h"
#include "text/jinja_value.h"

namespace infinigen::jinja {

// str(): what {{ value }} prints.
Result<std::string> ToText(Budget& budget, const Value& value);

// repr(), for messages. Quoted: of a string. Both are one line.
Result<std::string> ToRepr(Budget& budget, const Value& value);
std::string Quoted(std::string_view text);

struct JsonStyle {
  int64_t indent = -1;  // spaces for each level; negative: all on one line
  bool ascii = false;   // escape what is not ASCII
  bool sort_keys = false;
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};

// json.dumps().
Result<std::string> ToJson(Budget& budget, const Value& value, const JsonStyle& style);

}  // namespace infinigen::jinja
