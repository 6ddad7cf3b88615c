#include "base/result.h"

#include <gtest/gtest.h>

#include <memory>

namespace infinigen {
namespace {

Result<int> Half(int value) {
  if (value % 2 != 0) return Invalid("{} is odd", value);
  return value / 2;
}

Result<int> Quarter(int value) {
  ASSIGN_OR_RETURN(const int half, Half(value));
  ASSIGN_OR_RETURN(const int quarter, Half(half));
  return quarter;
}

TEST(Result, CarriesValueOrFirstError) {
  EXPECT_EQ(Quarter(12).value(), 3);
  EXPECT_EQ(Quarter(7).error().message, "7 is odd");
  EXPECT_EQ(Quarter(6).error().message, "3 is odd");
  EXPECT_EQ(Quarter(6).error().kind, ErrorKind::kInvalid);
}

TEST(Result, MovesOwningValues) {
  Result<std::unique_ptr<int>> result = std::make_unique<int>(5);
  std::unique_ptr<int> owned = std::move(result).value();
  EXPECT_EQ(*owned, 5);
}

TEST(ResultDeathTest, ValueOfAnErrorIsABug) {
  EXPECT_DEATH({ [[maybe_unused]] int x = Half(1).value(); }, "CHECK\\(ok\\(\\)\\)");
}

// Whatever a message quotes: one line of valid UTF-8 that a terminal only shows.
TEST(Error, ForeignBytesAreEscaped) {
  const std::string foreign =
      "a\xff\x1b[2J\xc2\x9b"
      "b\xe2\x80\xae\xe2\x80\xa8\n";
  const Error error = Invalid("{}: 'é' is wrong", foreign);
  EXPECT_EQ(error.message,
            "a\\xff\\x1b[2J\\xc2\\x9b"
            "b\\xe2\\x80\\xae\\xe2\\x80\\xa8 : 'é' is wrong");
  EXPECT_EQ((Error{ErrorKind::kIo, "x: " + error.message}).message, "x: " + error.message) << "once";
}

}  // namespace
}  // namespace infinigen
