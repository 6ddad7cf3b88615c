// Sketches: the bytes of hand-made blocks, how far a stored number may be from the one given, and scores.
#include "kv/sketch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "tensor/dtype.h"

namespace infinigen {
namespace {

using testing::Each;
using testing::ElementsAre;

using Block = std::vector<std::byte>;

std::vector<int> BytesAt(const Block& block, size_t first, size_t count) {
  std::vector<int> bytes;
  for (size_t i = first; i < first + count; ++i) bytes.push_back(std::to_integer<int>(block[i]));
  return bytes;
}

// Where units begin that do not belong to `row`, and everything but the row's scale: all untouched.
int Touched(const SketchLayout& layout, const Block& block, int64_t row, std::byte blank) {
  int touched = 0;
  for (size_t i = 0; i < block.size(); ++i) {
    const bool scale = i >= layout.scales_offset();
    const size_t of = scale ? (i - layout.scales_offset()) / sizeof(uint16_t) : i / kSketchUnitBytes % kSketchBlock;
    if (of != static_cast<size_t>(row) && block[i] != blank) ++touched;
  }
  return touched;
}

TEST(SketchLayout, Sizes) {
  const SketchLayout int8{.type = SketchType::kInt8, .kv_heads = 2, .dims = 24};
  EXPECT_EQ(int8.units(), 6);
  EXPECT_EQ(int8.scales_offset(), 6u * 64 * 4);
  EXPECT_EQ(int8.block_bytes(), 64u * (24 + 2));
  EXPECT_EQ(int8.head_bytes(64), int8.block_bytes());
  EXPECT_EQ(int8.head_bytes(65), 2 * int8.block_bytes());
  EXPECT_EQ((SketchLayout{.type = SketchType::kInt4, .dims = 24}.block_bytes()), 64u * (12 + 2));
  EXPECT_EQ((SketchLayout{.type = SketchType::kBF16, .dims = 24}.block_bytes()), 64u * 48);
}

TEST(StoreSketch, BytesOfInt8) {
  const SketchLayout layout{.type = SketchType::kInt8, .dims = 8};
  Block block(layout.block_bytes(), std::byte{0xee});
  // The largest is 127, so the scale is one and numbers are rounded to whole ones, halves to even.
  StoreSketch(layout, block.data(), 5, std::vector<float>{127, -127, 1, 0, -1.2f, 2.5f, 3.5f, -2.5f});
  EXPECT_THAT(BytesAt(block, 5 * 4, 4), ElementsAre(255, 1, 129, 128)) << "the first four, value + 128";
  EXPECT_THAT(BytesAt(block, (64 + 5) * 4, 4), ElementsAre(127, 130, 132, 126)) << "64 rows further";
  EXPECT_THAT(BytesAt(block, 512 + 5 * 2, 2), ElementsAre(0x80, 0x3f)) << "1.0 as bf16";
  EXPECT_EQ(Touched(layout, block, 5, std::byte{0xee}), 0);
  EXPECT_THAT(LoadSketch(layout, block.data(), 5), ElementsAre(127, -127, 1, 0, -1, 2, 4, -2));
}

TEST(StoreSketch, BytesOfInt4) {
  const SketchLayout layout{.type = SketchType::kInt4, .dims = 16};
  Block block(layout.block_bytes(), std::byte{0xee});
  StoreSketch(layout, block.data(), 63, std::vector<float>{14, -14, 0, 2, -2, 4, 6, -8, 0, 0, 0, 0, 0, 0, 0, 14});
  // Byte b: number b + 8 in the low half, number 4 + b in the high one; the scale is two.
  EXPECT_THAT(BytesAt(block, 63 * 4, 4), ElementsAre(0x7f, 0xa1, 0xb8, 0x49));
  EXPECT_THAT(BytesAt(block, (64 + 63) * 4, 4), ElementsAre(0x88, 0x88, 0x88, 0xf8));
  EXPECT_THAT(BytesAt(block, 512 + 63 * 2, 2), ElementsAre(0x00, 0x40)) << "2.0 as bf16";
  EXPECT_EQ(Touched(layout, block, 63, std::byte{0xee}), 0);
  EXPECT_THAT(LoadSketch(layout, block.data(), 63), ElementsAre(14, -14, 0, 2, -2, 4, 6, -8, 0, 0, 0, 0, 0, 0, 0, 14));
}

TEST(StoreSketch, BytesOfBF16) {
  const SketchLayout layout{.type = SketchType::kBF16, .dims = 8};
  Block block(layout.block_bytes(), std::byte{0xee});
  StoreSketch(layout, block.data(), 0, std::vector<float>{1, -2, 0.5f, 0, 3, 4, 5, 6});
  EXPECT_THAT(BytesAt(block, 0, 4), ElementsAre(0x80, 0x3f, 0x00, 0xc0));
  EXPECT_THAT(BytesAt(block, 64 * 4, 4), ElementsAre(0x00, 0x3f, 0x00, 0x00)) << "the next two";
  EXPECT_EQ(Touched(layout, block, 0, std::byte{0xee}), 0);
  EXPECT_THAT(LoadSketch(layout, block.data(), 0), ElementsAre(1, -2, 0.5f, 0, 3, 4, 5, 6));
}

TEST(StoreSketch, NumbersComeBackWithinHalfAStep) {
  std::mt19937 chance(7);
  std::normal_distribution<float> normal;
  for (const SketchType type : {SketchType::kBF16, SketchType::kInt8, SketchType::kInt4}) {
    const SketchLayout layout{.type = type, .dims = 40};
    Block block(layout.block_bytes());
    for (int trial = 0; trial < 500; ++trial) {
      std::vector<float> numbers(40);
      float largest = 0;
      const float size = std::exp2(normal(chance) * 10);
      for (float& number : numbers) {
        number = normal(chance) * size;
        largest = std::max(largest, std::fabs(number));
      }
      const int64_t row = trial % kSketchBlock;
      StoreSketch(layout, block.data(), row, numbers);
      const std::vector<float> loaded = LoadSketch(layout, block.data(), row);
      // A scale is rounded up to a bf16, by less than one part in 128.
      const float step = largest / static_cast<float>(layout.largest()) * (1 + 1.0f / 128);
      for (size_t i = 0; i < numbers.size(); ++i) {
        const float bound = type == SketchType::kBF16 ? std::fabs(numbers[i]) / 256 : step / 2;
        ASSERT_LE(std::fabs(loaded[i] - numbers[i]), bound * 1.0001f) << i;
      }
    }
  }
}

// The scale is the smallest bf16 that reaches the largest number.
TEST(StoreSketch, ScalesAreNoLargerThanNeeded) {
  std::mt19937 chance(8);
  std::uniform_real_distribution<float> uniform(0.001f, 1000);
  const SketchLayout layout{.type = SketchType::kInt8, .dims = 8};
  Block block(layout.block_bytes());
  for (int trial = 0; trial < 500; ++trial) {
    const float largest = uniform(chance);
    StoreSketch(layout, block.data(), 9, std::vector<float>{0, 0, -largest, 0, 0, 0, 0, 0});
    uint16_t bits;
    std::memcpy(&bits, block.data() + layout.scales_offset() + 9 * sizeof(bits), sizeof(bits));
    const auto value = [](uint16_t of) {
      const uint32_t wide = uint32_t{of} << 16;
      float number;
      std::memcpy(&number, &wide, sizeof(number));
      return number;
    };
    ASSERT_GE(value(bits) * 127, largest * (1 - 1e-6f));
    ASSERT_LT(value(static_cast<uint16_t>(bits - 1)) * 127, largest);
  }
}

TEST(StoreSketch, WhatIsNotFiniteCountsAsZero) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  for (const SketchType type : {SketchType::kBF16, SketchType::kInt8, SketchType::kInt4}) {
    const SketchLayout layout{.type = type, .dims = 8};
    Block block(layout.block_bytes());
    StoreSketch(layout, block.data(), 1, std::vector<float>{nan, 7, infinity, -7, -infinity, 0, 0, 0});
    const std::vector<float> loaded = LoadSketch(layout, block.data(), 1);
    EXPECT_NEAR(loaded[1], 7, 0.06f);
    EXPECT_EQ(loaded[3], -loaded[1]);
    for (const size_t i : {0, 2, 4, 5, 6, 7}) EXPECT_EQ(loaded[i], 0) << i;
    StoreSketch(layout, block.data(), 1, std::vector<float>(8, nan));
    EXPECT_THAT(LoadSketch(layout, block.data(), 1), Each(0));
    EXPECT_THAT(ScoreSketches(layout, block.data(), 2, std::vector<float>(8, 1)), Each(0));
  }
}

TEST(QuantiseQuery, FifteenBits) {
  // The largest is what a value can be at most, so the scale is one; halves go to even.
  const QuantisedQuery query = QuantiseQuery(std::vector<float>{-16319, 1.2f, 2.5f, 3.5f});
  EXPECT_THAT(query.values, ElementsAre(-16319, 1, 2, 4));
  EXPECT_EQ(query.scale, 1);
  EXPECT_FLOAT_EQ(QuantiseQuery(std::vector<float>{1, -2}).scale, 2.0f / 16319);
  EXPECT_THAT(QuantiseQuery(std::vector<float>(4, 0.0f)).values, Each(0));
  EXPECT_EQ(QuantiseQuery(std::vector<float>(4, 0.0f)).scale, 0);
  // Next to nothing: no division by it.
  EXPECT_THAT(QuantiseQuery(std::vector<float>{std::numeric_limits<float>::denorm_min(), 0}).values, Each(0));
}

TEST(ScoreSketches, AreProductsOfQueryAndStoredNumbers) {
  std::mt19937 chance(9);
  std::normal_distribution<float> normal;
  constexpr int64_t kRows = 150;  // two whole blocks and a part
  for (const SketchType type : {SketchType::kBF16, SketchType::kInt8, SketchType::kInt4}) {
    const SketchLayout layout{.type = type, .dims = 24};
    Block head(layout.head_bytes(kRows));
    for (int64_t row = 0; row < kRows; ++row) {
      std::vector<float> numbers(24);
      for (float& number : numbers) number = normal(chance) * static_cast<float>(row + 1);
      StoreSketch(layout, head.data() + static_cast<size_t>(row / kSketchBlock) * layout.block_bytes(),
                  row % kSketchBlock, numbers);
    }
    std::vector<float> query(24);
    for (float& number : query) number = normal(chance);
    float largest = 0;
    for (const float number : query) largest = std::max(largest, std::fabs(number));
    const std::vector<float> scores = ScoreSketches(layout, head.data(), kRows, query);
    ASSERT_EQ(scores.size(), static_cast<size_t>(kRows));
    for (int64_t row = 0; row < kRows; ++row) {
      const std::vector<float> stored = LoadSketch(
          layout, head.data() + static_cast<size_t>(row / kSketchBlock) * layout.block_bytes(), row % kSketchBlock);
      double expected = 0, magnitude = 0;
      for (size_t i = 0; i < 24; ++i) {
        expected += static_cast<double>(query[i]) * static_cast<double>(stored[i]);
        magnitude += std::fabs(static_cast<double>(stored[i]));
      }
      // Half a step of the query for every number, and roundings of the sum.
      const double bound = magnitude * static_cast<double>(largest) * (0.5 / 16319 + 1e-6);
      ASSERT_NEAR(static_cast<double>(scores[static_cast<size_t>(row)]), expected, bound) << row;
    }
  }
}

}  // namespace
}  // namespace infinigen
