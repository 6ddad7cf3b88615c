#include "grammar/schema_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "base/utf8.h"

namespace infinigen {
namespace {

using Json = nlohmann::ordered_json;

template <size_t N>
bool Among(const std::array<std::string_view, N>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

constexpr std::array<std::string_view, 7> kTypes = {"null",   "boolean", "integer", "number",
                                                    "string", "array",   "object"};
// Keywords without effect on what is valid. The rest of a schema with $ref is ignored too, but for its definitions.
constexpr std::array<std::string_view, 12> kNotes = {"title",    "description", "default",  "examples",
                                                     "$schema",  "$id",         "$comment", "deprecated",
                                                     "readOnly", "writeOnly",   "example",  "discriminator"};
constexpr std::array<std::string_view, 14> kFormats = {
    "email",    "date", "time", "date-time",     "duration",     "ipv4",         "ipv6",
    "hostname", "uuid", "uri",  "uri-reference", "uri-template", "json-pointer", "relative-json-pointer"};

// A step of a JSON pointer: "a/b" is "a~1b".
std::string Step(std::string_view name) {
  std::string step = "/";
  for (const char c : name) {
    if (c == '~')
      step += "~0";
    else if (c == '/')
      step += "~1";
    else
      step += c;
  }
  return step;
}

// What a pattern has that the grammar would ignore or write as something else than JSON; empty: nothing.
std::string PatternFault(std::string_view pattern) {
  bool in_class = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char next = i + 1 < pattern.size() ? pattern[i + 1] : '\0';
    if (pattern[i] == '\\') {
      ++i;
      if (next == '\0') return "ends with a backslash";
      if ((next >= '1' && next <= '9') || std::string_view("bBpPk").find(next) != std::string_view::npos)
        return fmt::format("\\{} is not supported", next);
      if (!in_class && (next == '\\' || next == '"')) return "quotes and backslashes are not supported";
    } else if (in_class) {
      in_class = pattern[i] != ']';
    } else if (pattern[i] == '"') {
      return "quotes and backslashes are not supported";
    } else if (pattern[i] == '[') {
      in_class = true;
    } else if (pattern[i] == '(' && next == '?' && pattern.substr(i, 3) != "(?:") {
      return "groups with a special meaning are not supported, except (?:…)";
    } else if (pattern[i] == ')' && next == '?' && pattern.substr(i, 3) == ")??") {
      return "lazy groups are not supported";
    }
  }
  return {};
}

class Checker {
 public:
  explicit Checker(const Json& root) : root_(root) {}

  // `times`: how often this schema may occur in an answer, as far as counts say.
  Status Check(const Json& schema, const std::string& place, int64_t times) {
    if (schema.is_boolean()) return schema.get<bool>() ? Ok() : Bad(place, "no value is valid for the schema false");
    if (!schema.is_object()) return Bad(place, "a schema must be an object");
    if (++schemas_ > kMostSubschemas)
      return Bad(place, fmt::format("the schema has more than {} parts", kMostSubschemas));
    if ((expanded_ += times) > kMostExpanded) return Bad(place, "the counts in the schema multiply to too much");
    for (const auto& [name, value] : schema.items()) RETURN_IF_ERROR(CheckKeyword(schema, name, value, place, times));
    return CheckTogether(schema, place);
  }

  // References that lead back to themselves before a value begins have no meaning.
  Status CheckCycles(const Json& schema, const std::string& place, std::vector<const Json*>& open) {
    if (!schema.is_object()) return Ok();
    if (std::find(open.begin(), open.end(), &schema) != open.end()) return Bad(place, "a reference leads to itself");
    if (!done_.insert(&schema).second) return Ok();
    open.push_back(&schema);
    if (const auto ref = schema.find("$ref"); ref != schema.end())
      RETURN_IF_ERROR(CheckCycles(*Find(ref->get<std::string>()), place + "/$ref", open));
    for (const char* name : {"anyOf", "oneOf", "allOf"}) {
      const auto found = schema.find(name);
      if (found == schema.end()) continue;
      for (size_t i = 0; i < found->size(); ++i)
        RETURN_IF_ERROR(CheckCycles((*found)[i], fmt::format("{}/{}/{}", place, name, i), open));
    }
    open.pop_back();
    // Below, values have begun: each part is checked as a beginning of its own.
    for (const auto& [name, value] : schema.items()) RETURN_IF_ERROR(CheckInner(name, value, place));
    return Ok();
  }

 private:
  static Status Bad(const std::string& place, std::string_view what) {
    return Invalid("{}: {}", place.empty() ? "/" : Escaped(place, 200), what);
  }
  static Status Unknown(const std::string& place, std::string_view what) {
    return Unsupported("{}: {}", Escaped(place, 200), what);
  }

  Status CheckInner(const std::string& name, const Json& value, const std::string& place) {
    std::vector<const Json*> open;
    const std::string at = place + Step(name);
    if (name == "items" || name == "additionalProperties") return CheckCycles(value, at, open);
    const bool many = name == "properties" || name == "$defs" || name == "definitions" || name == "prefixItems";
    if (!many) return Ok();
    for (const auto& [key, each] : value.items()) {
      RETURN_IF_ERROR(CheckCycles(each, at + Step(key), open));
      open.clear();
    }
    return Ok();
  }

  // The part of the schema that "#/$defs/name" names; null where there is none.
  const Json* Find(const std::string& ref) const {
    if (ref == "#") return &root_;
    if (ref.substr(0, 2) != "#/") return nullptr;
    try {
      const Json::json_pointer pointer(ref.substr(1));
      return root_.contains(pointer) ? &root_.at(pointer) : nullptr;
    } catch (const std::exception&) {  // not a pointer
      return nullptr;
    }
  }

  Status CheckSchemas(const Json& value, const std::string& at, int64_t times, bool array) {
    if (array ? !value.is_array() : !value.is_object())
      return Bad(at, array ? "must be an array of schemas" : "must be an object of schemas");
    if (array && value.empty()) return Bad(at, "must not be empty");
    for (const auto& [key, each] : value.items()) RETURN_IF_ERROR(Check(each, at + Step(key), times));
    return Ok();
  }

  Status CheckKeyword(const Json& schema, const std::string& name, const Json& value, const std::string& place,
                      int64_t times) {
    const std::string at = place + Step(name);
    if (Among(kNotes, name)) return Ok();
    if (name == "type") return CheckType(value, at);
    if (name == "properties" && value.is_object() && value.size() > kMostProperties)
      return Bad(at, fmt::format("has {} properties, at most {} are supported", value.size(), kMostProperties));
    if (name == "properties" || name == "$defs" || name == "definitions")
      return CheckSchemas(value, at, times, /*array=*/false);
    if (name == "anyOf" || name == "oneOf") return CheckSchemas(value, at, times, /*array=*/true);
    if (name == "allOf") {
      if (value.is_array() && value.size() > 1) return Unknown(at, "allOf with more than one schema is not supported");
      return CheckSchemas(value, at, times, /*array=*/true);
    }
    if (name == "prefixItems") return CheckSchemas(value, at, times, /*array=*/true);
    if (name == "items") {
      if (value.is_array()) return Unknown(at, "an array of schemas is not supported here; use prefixItems");
      return Check(value, at, times * Repeats(schema));
    }
    if (name == "additionalProperties") return Check(value, at, times, /*may_be_false=*/true);
    if (name == "required") return CheckRequired(schema, value, at);
    if (name == "enum")
      return value.is_array() && !value.empty() ? Ok() : Bad(at, "must be an array with at least one value");
    if (name == "const") return Ok();
    if (name == "$ref") return CheckRef(value, at);
    return CheckLeaf(name, value, at);
  }

  Status Check(const Json& schema, const std::string& place, int64_t times, bool may_be_false) {
    if (may_be_false && schema.is_boolean()) return Ok();
    return Check(schema, place, times);
  }

  Status CheckLeaf(const std::string& name, const Json& value, const std::string& at) {
    if (name == "minItems" || name == "maxItems" || name == "minLength" || name == "maxLength") {
      if (!value.is_number_integer() || value.get<int64_t>() < 0) return Bad(at, "must be a whole number from 0 on");
      if (value.get<int64_t>() > kMostRepeats) return Bad(at, fmt::format("at most {} is supported", kMostRepeats));
      return Ok();
    }
    if (name == "minimum" || name == "maximum" || name == "exclusiveMinimum" || name == "exclusiveMaximum")
      return value.is_number() ? Ok() : Bad(at, "must be a number");
    if (name == "pattern") {
      if (!value.is_string()) return Bad(at, "must be a string");
      const std::string& pattern = value.get_ref<const std::string&>();
      if (pattern.size() > kMostPatternBytes) return Bad(at, fmt::format("at most {} bytes", kMostPatternBytes));
      if (const Status repeats = CheckRepeats(pattern); !repeats.ok()) return Bad(at, repeats.error().message);
      if (const std::string fault = PatternFault(pattern); !fault.empty()) return Unknown(at, fault);
      return Ok();
    }
    if (name == "format") {
      if (!value.is_string()) return Bad(at, "must be a string");
      if (!Among(kFormats, value.get_ref<const std::string&>()))
        return Unknown(at, fmt::format("the format {} is not supported", Quoted(value.get<std::string>(), 40)));
      return Ok();
    }
    if (name == "uniqueItems" && value == false) return Ok();
    return Unknown(at, "this keyword is not supported");
  }

  static Status CheckType(const Json& value, const std::string& at) {
    const auto known = [](const Json& type) {
      return type.is_string() && Among(kTypes, type.get_ref<const std::string&>());
    };
    const bool fine =
        value.is_array() ? !value.empty() && std::all_of(value.begin(), value.end(), known) : known(value);
    return fine ? Ok()
                : Bad(at, "must be null, boolean, integer, number, string, array or object, or an array of these");
  }

  Status CheckRequired(const Json& schema, const Json& value, const std::string& at) {
    if (!value.is_array()) return Bad(at, "must be an array of names");
    const auto properties = schema.find("properties");
    for (size_t i = 0; i < value.size(); ++i) {
      const std::string place = fmt::format("{}/{}", at, i);
      if (!value[i].is_string()) return Bad(place, "must be a string");
      const std::string& name = value[i].get_ref<const std::string&>();
      if (properties == schema.end() || !properties->is_object() || !properties->contains(name))
        return Unknown(place, fmt::format("{} is not among the properties", Quoted(name, 40)));
    }
    return Ok();
  }

  Status CheckRef(const Json& value, const std::string& at) {
    if (!value.is_string()) return Bad(at, "must be a string");
    const std::string ref = value.get<std::string>();
    if (ref.empty() || ref[0] != '#')
      return Bad(at,
                 fmt::format("{} is outside of the schema; only references to its own parts (#/$defs/…) are followed",
                             Quoted(ref, 80)));
    const Json* found = Find(ref);
    if (found == nullptr) return Bad(at, fmt::format("the schema has no {}", Quoted(ref, 80)));
    return found->is_object() || found->is_boolean() ? Ok()
                                                     : Bad(at, fmt::format("{} is not a schema", Quoted(ref, 80)));
  }

  static int64_t Repeats(const Json& schema) {
    int64_t most = 1;
    for (const char* name : {"minItems", "maxItems"})
      if (const auto found = schema.find(name); found != schema.end() && found->is_number_integer())
        most = std::clamp<int64_t>(found->get<int64_t>(), most, kMostRepeats);
    return most;
  }

  // Rules between keywords, each of which is well formed.
  Status CheckTogether(const Json& schema, const std::string& place) {
    const auto has = [&](const char* name) { return schema.contains(name); };
    for (const char* shape : {"pattern", "format"})
      for (const char* length : {"minLength", "maxLength"})
        if (has(shape) && has(length))
          return Unknown(place + "/" + length, fmt::format("is not supported together with {}", shape));
    if (has("pattern") && has("format")) return Unknown(place + "/format", "is not supported together with pattern");
    for (const char* kind : {"Items", "Length"}) {
      const std::string least = std::string("min") + kind, most = std::string("max") + kind;
      if (has(least.c_str()) && has(most.c_str()) && schema[least].get<int64_t>() > schema[most].get<int64_t>())
        return Bad(place + "/" + least, "is above " + most);
    }
    // An alternative beside other keywords would have to fulfil both.
    for (const std::string_view name : {"anyOf", "oneOf", "allOf", "$ref", "enum", "const"}) {
      if (!schema.contains(name)) continue;
      const bool values = name == "enum" || name == "const";
      for (const auto& [other, value] : schema.items())
        if (other != name && !Among(kNotes, other) && other != "$defs" && other != "definitions" &&
            !(values && other == "type"))
          return Unknown(place + Step(other), fmt::format("is not supported together with {}", name));
    }
    return CheckValues(schema, place);
  }

  // Values of enum and const have the schema's type.
  static Status CheckValues(const Json& schema, const std::string& place) {
    const auto type = schema.find("type"), of_enum = schema.find("enum"), of_const = schema.find("const");
    if (type == schema.end()) return Ok();
    const auto fits = [&](const Json& value) {
      const auto is = [&](const Json& name) {
        const std::string& kind = name.get_ref<const std::string&>();
        return (kind == "null" && value.is_null()) || (kind == "boolean" && value.is_boolean()) ||
               (kind == "integer" && value.is_number_integer()) || (kind == "number" && value.is_number()) ||
               (kind == "string" && value.is_string()) || (kind == "array" && value.is_array()) ||
               (kind == "object" && value.is_object());
      };
      return type->is_array() ? std::any_of(type->begin(), type->end(), is) : is(*type);
    };
    if (of_const != schema.end() && !fits(*of_const)) return Bad(place + "/const", "does not have the schema's type");
    if (of_enum == schema.end()) return Ok();
    for (size_t i = 0; i < of_enum->size(); ++i)
      if (!fits((*of_enum)[i])) return Bad(fmt::format("{}/enum/{}", place, i), "does not have the schema's type");
    return Ok();
  }

  const Json& root_;
  size_t schemas_ = 0;
  int64_t expanded_ = 0;
  std::set<const Json*> done_;
};

}  // namespace

Status CheckRepeats(std::string_view text) {
  // [i]: the largest product of counts in the group that is open at depth i.
  std::vector<int64_t> open = {1};
  int64_t last = 1;  // of what a count would repeat
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\\') {
      ++i;
      last = 1;
    } else if (c == '(') {
      open.push_back(1);
    } else if (c == ')' && open.size() > 1) {
      last = open.back();
      open.pop_back();
      open.back() = std::max(open.back(), last);
    } else if (c == '{') {
      const size_t end = std::min(text.find('}', i), text.size());
      int64_t number = 0, most = 1;
      for (size_t at = i + 1; at <= end; ++at) {
        const bool digit = at < end && text[at] >= '0' && text[at] <= '9';
        number = digit ? std::min<int64_t>(number * 10 + (text[at] - '0'), INT32_MAX) : 0;
        most = std::max(most, number);
      }
      if (last * most > kMostRepeats) return Invalid("counts in braces multiply to more than {}", kMostRepeats);
      open.back() = std::max(open.back(), last * most);
      i = end;
      last = 1;
    } else {
      last = 1;
    }
  }
  return Ok();
}

Status CheckSchema(const Json& schema) {
  Checker checker(schema);
  RETURN_IF_ERROR(checker.Check(schema, "", 1));
  std::vector<const Json*> open;
  return checker.CheckCycles(schema, "", open);
}

}  // namespace infinigen
