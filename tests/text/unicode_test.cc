#include "text/unicode.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace infinigen {
namespace {

TEST(Unicode, ClassesOfCharacters) {
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
