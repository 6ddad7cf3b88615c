#include "tensor/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace infinigen {
namespace {

TEST(F16, EveryValueSurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const F16 half{static_cast<uint16_t>(bits)};
    const float value = ToFloat(half);
    if (std::isnan(value))
      EXPECT_TRUE(std::isnan(ToFloat(ToF16(value))));
    else
      ASSERT_EQ(ToF16(value).bits, half.bits) << value;
  }
}

TEST(F16, KnownValuesAndRounding) {
  EXPECT_EQ(ToFloat(F16{0x3c00}), 1.0f);
  EXPECT_EQ(ToFloat(F16{0x0001}), 0x1p-24f);
  EXPECT_EQ(ToFloat(F16{0xc000}), -2.0f);
  EXPECT_TRUE(std::isinf(ToFloat(F16{0x7c00})));
  EXPECT_EQ(ToF16(65504.0f).bits, 0x7bff);
  EXPECT_EQ(ToF16(65519.9f).bits, 0x7bff) << "below the midpoint to 2^16";
  EXPECT_EQ(ToF16(65520.0f).bits, 0x7c00) << "the midpoint goes to even: infinity";
  EXPECT_EQ(ToF16(1.0f + 0x1p-11f).bits, 0x3c00) << "tie to even";
  EXPECT_EQ(ToF16(1.0f + 0x1p-11f + 0x1p-20f).bits, 0x3c01);
  EXPECT_EQ(ToF16(0x1p-25f).bits, 0) << "tie to even below the smallest subnormal";
}

TEST(BF16, EveryValueSurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const BF16 brain{static_cast<uint16_t>(bits)};
    const float value = ToFloat(brain);
    if (std::isnan(value))
      EXPECT_TRUE(std::isnan(ToFloat(ToBF16(value))));
    else
      ASSERT_EQ(ToBF16(value).bits, brain.bits);
  }
}

TEST(BF16, RoundsToNearestEven) {
  EXPECT_EQ(ToBF16(1.0f + 0x1p-8f).bits, 0x3f80) << "tie to even";
  EXPECT_EQ(ToBF16(1.0f + 0x1p-8f + 0x1p-20f).bits, 0x3f81);
  EXPECT_EQ(ToBF16(1.0f + 3 * 0x1p-8f).bits, 0x3f82) << "tie to even, upwards";
  EXPECT_TRUE(std::isinf(ToFloat(ToBF16(std::numeric_limits<float>::max()))));
}

}  // namespace
}  // namespace infinigen
