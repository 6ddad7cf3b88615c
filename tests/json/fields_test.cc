#include "json/fields.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/utf8.h"

namespace infinigen {
namespace {

using nlohmann::json;
using testing::ElementsAre;

// The message of reading one field with `read`, in each wording; empty when there is none.
template <class Read>
std::vector<std::string> Messages(const json& object, Read&& read) {
  std::vector<std::string> messages;
  for (const FieldWording wording : {FieldWording::kValue, FieldWording::kPlain, FieldWording::kApi}) {
    FieldReader fields(object, "f.json", "a.", wording);
    read(fields);
    messages.push_back(fields.status().ok() ? "" : fields.status().error().message);
  }
  return messages;
}

TEST(FieldReader, ReadsTypedFields) {
  const json object = json::parse(R"({"yes": true, "text": "t", "three": 3, "real": 2.5, "whole": 4.0, "none": null,
                                      "ids": [1, 2], "id": 7, "big": 18446744073709551615})");
  FieldReader fields(object, "f.json");
  EXPECT_TRUE(fields.Bool("yes", false));
  EXPECT_TRUE(fields.Bool("absent", true));
  EXPECT_EQ(fields.String("text"), "t");
  EXPECT_EQ(fields.String("none", "default"), "default");
  EXPECT_EQ(fields.RequiredString("text"), "t");
  EXPECT_EQ(fields.Size("three", 3), 3);
  EXPECT_EQ(fields.Size("none", 3, 2), 2) << "null counts as absent";
  EXPECT_EQ(fields.Unsigned("big", 0), UINT64_MAX);
  EXPECT_EQ(fields.Positive("real"), 2.5);
  EXPECT_EQ(fields.Integer("whole", 0, 9), 4);
  EXPECT_EQ(fields.Integer("none", 0, 9), std::nullopt);
  EXPECT_EQ(fields.Number("three", 0, 9), 3.0);
  EXPECT_THAT(fields.TokenIds("ids"), ElementsAre(1, 2));
  EXPECT_THAT(fields.TokenIds("id"), ElementsAre(7));
  fields.Only("yes", true);
  EXPECT_TRUE(fields.Has("text") && !fields.Has("none") && !fields.Has("absent"));
  EXPECT_TRUE(fields.Find("none") != nullptr && fields.Get("none") == nullptr);
  EXPECT_TRUE(fields.status().ok()) << fields.status().error().message;
  fields.RefuseUnknown();
  EXPECT_TRUE(fields.status().ok()) << "every field was asked for";
}

TEST(FieldReader, EachWording) {
  const json object = json::parse(R"({"x": 3.5, "none": null})");
  EXPECT_THAT(Messages(object, [](FieldReader& f) { f.Bool("x", false); }),
              ElementsAre("f.json: field 'a.x' is 3.5, expected true or false",
                          "f.json: field 'a.x' must be true or false", "'a.x': must be true or false, not a number"));
  EXPECT_THAT(Messages(object, [](FieldReader& f) { f.String("x"); }),
              ElementsAre("f.json: field 'a.x' is 3.5, expected a string", "f.json: field 'a.x' must be a string",
                          "'a.x': must be a string, not a number"));
  EXPECT_THAT(
      Messages(object, [](FieldReader& f) { f.RequiredString("none"); }),
      ElementsAre("f.json: field 'a.none' is missing", "f.json: field 'a.none' is missing", "'a.none': is missing"));
  EXPECT_THAT(Messages(object, [](FieldReader& f) { f.Size("x", 8); })[0],
              "f.json: field 'a.x' is 3.5, expected a whole number from 1 to 8");
  EXPECT_THAT(Messages(object, [](FieldReader& f) { f.Size("y", 8); })[0], "f.json: field 'a.y' is missing");
  EXPECT_THAT(Messages(object, [](FieldReader& f) { f.Unsigned("none", 8); })[1],
              "f.json: field 'a.none' must be a whole number");
  EXPECT_THAT(Messages(object, [](FieldReader& f) { f.Integer("x", 0, 9); })[2],
              "'a.x': must be an integer, not a number");
  EXPECT_THAT(Messages(object, [](FieldReader& f) { f.Number("x", 0, 2); })[2], "'a.x': must be from 0 to 2, not 3.5");
  EXPECT_THAT(Messages(object, [](FieldReader& f) { f.TokenIds("x"); })[0],
              "f.json: field 'a.x' is 3.5, expected a token id or a list of token ids");
  EXPECT_THAT(Messages(object, [](FieldReader& f) { f.Only("x", 1); })[0],
              "f.json: field 'a.x' is 3.5; only 1 is supported");
}

TEST(FieldReader, IntegersOutsideTheirRange) {
  const auto message = [](const char* number) {
    const json object = json::parse(fmt::format(R"({{"n": {}}})", number));
    FieldReader fields(object, "", "", FieldWording::kApi);
    EXPECT_EQ(fields.Integer("n", 0, 9), std::nullopt);
    return fields.problem().value().message;
  };
  EXPECT_EQ(message("10"), "'n': must be from 0 to 9, not 10");
  EXPECT_EQ(message("-1"), "'n': must be from 0 to 9, not -1");
  EXPECT_EQ(message("18446744073709551615"), "'n': must be from 0 to 9, not 18446744073709551615");
  EXPECT_EQ(message("1e30"), "'n': the number is too large: must be from 0 to 9, not 1e+30");
}

TEST(FieldReader, KeepsTheFirstError) {
  const json object = json::parse(R"({"a": 1, "b": 2, "inner": {"c": 3}})");
  FieldReader fields(object, "f.json");
  fields.Bool("a", false);
  fields.Bool("b", false);
  fields.Fail(Unsupported("other"));
  EXPECT_EQ(fields.problem()->field, "a");
  EXPECT_EQ(fields.status().error().kind, ErrorKind::kInvalid);
  FieldReader outer(object, "", "", FieldWording::kApi), inner(object["inner"], "", "inner.", FieldWording::kApi);
  inner.Refuse("c", "is odd", ErrorKind::kUnsupported);
  outer.Adopt(inner);
  outer.Refuse("a", "is odd");
  EXPECT_EQ(outer.problem()->field, "inner.c");
  EXPECT_EQ(outer.problem()->message, "'inner.c': is odd");
  EXPECT_EQ(outer.problem()->kind, ErrorKind::kUnsupported);
}

TEST(FieldReader, RefusesUnknownFieldsByName) {
  const json object = json::parse(R"({"known": 1, "harmless": 2, "other": [3]})");
  const auto harmless = [](std::string_view name) { return name == "harmless"; };
  FieldReader value(object, "f.json");
  value.Ignore("known");
  value.RefuseUnknown(harmless);
  EXPECT_EQ(value.status().error().message,
            "f.json: field 'other' ([3]) is unknown and could change what the model computes");
  EXPECT_EQ(value.status().error().kind, ErrorKind::kUnsupported);
  FieldReader plain(object, "part", "", FieldWording::kPlain);
  plain.Get("known");
  plain.RefuseUnknown(harmless);
  EXPECT_EQ(plain.status().error().message, "part: option 'other' is not supported");
  FieldReader api(object, "", "kv.", FieldWording::kApi);
  api.RefuseOtherThan({"known", "other", "third"});
  EXPECT_EQ(api.problem()->message, "'kv.harmless': is unknown; known are known, other and third");
  EXPECT_EQ(api.problem()->field, "kv.harmless");
}

TEST(FieldReader, WhatIsNoObjectIsTheFirstError) {
  const json array = json::array({1});
  FieldReader fields(array, "part", "", FieldWording::kPlain);
  EXPECT_EQ(fields.Bool("x", true), true);
  EXPECT_FALSE(fields.Has("x"));
  fields.RefuseUnknown();
  EXPECT_EQ(fields.status().error().message, "part must be an object");
}

TEST(FieldReader, ForeignNamesAndValuesAreEscaped) {
  const json object = {{"a\n\x1b[2J", std::string("b\n") + std::string(10'000, 'c')}};
  for (const FieldWording wording : {FieldWording::kValue, FieldWording::kPlain, FieldWording::kApi}) {
    FieldReader fields(object, "f.json", "", wording);
    fields.RefuseUnknown();
    FieldReader others(object, "f.json", "", wording);
    others.RefuseOtherThan({"x"});
    FieldReader wrong(object, "f.json", "", wording);
    wrong.Bool("a\n\x1b[2J", false);
    for (const FieldReader* reader : {&fields, &others, &wrong})
      for (const std::string& text : {reader->problem().value().message, reader->problem().value().field}) {
        EXPECT_LT(text.size(), 400u);
        for (const char c : text) EXPECT_GE(static_cast<unsigned char>(c), 0x20) << text;
      }
  }
  const std::string shown = Shown(json(std::string(119, 'x') + "漢字"));
  EXPECT_EQ(ValidUtf8Prefix(shown), shown.size());
}

}  // namespace
}  // namespace infinigen
