#include "server/answer_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/utf8.h"
#include "grammar/schema_check.h"

namespace infinigen {
namespace {

using Ordered = nlohmann::ordered_json;

// The end of the string that begins at `at`, after its closing quote.
size_t EndOfString(std::string_view text, size_t at) {
  for (++at; at < text.size() && text[at] != '"'; ++at)
    if (text[at] == '\\') ++at;
  return std::min(at + 1, text.size());
}

bool IsName(std::string_view name) {
  const auto fine = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  };
  return !name.empty() && name.size() <= 64 && std::all_of(name.begin(), name.end(), fine);
}

// Refuses `field` unless CheckSchema accepts it. `place`: of the schema inside the field.
bool CheckAt(FieldReader& fields, const std::string& field, const std::string& place, const Ordered& schema,
             size_t bytes) {
  if (bytes > kMostSchemaBytes) {
    fields.Refuse(field, fmt::format("has {} bytes, at most {} are allowed", bytes, kMostSchemaBytes));
    return false;
  }
  const Status checked = CheckSchema(schema);
  if (!checked.ok()) fields.Refuse(field, place + checked.error().message, checked.error().kind);
  return checked.ok();
}

void ReadSchemaFormat(FieldReader& fields, const Ordered& format, size_t bytes, CompletionRequest* request) {
  const auto outer = format.find("json_schema");
  if (outer == format.end() || !outer->is_object())
    return fields.Refuse("response_format", "json_schema is missing or not an object");
  const auto schema = outer->find("schema");
  if (schema == outer->end()) return fields.Refuse("response_format", "json_schema.schema is missing");
  if (CheckAt(fields, "response_format", "json_schema.schema", *schema, bytes))
    request->grammar = GrammarSource{GrammarSource::Kind::kJsonSchema, schema->dump()};
}

// Moves references of a schema that becomes a part of another: "#/$defs/a" is then "#PLACE/$defs/a".
void MoveRefs(Ordered& schema, const std::string& place) {
  if (schema.is_array())
    for (Ordered& each : schema) MoveRefs(each, place);
  if (!schema.is_object()) return;
  for (auto& [name, value] : schema.items()) {
    if (name == "$ref" && value.is_string())
      value = "#" + place + value.get<std::string>().substr(1);
    else if (name != "enum" && name != "const" && name != "default" && name != "examples")
      MoveRefs(value, place);
  }
}

bool ReadTool(FieldReader& fields, const Ordered& tool, const std::string& field, CompletionRequest* request) {
  const auto refuse = [&](std::string_view what) { return fields.Refuse(field, std::string(what)), false; };
  if (!tool.is_object()) return refuse("must be an object");
  if (tool.value("type", Ordered()) != "function") return refuse("must have the type \"function\"");
  const auto function = tool.find("function");
  if (function == tool.end() || !function->is_object()) return refuse("has no function");
  const auto name = function->find("name");
  if (name == function->end() || !name->is_string() || !IsName(name->get<std::string>()))
    return refuse("needs a function.name of at most 64 letters, digits, _ and -");
  RequestTool read{.name = name->get<std::string>(), .parameters = R"({"type":"object","properties":{}})"};
  for (const RequestTool& other : request->tools)
    if (other.name == read.name) return refuse(fmt::format("two tools are named {}", read.name));
  const auto parameters = function->find("parameters");
  if (parameters != function->end() && !parameters->is_null()) {
    if (!parameters->is_object()) return refuse("function.parameters must be an object");
    read.parameters = parameters->dump();
  }
  request->tools.push_back(std::move(read));
  return true;
}

void ReadToolChoice(FieldReader& fields, const Ordered& choice, CompletionRequest* request) {
  if (choice == "auto") return;
  if (choice == "none") {
    request->tool_choice = ToolChoice::kNone;
  } else if (choice == "required") {
    request->tool_choice = ToolChoice::kRequired;
  } else if (choice.is_object() && choice.value("type", Ordered()) == "function" && choice.contains("function") &&
             choice["function"].is_object() && choice["function"].value("name", Ordered()).is_string()) {
    request->tool_choice = ToolChoice::kRequired;
    request->only_tool = choice["function"]["name"].get<std::string>();
    const auto named = [&](const RequestTool& tool) { return tool.name == request->only_tool; };
    if (std::none_of(request->tools.begin(), request->tools.end(), named))
      fields.Refuse("tool_choice", fmt::format("no tool is named {}", Quoted(request->only_tool, 64)));
  } else {
    fields.Refuse("tool_choice", "must be \"none\", \"auto\", \"required\" or name a function");
  }
}

}  // namespace

std::string_view RawMember(std::string_view body, std::string_view name) {
  std::string_view found;
  int depth = 0;
  bool key = false;  // a string here is a name of the outermost object
  bool wanted = false;
  size_t start = 0;
  const auto end = [&](size_t at) {
    if (std::exchange(wanted, false)) found = body.substr(start, at - start);
  };
  for (size_t i = 0; i < body.size();) {
    const char c = body[i];
    if (c == '"') {
      const size_t after = EndOfString(body, i);
      if (depth == 1 && key) {
        wanted = body.substr(i + 1, after - i - 2) == name;
        key = false;
      }
      i = after;
      continue;
    }
    if (c == '{' || c == '[') key = ++depth == 1;
    if ((c == '}' || c == ']') && --depth == 0) end(i);
    if (depth == 1 && c == ':') start = i + 1;
    if (depth == 1 && c == ',') {
      end(i);
      key = true;
    }
    ++i;
  }
  return found;
}

void ReadFormat(FieldReader& fields, std::string_view body, CompletionRequest* request) {
  const std::string grammar = fields.String("grammar");
  if (!grammar.empty()) {
    if (grammar.size() > kMostGrammarBytes)
      fields.Refuse("grammar", fmt::format("has {} bytes, at most {} are allowed", grammar.size(), kMostGrammarBytes));
    else if (const Status repeats = CheckRepeats(grammar); !repeats.ok())
      fields.Refuse("grammar", repeats.error().message);
    request->grammar = GrammarSource{GrammarSource::Kind::kEbnf, grammar};
  }
  if (fields.Get("response_format") == nullptr) return;
  const std::string_view raw = RawMember(body, "response_format");
  const Ordered format = Ordered::parse(raw, nullptr, /*allow_exceptions=*/false);
  const Ordered type = format.is_object() ? format.value("type", Ordered()) : Ordered();
  if (type == "text") return;
  if (request->grammar) return fields.Refuse("response_format", "cannot be combined with grammar");
  if (type == "json_object")
    request->grammar =
        GrammarSource{GrammarSource::Kind::kJsonSchema, R"({"type":"object","additionalProperties":true})"};
  else if (type == "json_schema")
    ReadSchemaFormat(fields, format, raw.size(), request);
  else
    fields.Refuse("response_format", "must be an object whose type is \"text\", \"json_object\" or \"json_schema\"");
}

void ReadTools(FieldReader& fields, std::string_view body, CompletionRequest* request) {
  request->parallel_tool_calls = fields.Bool("parallel_tool_calls", true);
  const auto* given = fields.Get("tools");
  if (given != nullptr && !given->is_array()) return fields.Refuse("tools", "must be an array");
  if (given != nullptr && !given->empty()) {
    if (given->size() > kMostTools) return fields.Refuse("tools", fmt::format("at most {} tools", kMostTools));
    const std::string_view raw = RawMember(body, "tools");
    const Ordered tools = Ordered::parse(raw, nullptr, /*allow_exceptions=*/false);
    if (!tools.is_array()) return fields.Refuse("tools", "must be written without escapes");
    for (size_t i = 0; i < tools.size(); ++i)
      if (!ReadTool(fields, tools[i], fmt::format("tools[{}]", i), request)) return;
    request->tools_json = tools.dump();
  }
  if (fields.Get("tool_choice") == nullptr) return;
  ReadToolChoice(fields, Ordered::parse(RawMember(body, "tool_choice"), nullptr, /*allow_exceptions=*/false), request);
  if (request->tool_choice != ToolChoice::kRequired) return;
  if (request->tools.empty()) return fields.Refuse("tool_choice", "needs tools");
  if (request->grammar) return fields.Refuse("tool_choice", "a forced call cannot be combined with another format");
  for (size_t i = 0; i < request->tools.size(); ++i) {
    const RequestTool& tool = request->tools[i];
    if (!request->only_tool.empty() && tool.name != request->only_tool) continue;
    if (!CheckAt(fields, fmt::format("tools[{}]", i), "function.parameters", Ordered::parse(tool.parameters),
                 tool.parameters.size()))
      return;
  }
}

// xgrammar follows references through objects alone, so each call has a name.
std::string CallSchema(const CompletionRequest& request, std::string_view arguments) {
  Ordered any = Ordered::array(), calls = Ordered::object();
  for (const RequestTool& tool : request.tools) {
    if (!request.only_tool.empty() && tool.name != request.only_tool) continue;
    const std::string place = fmt::format("/$defs/call{}", calls.size());
    Ordered parameters = Ordered::parse(tool.parameters, nullptr, /*allow_exceptions=*/false);
    MoveRefs(parameters, fmt::format("{}/properties/{}", place, arguments));
    Ordered call = {{"type", "object"}};
    call["properties"] = {{"name", {{"const", tool.name}}}, {std::string(arguments), std::move(parameters)}};
    call["required"] = {"name", std::string(arguments)};
    call["additionalProperties"] = false;
    any.push_back({{"$ref", "#" + place}});
    calls[place.substr(7)] = std::move(call);
  }
  return Ordered{{"anyOf", std::move(any)}, {"$defs", std::move(calls)}}.dump();
}

}  // namespace infinigen
