// The fields of a request that say what an answer looks like: response_format, grammar, tools, tool_choice, and calls
// of tools in messages. Read from the body's own text, because the order of a schema's properties is part of it. Pure
// functions; any thread.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "json/fields.h"
#include "server/completion_request.h"

namespace infinigen {

// The text of a top-level member of a JSON object, the last of that name; empty where there is none, or where its name
// is written with escapes. Precondition: `body` is a valid JSON object.
std::string_view RawMember(std::string_view body, std::string_view name);

// Reads response_format and grammar. Errors go to `fields`.
void ReadFormat(FieldReader& fields, std::string_view body, CompletionRequest* request);
// Reads tools, tool_choice and parallel_tool_calls. Precondition: ReadFormat was called.
void ReadTools(FieldReader& fields, std::string_view body, CompletionRequest* request);

// The schema of one call of a tool that the request allows, as `{"name": …, ARGUMENTS: {…}}`, where `arguments` is the
// model family's name of that key. Precondition: CheckSchema accepted the tools' parameters.
std::string CallSchema(const CompletionRequest& request, std::string_view arguments);

}  // namespace infinigen
