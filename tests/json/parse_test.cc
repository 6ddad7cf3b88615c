#include "json/parse.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <cstdio>
#include <fstream>

#include "base/utf8.h"
#include "sanitized.h"

namespace infinigen {
namespace {

using std::string_view;
using testing::ElementsAre;
using testing::HasSubstr;

// Records the events that it receives.
class Recorder final : public JsonHandler {
 public:
  explicit Recorder(int stop_after = -1) : JsonHandler("f.json"), left_(stop_after) {}
  bool Scalar(nlohmann::json value) override { return Note(value.dump()); }
  bool String(std::string& value) override { return Note("'" + value + "'"); }
  bool Key(std::string& key) override { return Note(key + ":"); }
  bool Open(bool object) override { return Note(object ? "{" : "["); }
  bool Close(bool object) override { return Note(object ? "}" : "]"); }
  const std::vector<std::string>& events() const { return events_; }

 protected:
  std::string Place() const override { return "somewhere"; }

 private:
  bool Note(std::string event) {
    events_.push_back(std::move(event));
    return left_-- != 0 || Fail(Invalid("{}: enough", path()));
  }
  int left_;
  std::vector<std::string> events_;
};

std::string StreamRefusal(string_view text, const JsonLimits& limits = {.max_depth = 16}, size_t offset = 0) {
  Recorder recorder;
  const Status status = ParseJsonEvents(text, limits, recorder, offset);
  return status.ok() ? "" : status.error().message;
}

TEST(JsonEvents, DeliversADocument) {
  Recorder recorder;
  ASSERT_TRUE(ParseJsonEvents(R"( {"a" : ["x", -1, 2.5 ,null, true],  "b":18446744073709551615} )", {}, recorder).ok());
  EXPECT_THAT(recorder.events(),
              ElementsAre("{", "a:", "[", "'x'", "-1", "2.5", "null", "true", "]", "b:", "18446744073709551615", "}"));
}

TEST(JsonEvents, CountsBracketsOutsideStringsOnly) {
  Recorder recorder;
  const std::string text = R"(["\"[[[[[[[[", "\\", "[[[[", "\\\"[[[["])";
  ASSERT_TRUE(ParseJsonEvents(text, {.max_depth = 1}, recorder).ok());
  EXPECT_EQ(recorder.events()[1], "'\"[[[[[[[['");
}

TEST(JsonEvents, BoundsDepthTokensAndNumbers) {
  EXPECT_EQ(StreamRefusal(std::string(16, '[') + std::string(16, ']')), "");
  EXPECT_EQ(StreamRefusal(std::string(17, '[') + std::string(17, ']')),
            "f.json: JSON nested deeper than 16 levels at byte 16");
  EXPECT_EQ(StreamRefusal("\"" + std::string((1 << 20) - 1, 'a') + "\""), "");
  EXPECT_EQ(StreamRefusal("\"" + std::string((1 << 20) + 8, 'a') + "\""),
            "f.json: JSON token at byte 0 is longer than 1048576 bytes");
  EXPECT_THAT(StreamRefusal("[" + std::string((1 << 20) + 8, '1') + "]"), HasSubstr("token at byte 1 is longer"));
  EXPECT_THAT(StreamRefusal("{\"k\":1, \"" + std::string(40, 'k') + "\":2}", {.max_token_bytes = 30}),
              HasSubstr("token at byte 8 is longer than 30"));
  EXPECT_EQ(StreamRefusal("\"" + std::string(3 << 20, 'a') + "\"", {.max_token_bytes = SIZE_MAX}), "");
  EXPECT_THAT(StreamRefusal("1e999"), HasSubstr("invalid JSON near byte")) << "outside the range of double";
}

TEST(JsonEvents, RefusesZeroBytesEverywhere) {
  EXPECT_EQ(StreamRefusal(string_view("[1]\0", 4)), "f.json: invalid JSON: zero byte at byte 3");
  EXPECT_THAT(StreamRefusal(string_view("\"a\0\"", 4)), HasSubstr("zero byte at byte 2"));
  EXPECT_THAT(StreamRefusal(string_view("\"\\\0\"", 4)), HasSubstr("zero byte at byte 2"));
  EXPECT_THAT(StreamRefusal(string_view("{}\0{}", 5), {}, 8), HasSubstr("zero byte at byte 10"))
      << "offset in the file";
}

TEST(JsonEvents, SaysWhereTheSyntaxIsWrong) {
  EXPECT_THAT(StreamRefusal(""), HasSubstr("f.json: invalid JSON near byte 0: syntax error"));
  EXPECT_THAT(StreamRefusal("[1,, 2]"), HasSubstr("near byte 3: syntax error"));
  EXPECT_THAT(StreamRefusal("[1,, 2]", {}, 100), HasSubstr("near byte 103:"));
  EXPECT_THAT(StreamRefusal("[1, \n\n\n   x]"), HasSubstr("near byte 10:")) << "skipped white space counts";
  EXPECT_THAT(StreamRefusal("[1] 2"), HasSubstr("near byte 4:"));
  EXPECT_THAT(StreamRefusal("\"\xff\""), HasSubstr("near byte 1:")) << "malformed UTF-8";
}

TEST(JsonEvents, WhiteSpaceCostsNothing) {
  const std::string blanks(5 << 20, ' ');
  Recorder recorder;
  ASSERT_TRUE(ParseJsonEvents("[" + blanks + "1" + blanks + "]" + blanks, {.max_token_bytes = 8}, recorder).ok());
  EXPECT_THAT(recorder.events(), ElementsAre("[", "1", "]"));
}

TEST(JsonEvents, QuotesForeignBytesEscaped) {
  for (const std::string_view text : {"[\"a\nb\x1b[2J\x7f\"]", "[tr\xff\x9b]", "[\"\xe2\x80", "{\"a\" \x01: 1}"}) {
    const std::string message = StreamRefusal(text);
    EXPECT_FALSE(message.empty());
    EXPECT_EQ(ValidUtf8Prefix(message), message.size()) << message;
    for (const char c : message) EXPECT_TRUE(static_cast<unsigned char>(c) >= 0x20 && c != 0x7f) << message;
  }
  EXPECT_LT(StreamRefusal("[" + std::string(100'000, 'x') + "]").size(), 300u);
}

TEST(JsonEvents, AHandlerStopsTheParser) {
  Recorder recorder(2);
  const Status status = ParseJsonEvents("[1, 2, 3, 4", {}, recorder);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().message, "f.json: enough");
  EXPECT_EQ(recorder.events().size(), 3u);
  Recorder other(2);
  EXPECT_FALSE(ScanJson("[1, 2, 3, 4", {}, other).has_value()) << "an error of the handler is not a fault of the text";
}

TEST(JsonEvents, NamesWhatAHandlerDidNotExpect) {
  class Nothing final : public JsonHandler {
   public:
    Nothing() : JsonHandler("f.json") {}

   protected:
    std::string Place() const override { return "field 'x'"; }
  };
  const auto unexpected = [](string_view text) {
    Nothing handler;
    return ParseJsonEvents(text, {}, handler).error().message;
  };
  EXPECT_EQ(unexpected("true"), "f.json: field 'x': unexpected boolean");
  EXPECT_THAT(unexpected("null"), HasSubstr("unexpected null"));
  EXPECT_THAT(unexpected("1"), HasSubstr("unexpected number"));
  EXPECT_THAT(unexpected("-1"), HasSubstr("unexpected negative number"));
  EXPECT_THAT(unexpected("1.5"), HasSubstr("unexpected fraction"));
  EXPECT_THAT(unexpected("\"\""), HasSubstr("unexpected string"));
  EXPECT_THAT(unexpected("{}"), HasSubstr("unexpected object"));
  EXPECT_THAT(unexpected("[]"), HasSubstr("unexpected array"));
}

// ---- trees and lines ----

using nlohmann::json;

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
            "f.json: more JSON values or text than this kind of file may have");
  EXPECT_EQ(TreeRefusal(R"({"abc": "def"})", {.max_text_bytes = 6}), "");
  EXPECT_THAT(TreeRefusal(R"({"abc": "def"})", {.max_text_bytes = 5}), HasSubstr("more JSON values or text"));
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

// Compared with what the heap holds, for texts that make large trees of few bytes.
TEST(JsonTree, MemoryIsBoundedBeforeItIsTaken) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer has a heap of its own";
  const auto repeated = [](string_view open, string_view item, string_view close) {
    std::string text(open);
    for (int i = 0; i < 50'000; ++i) text += (i > 0 ? "," : "") + std::string(item);
    return text + std::string(close);
  };
  std::string keys = "{";
  for (int i = 0; i < 50'000; ++i) keys += fmt::format("{}\"{}\":{}", i > 0 ? "," : "", i, i);
  for (const std::string& text :
       {repeated("[", "[]", "]"), repeated("[", "{}", "]"), repeated("[", "1", "]"), repeated("[", "[[[[1]]]]", "]"),
        repeated("[", "\"\"", "]"), repeated("[", "\"0123456789abcdef\"", "]"), repeated("[", "{\"a\":[1]}", "]"),
        repeated("[", "{\"0123456789abcdef\":null}", "]"), repeated("[", "true", "]"), keys + "}",
        "\"" + std::string(1 << 20, 'x') + "\"", repeated("[", "\"a\\\"b\\\\\"", "]")}) {
    const uint64_t bound = JsonTreeBytes(text);
    const auto held = [] {
      const struct mallinfo2 heap = ::mallinfo2();
      return heap.uordblks + heap.hblkhd;
    };
    const size_t before = held();
    json tree;
    ASSERT_FALSE(BuildJson(text, {.max_depth = 16, .max_token_bytes = SIZE_MAX}, &tree)) << text.substr(0, 40);
    const uint64_t taken = held() - before;
    EXPECT_GE(bound, taken) << text.substr(0, 40);
    EXPECT_LE(bound, 5 * taken + (8 << 20)) << "it should not refuse what fits: " << text.substr(0, 40);
  }
}

TEST(JsonLines, AByteOrderMarkIsNoPartOfTheFirst) {
  JsonLines lines("\xEF\xBB\xBF[1]\n[2]");
  EXPECT_EQ(lines.Next()->text, "[1]");
  EXPECT_EQ(lines.Next()->text, "[2]");
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

TEST(FreeJson, LeavesAnEmptyTree) {
  nlohmann::json tree = nlohmann::json::parse(R"({"a": [1, {"b": [[], "text"]}], "c": null})");
  FreeJson(tree);
  EXPECT_EQ(tree, nlohmann::json::object());
  nlohmann::ordered_json list = {1, {{"a", {2, 3}}}};
  FreeJson(list);
  EXPECT_EQ(list, nlohmann::ordered_json::array());
}

// What destructors of trees take when there is no other memory.
TEST(JsonReserve, GivesWhatIsFree) {
  JsonReserve reserve;
  void* const first = reserve.Take(1);
  void* const second = reserve.Take(3 * 4096);
  ASSERT_NE(first, nullptr);
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(reserve.Take(61 * 4096), nullptr) << "60 blocks are free";
  void* const rest = reserve.Take(60 * 4096);
  EXPECT_NE(rest, nullptr);
  EXPECT_EQ(reserve.Take(1), nullptr);
  EXPECT_TRUE(reserve.GiveBack(second, 3 * 4096));
  EXPECT_EQ(reserve.Take(2 * 4096 + 1), second);
  int elsewhere = 0;
  EXPECT_FALSE(reserve.GiveBack(&elsewhere, 1));
  EXPECT_TRUE(reserve.GiveBack(first, 1));
  EXPECT_TRUE(reserve.GiveBack(second, 3 * 4096));
  EXPECT_TRUE(reserve.GiveBack(rest, 60 * 4096));
  EXPECT_EQ(reserve.Take(64 * 4096), first);
}

}  // namespace
}  // namespace infinigen
