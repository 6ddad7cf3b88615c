// Checks a JSON schema before it is compiled to a grammar: that it is well formed, has only keywords that the grammar
// enforces, refers to nothing outside itself, and is small enough. A keyword that would be ignored is refused: the
// answer would not be what the schema says. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace infinigen {

// Bounds of a schema; within them, compiling was measured to take at most a second (docs/structured-output.md).
inline constexpr size_t kMostSchemaBytes = 64 << 10;
inline constexpr size_t kMostSubschemas = 512;
inline constexpr size_t kMostProperties = 128;  // of one object: the time to compile grows with their square
inline constexpr int64_t kMostRepeats = 1024;   // of minItems, maxItems, minLength, maxLength, counts in a pattern
inline constexpr size_t kMostPatternBytes = 512;
inline constexpr size_t kMostGrammarBytes = 32 << 10;
// Sum over the schema of repeats times what is repeated.
inline constexpr int64_t kMostExpanded = 20'000;

// The error's message begins with the place, as a JSON pointer: "/properties/a/type: …".
Status CheckSchema(const nlohmann::ordered_json& schema);
// Counts in braces, "{3,40}", multiplied where they nest, are at most kMostRepeats. For patterns and EBNF grammars.
Status CheckRepeats(std::string_view text);

}  // namespace infinigen
