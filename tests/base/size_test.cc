#include "base/size.h"

#include <gtest/gtest.h>

namespace infinigen {
namespace {

TEST(ParseSize, UnitsOfBothKinds) {
  EXPECT_EQ(ParseSize("0").value(), 0u);
  EXPECT_EQ(ParseSize("123").value(), 123u);
  EXPECT_EQ(ParseSize("1K").value(), 1024u);
  EXPECT_EQ(ParseSize("1kb").value(), 1000u);
  EXPECT_EQ(ParseSize("1.5GiB").value(), 1610612736u);
  EXPECT_EQ(ParseSize("24 GiB").value(), 24ull << 30);
  EXPECT_EQ(ParseSize("2TB").value(), 2000000000000u);
}

TEST(ParseSize, RefusesWhatIsNotASize) {
  for (const char* bad : {"", "GiB", "-1", "1x", "1kbb", "nan", "inf", "99999999999T", "1e3"})
    EXPECT_FALSE(ParseSize(bad).ok()) << bad;
}

TEST(ParseInteger, SaysWhatIsWrong) {
  int64_t value = 7;
  EXPECT_EQ(ParseInteger("+12", 0, 100, &value), "");
  EXPECT_EQ(value, 12);
  EXPECT_EQ(ParseInteger("-3", -5, 100, &value), "");
  EXPECT_EQ(value, -3);
  EXPECT_EQ(ParseInteger("101", 0, 100, &value), "101 is too large, the maximum is 100");
  EXPECT_EQ(ParseInteger("99999999999999999999", 0, 100, &value),
            "99999999999999999999 is too large, the maximum is 100");
  EXPECT_EQ(ParseInteger("-99999999999999999999", 0, 100, &value),
            "-99999999999999999999 is too small, the minimum is 0");
  EXPECT_EQ(ParseInteger("99999999999999999999", 1, 9, &value), "99999999999999999999 is too large, the maximum is 9");
  for (const char* bad : {"", "+", "-", "1.5", "x", "1x", "++1", " 1", "99999999999999999999x"})
    EXPECT_EQ(ParseInteger(bad, 0, 100, &value), "'" + std::string(bad) + "' is not a whole number");
  EXPECT_EQ(value, -3);
}

TEST(FormatSize, ReadsWell) {
  EXPECT_EQ(FormatSize(512), "512 B");
  EXPECT_EQ(FormatSize(1536), "1.50 KiB");
  EXPECT_EQ(FormatSize(24ull << 30), "24.0 GiB");
}

}  // namespace
}  // namespace infinigen
