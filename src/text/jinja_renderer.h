// Runs the statements of a parsed chat template and collects what they print.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "text/jinja_ast.h"
#include "text/jinja_builtins.h"
#include "text/jinja_evaluator.h"

namespace infinigen::jinja {

// At most `max_output_bytes` are printed, counting what goes into variables. On error, context.line and context.raised
// say where and by whom.
Result<std::string> RenderTemplate(const Template& source, Context& context, const Variables& globals,
                                   uint64_t max_output_bytes);

}  // namespace infinigen::jinja
