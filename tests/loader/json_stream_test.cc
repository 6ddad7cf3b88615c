#include "loader/json_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "loader/model_files.h"

namespace infinigen {
namespace {

using test::MessageOf;
using testing::HasSubstr;

// Accepts every document; counts strings.
class AnythingHandler final : public JsonHandler {
 public:
  AnythingHandler() : JsonHandler("f.json") {}
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return ++strings_ > 0; }
  bool start_object(size_t) override { return true; }
  bool key(string_t&) override { return true; }
  bool end_object() override { return true; }
  bool start_array(size_t) override { return true; }
  bool end_array() override { return true; }
  int strings() const { return strings_; }

 protected:
  std::string Place() const override { return "somewhere"; }

 private:
  int strings_ = 0;
};

std::string Refusal(std::string_view text) {
  AnythingHandler handler;
  return MessageOf(ParseJsonStream(text, 0, handler));
}

TEST(JsonStream, DeliversADocument) {
  AnythingHandler handler;
  EXPECT_TRUE(ParseJsonStream(R"({"a": ["x", "\"[[[[[[[[[[[[[[[[[[[[[[", -1, 2.5, null, true]})", 0, handler).ok());
  EXPECT_EQ(handler.strings(), 2) << "brackets inside a string do not nest";
}

TEST(JsonStream, BoundsDepthTokensAndNumbers) {
  EXPECT_EQ(Refusal(std::string(16, '[') + std::string(16, ']')), "");
  EXPECT_THAT(Refusal(std::string(17, '[') + std::string(17, ']')), HasSubstr("nested deeper than 16 at byte 16"));
  EXPECT_EQ(Refusal("\"" + std::string((1 << 20) - 1, 'a') + "\""), "");
  EXPECT_THAT(Refusal("\"" + std::string((1 << 20) + 8, 'a') + "\""), HasSubstr("token at byte 0 is longer"));
  EXPECT_THAT(Refusal("[" + std::string((1 << 20) + 8, '1') + "]"), HasSubstr("token at byte 1 is longer"));
  EXPECT_THAT(Refusal("1e999"), HasSubstr("invalid JSON")) << "beyond any double";
}

TEST(JsonStream, RefusesZeroBytesEverywhere) {
  using std::string_view;
  EXPECT_THAT(Refusal(string_view("[1]\0", 4)), HasSubstr("zero byte at byte 3"));
  EXPECT_THAT(Refusal(string_view("\"a\0\"", 4)), HasSubstr("zero byte at byte 2"));
  EXPECT_THAT(Refusal(string_view("\"\\\0\"", 4)), HasSubstr("zero byte at byte 2"));
}

TEST(JsonStream, NamesWhatItDidNotExpect) {
  class NothingHandler final : public JsonHandler {
   public:
    NothingHandler() : JsonHandler("f.json") {}

   protected:
    std::string Place() const override { return "field 'x'"; }
  };
  NothingHandler handler;
  EXPECT_EQ(MessageOf(ParseJsonStream("true", 0, handler)), "f.json: field 'x': unexpected a boolean");
}

TEST(Quoted, StaysOneShortLine) {
  EXPECT_EQ(Quoted("a\nb\x7f"), "'a\\x0ab\\x7f'");
  EXPECT_LT(Quoted(std::string(100000, 'a')).size(), 200u);
}

}  // namespace
}  // namespace infinigen
