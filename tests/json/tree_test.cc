#include "json/tree.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>

namespace infinigen {
namespace {

using nlohmann::json;
using testing::HasSubstr;

std::string TreeRefusal(std::string_view text, const JsonLimits& limits = {}) {
  const Result<json> tree = ParseJson(text, "f.json", limits);
  return tree.ok() ? "" : tree.error().message;
}

TEST(JsonTree, IsTheTreeOfTheLibrary) {
  for (const char* text : {"7", "\"a\"", "null", "[]", "{}", R"({"a": [1, {"b": [[], -2.5]}, "c"], "d": {"e": true}})",
                           R"([[1, 2], [3, [4]], {"x": {"y": {}}}])"}) {
    const Result<json> tree = ParseJson(text, "f.json");
    ASSERT_TRUE(tree.ok()) << text;
    EXPECT_EQ(*tree, json::parse(text));
  }
}

TEST(JsonTree, TheLastOfEqualKeysCounts) {
  const Result<json> tree = ParseJson(R"({"a": {"b": [1]}, "a": {"c": 2}})", "f.json");
  ASSERT_TRUE(tree.ok());
  EXPECT_EQ(*tree, json::parse(R"({"a": {"c": 2}})"));
}

TEST(JsonTree, BoundsValuesAndText) {
  EXPECT_EQ(TreeRefusal(R"({"a": [1, 2]})", {.max_values = 5}), "");
  EXPECT_EQ(TreeRefusal(R"({"a": [1, 2]})", {.max_values = 4}),
            "f.json: more values than are accepted in this kind of file");
  EXPECT_EQ(TreeRefusal(R"({"abc": "def"})", {.max_text_bytes = 6}), "");
  EXPECT_THAT(TreeRefusal(R"({"abc": "def"})", {.max_text_bytes = 5}), HasSubstr("more values than are accepted"));
}

TEST(JsonTree, FaultsAreToldApart) {
  const auto kind = [](std::string_view text, const JsonLimits& limits) {
    json tree;
    return BuildJson(text, limits, &tree).value().kind;
  };
  using Kind = JsonFault::Kind;
  EXPECT_EQ(kind("[1,", {}), Kind::kSyntax);
  EXPECT_EQ(kind("1e999", {}), Kind::kNumber);
  EXPECT_EQ(kind(std::string_view("1\0", 2), {}), Kind::kZeroByte);
  EXPECT_EQ(kind("[[1]]", {.max_depth = 1}), Kind::kTooDeep);
  EXPECT_EQ(kind("\"abc\"", {.max_token_bytes = 2}), Kind::kTokenTooLong);
  EXPECT_EQ(kind("[1, 2]", {.max_values = 2}), Kind::kTooLarge);
}

TEST(JsonTree, BuilderTakesOneValueAfterAnother) {
  JsonTreeBuilder builder({.max_values = 3});
  EXPECT_FALSE(builder.complete());
  for (int round = 0; round < 2; ++round) {
    EXPECT_TRUE(builder.Open(true) && builder.Key("k") && builder.Add(round));
    EXPECT_FALSE(builder.complete());
    builder.Close();
    EXPECT_TRUE(builder.complete());
    EXPECT_EQ(builder.Take(), (json{{"k", round}}));
  }
}

TEST(JsonTree, FilesAreBounded) {
  const std::string path = testing::TempDir() + "json_tree_test.json";
  std::ofstream(path) << R"({"a": 1})";
  EXPECT_EQ(ReadJsonFile(path, 8).value(), (json{{"a", 1}}));
  EXPECT_FALSE(ReadJsonFile(path, 7).ok());
  std::ofstream(path) << "{";
  EXPECT_THAT(ReadJsonFile(path, 8).error().message, HasSubstr(path + ": invalid JSON near byte 1"));
  std::remove(path.c_str());
  EXPECT_EQ(ReadJsonFile(path, 8).error().kind, ErrorKind::kIo);
}

TEST(JsonLines, SkipsBlankLinesAndCountsThem) {
  JsonLines lines("1\r\n\n \t\r\n[2]\n\r\r\n  3");
  const auto next = [&] {
    const auto line = lines.Next();
    return line ? fmt::format("{}:{}", line->number, line->text) : "end";
  };
  EXPECT_EQ(next(), "1:1");
  EXPECT_EQ(next(), "4:[2]");
  EXPECT_EQ(next(), "6:  3");
  EXPECT_EQ(next(), "end");
  EXPECT_EQ(next(), "end");
}

}  // namespace
}  // namespace infinigen
