// Chat templates: from source to a Template. Statements are parsed here, expressions in jinja_expression.h.
#pragma once

#include <string_view>

#include "base/result.h"
#include "text/jinja_ast.h"

namespace infinigen::jinja {

// What the subset does not have is refused by name, with kind kUnsupported; every message names the line.
Result<Template> ParseTemplate(std::string_view source);

}  // namespace infinigen::jinja
