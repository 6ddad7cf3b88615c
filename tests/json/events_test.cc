#include "json/events.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/utf8.h"

namespace infinigen {
namespace {

using std::string_view;
using testing::ElementsAre;
using testing::HasSubstr;

// Writes down what it receives.
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
            "f.json: JSON nested deeper than 16 at byte 16");
  EXPECT_EQ(StreamRefusal("\"" + std::string((1 << 20) - 1, 'a') + "\""), "");
  EXPECT_EQ(StreamRefusal("\"" + std::string((1 << 20) + 8, 'a') + "\""),
            "f.json: JSON token at byte 0 is longer than 1048576 bytes");
  EXPECT_THAT(StreamRefusal("[" + std::string((1 << 20) + 8, '1') + "]"), HasSubstr("token at byte 1 is longer"));
  EXPECT_THAT(StreamRefusal("{\"k\":1, \"" + std::string(40, 'k') + "\":2}", {.max_token_bytes = 30}),
              HasSubstr("token at byte 8 is longer than 30"));
  EXPECT_EQ(StreamRefusal("\"" + std::string(3 << 20, 'a') + "\"", {.max_token_bytes = SIZE_MAX}), "");
  EXPECT_THAT(StreamRefusal("1e999"), HasSubstr("invalid JSON near byte")) << "beyond any double";
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
  EXPECT_THAT(StreamRefusal("[1, \n\n\n   x]"), HasSubstr("near byte 10:"))
      << "white space that the parser never saw counts";
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
  EXPECT_FALSE(ScanJson("[1, 2, 3, 4", {}, other).has_value()) << "the handler's own error is no fault of the text";
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
  EXPECT_EQ(unexpected("true"), "f.json: field 'x': unexpected a boolean");
  EXPECT_THAT(unexpected("null"), HasSubstr("unexpected null"));
  EXPECT_THAT(unexpected("1"), HasSubstr("unexpected a number"));
  EXPECT_THAT(unexpected("-1"), HasSubstr("unexpected a negative number"));
  EXPECT_THAT(unexpected("1.5"), HasSubstr("unexpected a fraction"));
  EXPECT_THAT(unexpected("\"\""), HasSubstr("unexpected a string"));
  EXPECT_THAT(unexpected("{}"), HasSubstr("unexpected an object"));
  EXPECT_THAT(unexpected("[]"), HasSubstr("unexpected an array"));
}

}  // namespace
}  // namespace infinigen
