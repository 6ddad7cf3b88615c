#include "base/utf8.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace infinigen {
namespace {

TEST(Utf8, EncodesAndDecodesEveryCodePoint) {
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text;
    AppendUtf8(c, text);
    const Utf8Scan scan = ScanUtf8(text, 0);
    ASSERT_TRUE(scan.valid) << static_cast<uint32_t>(c);
    ASSERT_EQ(scan.length, text.size());
    ASSERT_EQ(DecodeUtf8(text, 0), c);
  }
}

TEST(Utf8, RefusesOverlongFormsSurrogatesAndTooLarge) {
  for (const char* bad :
       {"\xC0\x80", "\xE0\x80\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\x80", "\xFF"})
    EXPECT_FALSE(ScanUtf8(bad, 0).valid) << bad;
}

TEST(Utf8, ReplacesMaximalSubparts) {
  EXPECT_EQ(ReplaceInvalidUtf8("a\xE6\xBC"), "a\xEF\xBF\xBD");
  EXPECT_EQ(ReplaceInvalidUtf8("\xE6\xBC\xE6"), "\xEF\xBF\xBD\xEF\xBF\xBD");
  EXPECT_EQ(ReplaceInvalidUtf8("\xF0\x9F\x98z\x80"), "\xEF\xBF\xBDz\xEF\xBF\xBD");
  EXPECT_EQ(ReplaceInvalidUtf8("plain é 漢 😀"), "plain é 漢 😀");
}

TEST(Utf8, FindsIncompleteTail) {
  const std::string emoji = "x😀";
  EXPECT_EQ(IncompleteUtf8Tail(emoji), 0U);
  EXPECT_EQ(IncompleteUtf8Tail(emoji.substr(0, 4)), 3U);
  EXPECT_EQ(IncompleteUtf8Tail(emoji.substr(0, 3)), 2U);
  EXPECT_EQ(IncompleteUtf8Tail(emoji.substr(0, 2)), 1U);
  EXPECT_EQ(IncompleteUtf8Tail("\xFF"), 0U);
  EXPECT_EQ(IncompleteUtf8Tail("\x9F\x98\x80"), 0U);
  EXPECT_EQ(IncompleteUtf8Tail("\xED\xA0"), 0U);  // a surrogate, which no byte can complete
}

TEST(Utf8, ValidPrefixStopsAtTheFirstBadByte) {
  EXPECT_EQ(ValidUtf8Prefix("0123456789abcdef\xFF"), 16U);
  EXPECT_EQ(ValidUtf8Prefix("0123456é\xE6\xBC"), 9U);
  EXPECT_EQ(ValidUtf8Prefix(""), 0U);
}

TEST(Utf8, WhiteSpace) {
  for (const char32_t c : {U' ', U'\n', U'\u0085', U'\u00A0', U'\u2003', U'\u3000'}) EXPECT_TRUE(IsWhiteSpace(c));
  for (const char32_t c : {U'\u200B', U'\u180E', U'\uFEFF', U'a'}) EXPECT_FALSE(IsWhiteSpace(c));
}

TEST(Quoted, EscapesWhatCouldDisturbAMessage) {
  EXPECT_EQ(Quoted("plain é 漢 😀"), "'plain é 漢 😀'");
  EXPECT_EQ(Quoted("a\nb\x7f"), "'a\\x0ab\\x7f'");
  EXPECT_EQ(Quoted("\x1b[2J\xff\xe6\xbc"), "'\\x1b[2J\\xff\\xe6\\xbc'") << "malformed bytes";
  EXPECT_EQ(Quoted("a\u0085b\u202Ec"), "'a\\xc2\\x85b\\xe2\\x80\\xaec'") << "a line end and a direction mark";
}

TEST(Quoted, CutsBetweenCharacters) {
  EXPECT_EQ(Escaped("aé漢", 6), "aé漢");
  EXPECT_EQ(Escaped("aé漢", 5), "aé…");
  EXPECT_EQ(Escaped("aé漢", 2), "a…");
  EXPECT_LT(Quoted(std::string(100000, 'a')).size(), 130u);
  for (size_t limit = 0; limit < 20; ++limit) {
    const std::string cut = Escaped("x😀é\xff漢\n字", limit);
    EXPECT_EQ(ValidUtf8Prefix(cut), cut.size()) << limit;
  }
}

}  // namespace
}  // namespace infinigen
