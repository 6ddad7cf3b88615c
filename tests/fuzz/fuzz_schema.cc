// Checks the input as a JSON schema. A schema that is accepted can be prepared for the compiler, stays a schema, and is
// within the bounds; otherwise the error is one line with the place.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/check.h"
#include "grammar/schema_check.h"
#include "grammar/schema_formats.h"
#include "json/parse.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace infinigen;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  (void)CheckRepeats(text);
  nlohmann::json bounded;
  if (BuildJson(text, {.max_depth = 32, .max_token_bytes = SIZE_MAX}, &bounded)) return 0;
  auto schema = nlohmann::ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (schema.is_discarded()) return 0;
  if (const Status checked = CheckSchema(schema); !checked.ok()) {
    const std::string& message = checked.error().message;
    CHECK(!message.empty() && message[0] == '/' && message.size() < 500);
    CHECK(message.find('\n') == std::string::npos);
    return 0;
  }
  PrepareSchema(schema);
  CHECK(schema.is_object() || schema.is_boolean());
  return 0;
}
