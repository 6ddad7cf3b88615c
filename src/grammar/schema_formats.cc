#include "grammar/schema_formats.h"

#include <map>
#include <nlohmann/json.hpp>
#include <string>

namespace infinigen {
namespace {

// Years of four digits, and no 29 February: whether there is one depends on the year.
const std::string kDate =
    "[12][0-9]{3}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|"
    "02-(0[1-9]|1[0-9]|2[0-8]))";
// Fractions of at most a microsecond, and no leap seconds.
const std::string kTime =
    "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])";
const std::string kOctet = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9][0-9]|[0-9])";

const std::string* PatternOf(const std::string& format) {
  static const std::map<std::string, std::string> kPatterns = {
      {"date", "^" + kDate + "$"},
      {"time", "^" + kTime + "$"},
      {"date-time", "^" + kDate + "T" + kTime + "$"},
      {"ipv4", "^" + kOctet + "(\\." + kOctet + "){3}$"},
      {"uuid", "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"},
  };
  const auto found = kPatterns.find(format);
  return found == kPatterns.end() ? nullptr : &found->second;
}

// Optional groups as counts: "(a)?" is "(a){0,1}".
std::string WithCounts(const std::string& pattern) {
  std::string result;
  bool in_class = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    result += pattern[i];
    if (pattern[i] == '\\') {
      if (++i < pattern.size()) result += pattern[i];
    } else if (pattern[i] == '[') {
      in_class = true;
    } else if (pattern[i] == ']') {
      in_class = false;
    } else if (pattern[i] == ')' && !in_class && i + 1 < pattern.size() && pattern[i + 1] == '?') {
      result += "{0,1}";
      ++i;
    }
  }
  return result;
}

}  // namespace

void PrepareSchema(nlohmann::ordered_json& schema) {
  if (schema.is_array())
    for (nlohmann::ordered_json& each : schema) PrepareSchema(each);
  if (!schema.is_object()) return;
  // A property may be named "format": its value is then a schema, not a string.
  if (const auto format = schema.find("format"); format != schema.end() && format->is_string()) {
    if (const std::string* pattern = PatternOf(format->get<std::string>())) {
      schema.erase("format");
      schema["pattern"] = *pattern;
    }
  }
  if (const auto pattern = schema.find("pattern"); pattern != schema.end() && pattern->is_string())
    *pattern = WithCounts(pattern->get<std::string>());
  for (auto& [name, value] : schema.items())
    if (name != "enum" && name != "const" && name != "default" && name != "examples" && name != "example")
      PrepareSchema(value);
}

}  // namespace infinigen
