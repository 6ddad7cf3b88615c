// What CheckSchema accepts and refuses, and where it says the fault is.
#include "grammar/schema_check.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

namespace infinigen {
namespace {

std::string Fault(const std::string& text) {
  const auto schema = nlohmann::ordered_json::parse(text);
  const Status checked = CheckSchema(schema);
  return checked.ok() ? "" : checked.error().message;
}

TEST(SchemaCheckTest, WhatGrammarsEnforceIsAccepted) {
  for (
      const char* schema : {
          R"({})",
          R"(true)",
          R"({"type":"object","properties":{"a":{"type":"string","maxLength":9}},"required":["a"],"additionalProperties":false})",
          R"({"type":["integer","null"],"minimum":-3,"maximum":9})",
          R"({"type":"array","items":{"enum":["a",1,null]},"minItems":1,"maxItems":4})",
          R"({"type":"array","prefixItems":[{"type":"null"},{"const":{"a":[1]}}]})",
          R"({"type":"string","pattern":"^[a-z]{1,20}$"})",
          R"({"type":"string","format":"date-time","description":"when"})",
          R"({"$ref":"#/$defs/node","$defs":{"node":{"type":"object","properties":{"next":{"anyOf":[{"$ref":"#/$defs/node"},{"type":"null"}]}}}}})",
          R"({"type":"string","enum":["a","b"],"title":"T","default":"a"})",
      })
    EXPECT_EQ(Fault(schema), "") << schema;
}

TEST(SchemaCheckTest, FaultsAreNamedWithTheirPlace) {
  const std::pair<const char*, const char*> cases[] = {
      {R"(7)", "/: a schema must be an object"},
      {R"(false)", "/: no value"},
      {R"({"type":"text"})", "/type: must be null"},
      {R"({"properties":{"a/b":{"type":5}}})", "/properties/a~1b/type: must be null"},
      {R"({"properties":{"a":{"items":[{}]}}})", "/properties/a/items: an array of schemas"},
      {R"({"anyOf":[]})", "/anyOf: must not be empty"},
      {R"({"anyOf":[{"type":"null"},{"maxLength":-1}]})", "/anyOf/1/maxLength: must be a whole number"},
      {R"({"maxItems":1025})", "/maxItems: at most 1024"},
      {R"({"required":["a"]})", "/required/0: 'a' is not among the properties"},
      {R"({"not":{"type":"null"}})", "/not: this keyword is not supported"},
      {R"({"multipleOf":3})", "/multipleOf: this keyword is not supported"},
      {R"({"uniqueItems":true})", "/uniqueItems: this keyword is not supported"},
      {R"({"allOf":[{},{}]})", "/allOf: allOf with more than one"},
      {R"({"$ref":"https://example.org/schema"})", "/$ref: 'https://example.org/schema' is outside"},
      {R"({"$ref":"other.json#/a"})", "/$ref: 'other.json#/a' is outside"},
      {R"({"$ref":"#/$defs/none"})", "/$ref: the schema has no '#/$defs/none'"},
      {R"({"$ref":"#/$defs","$defs":[]})", "/$ref: '#/$defs' is not a schema"},
      {R"({"$defs":[]})", "/$defs: must be an object of schemas"},
      {R"({"$ref":"#"})", "/$ref: a reference leads to itself"},
      {R"({"anyOf":[{"$ref":"#/$defs/a"}],"$defs":{"a":{"$ref":"#/$defs/b"},"b":{"anyOf":[{"$ref":"#/$defs/a"}]}}})",
       "a reference leads to itself"},
      {R"({"pattern":"(a{40}){40}"})", "/pattern: counts in braces multiply"},
      {R"({"pattern":"^a\"b$"})", "/pattern: quotes and backslashes"},
      {R"({"pattern":"(?=a)b"})", "/pattern: groups with a special meaning"},
      {R"({"pattern":"\\bword"})", "/pattern: \\b is not supported"},
      {R"({"pattern":"(a)\\1"})", "/pattern: \\1 is not supported"},
      {R"({"pattern":"a","maxLength":3})", "/maxLength: is not supported together with pattern"},
      {R"({"format":"colour"})", "/format: the format 'colour' is not supported"},
      {R"({"type":"integer","enum":[1,"a"]})", "/enum/1: does not have the schema's type"},
      {R"({"type":"string","const":null})", "/const: does not have the schema's type"},
      {R"({"anyOf":[{}],"minimum":3})", "/minimum: is not supported together with anyOf"},
      {R"({"minLength":5,"maxLength":4})", "/minLength: is above maxLength"},
      {R"({"items":{"items":{"type":"null"},"maxItems":1000},"maxItems":1000})", "multiply to too much"},
  };
  for (const auto& [schema, fault] : cases)
    EXPECT_NE(Fault(schema).find(fault), std::string::npos) << schema << ": " << Fault(schema);
}

TEST(SchemaCheckTest, ASchemaOfManyPartsIsRefused) {
  std::string text = R"({"$defs":{)";
  for (size_t i = 0; i <= kMostSubschemas; ++i)
    text += (i == 0 ? "\"" : ",\"") + std::to_string(i) + R"(":{"type":"null"})";
  EXPECT_NE(Fault(text + "}}").find("more than 512 parts"), std::string::npos);
  text = R"({"properties":{)";
  for (size_t i = 0; i <= kMostProperties; ++i)
    text += (i == 0 ? "\"" : ",\"") + std::to_string(i) + R"(":{"type":"null"})";
  EXPECT_NE(Fault(text + "}}").find("/properties: has 129 properties"), std::string::npos);
}

TEST(SchemaCheckTest, CountsMultiplyWhereTheyNest) {
  EXPECT_TRUE(CheckRepeats("a{1000}b{1000}").ok());
  EXPECT_TRUE(CheckRepeats("(a{30}b{3}){30}").ok());
  EXPECT_FALSE(CheckRepeats("(a{33}b{3}){32}").ok());
  EXPECT_FALSE(CheckRepeats("((a{11}){11}){11}").ok());
  EXPECT_FALSE(CheckRepeats("a{1,99999999999999999999}").ok());
  EXPECT_TRUE(CheckRepeats(R"(\(a{40}\){40})").ok()) << "an escaped parenthesis is no group";
  EXPECT_TRUE(CheckRepeats("a{").ok());
}

}  // namespace
}  // namespace infinigen
