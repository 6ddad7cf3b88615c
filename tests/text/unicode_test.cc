#include "text/unicode.h"

#include <gtest/gtest.h>

#include <cstdint>

#include "text/byte_level.h"

namespace infinigen {
namespace {

TEST(Unicode, EncodesAndDecodesEveryCodePoint) {
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

TEST(Unicode, RefusesOverlongFormsSurrogatesAndTooLarge) {
  for (const char* bad :
       {"\xC0\x80", "\xE0\x80\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\x80", "\xFF"})
    EXPECT_FALSE(ScanUtf8(bad, 0).valid) << bad;
}

TEST(Unicode, ReplacesMaximalSubparts) {
  EXPECT_EQ(ReplaceInvalidUtf8("a\xE6\xBC"), "a\xEF\xBF\xBD");
  EXPECT_EQ(ReplaceInvalidUtf8("\xE6\xBC\xE6"), "\xEF\xBF\xBD\xEF\xBF\xBD");
  EXPECT_EQ(ReplaceInvalidUtf8("\xF0\x9F\x98z\x80"), "\xEF\xBF\xBDz\xEF\xBF\xBD");
  EXPECT_EQ(ReplaceInvalidUtf8("plain é 漢 😀"), "plain é 漢 😀");
}

TEST(Unicode, FindsIncompleteTail) {
  const std::string emoji = "x😀";
  EXPECT_EQ(IncompleteUtf8Tail(emoji), 0U);
  EXPECT_EQ(IncompleteUtf8Tail(emoji.substr(0, 4)), 3U);
  EXPECT_EQ(IncompleteUtf8Tail(emoji.substr(0, 3)), 2U);
  EXPECT_EQ(IncompleteUtf8Tail(emoji.substr(0, 2)), 1U);
  EXPECT_EQ(IncompleteUtf8Tail("\xFF"), 0U);
  EXPECT_EQ(IncompleteUtf8Tail("\x9F\x98\x80"), 0U);
  EXPECT_EQ(IncompleteUtf8Tail("\xED\xA0"), 0U);  // a surrogate: no byte can complete it
}

TEST(Unicode, ValidPrefixStopsAtTheFirstBadByte) {
  EXPECT_EQ(ValidUtf8Prefix("0123456789abcdef\xFF"), 16U);
  EXPECT_EQ(ValidUtf8Prefix("0123456é\xE6\xBC"), 9U);
  EXPECT_EQ(ValidUtf8Prefix(""), 0U);
}

TEST(Unicode, ClassesOfCharacters) {
  for (const char32_t c : {U' ', U'\n', U'\u0085', U'\u00A0', U'\u2003', U'\u3000'}) EXPECT_TRUE(IsWhiteSpace(c));
  for (const char32_t c : {U'\u200B', U'\u180E', U'\uFEFF', U'a'}) EXPECT_FALSE(IsWhiteSpace(c));
  EXPECT_TRUE(IsNumeric(U'٣') && IsNumeric(U'½') && IsNumeric(U'Ⅷ') && !IsNumeric(U'x'));
  EXPECT_TRUE(IsWordChar(U'ß') && IsWordChar(U'_') && IsWordChar(U'漢') && !IsWordChar(U'-') && !IsWordChar(U' '));
}

TEST(ByteLevel, MapsAllBytesThereAndBack) {
  for (int byte = 0; byte < 256; ++byte)
    ASSERT_EQ(ByteOfByteLevelChar(ByteLevelChar(static_cast<uint8_t>(byte))), static_cast<uint8_t>(byte));
  EXPECT_EQ(ByteLevelChar(' '), U'Ġ');
  EXPECT_EQ(ByteLevelChar('\n'), U'Ċ');
  EXPECT_EQ(ByteLevelChar(0xFF), U'ÿ');
  EXPECT_EQ(ByteLevelChar(0xAD), U'\u0143');
  EXPECT_FALSE(ByteOfByteLevelChar(U' '));
  EXPECT_FALSE(ByteOfByteLevelChar(U'漢'));
  EXPECT_EQ(BytesOfByteLevel("Ġthe"), " the");
  EXPECT_FALSE(BytesOfByteLevel("漢"));
}

}  // namespace
}  // namespace infinigen
