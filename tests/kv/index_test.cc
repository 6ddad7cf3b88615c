// Sketches and page bounds: the bytes of small blocks worked out by hand, error bounds of stored numbers, and scores.
#include "kv/index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "tensor/dtype.h"

namespace infinigen {
namespace {

// ---- sketches ----

using testing::Each;
using testing::ElementsAre;

using Block = std::vector<std::byte>;

std::vector<int> BytesAt(const Block& block, size_t first, size_t count) {
  std::vector<int> bytes;
  for (size_t i = first; i < first + count; ++i) bytes.push_back(std::to_integer<int>(block[i]));
  return bytes;
}

// Number of bytes that do not belong to `row` and differ from `blank`.
int Touched(const SketchLayout& layout, const Block& block, int64_t row, std::byte blank) {
  int touched = 0;
  for (size_t i = 0; i < block.size(); ++i) {
    const size_t starts[] = {0, layout.scales_offset(), layout.values_offset(), layout.value_scales_offset()};
    const auto part = std::upper_bound(std::begin(starts), std::end(starts), i) - std::begin(starts) - 1;
    const size_t of = (i - starts[part]) / (part % 2 == 1 ? sizeof(uint16_t) : kSketchUnitBytes) % kSketchBlock;
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
  const SketchLayout tail{.type = SketchType::kInt4, .dims = 48, .scale_dims = 16, .value_dims = 8};
  EXPECT_EQ(tail.block_bytes(), 64u * (24 + 6 + 4 + 2)) << "36 bytes beside an entry of 256";
  EXPECT_EQ((SketchLayout{.type = SketchType::kInt8, .dims = 40, .scale_dims = 16}.groups()), 3) << "the last is short";
}

TEST(StoreSketch, GroupsHaveScalesOfTheirOwn) {
  const SketchLayout layout{.type = SketchType::kInt4, .dims = 24, .scale_dims = 8, .value_dims = 8};
  Block block(layout.block_bytes(), std::byte{0xee});
  std::vector<float> numbers(24), values = {70, -70, 10, 0, 20, 30, -40, 50};
  for (size_t i = 0; i < 8; ++i) numbers[i] = static_cast<float>(i), numbers[8 + i] = 100 * static_cast<float>(i);
  StoreSketch(layout, block.data(), 9, numbers);
  StoreValueSketch(layout, block.data(), 9, values);
  EXPECT_EQ(Touched(layout, block, 9, std::byte{0xee}), 0);
  const std::vector<float> loaded = LoadSketch(layout, block.data(), 9),
                           loaded_values = LoadValueSketch(layout, block.data(), 9);
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ(loaded[i], numbers[i]) << "a large number elsewhere costs nothing here";
  for (size_t i = 8; i < 16; ++i) EXPECT_NEAR(loaded[i], numbers[i], 4);
  for (size_t i = 0; i < 8; ++i) EXPECT_NEAR(loaded_values[i], values[i], 0.1f * 70);
  Block copy(layout.block_bytes());
  CopySketch(layout, block.data(), 9, copy.data(), 40);
  EXPECT_EQ(LoadSketch(layout, copy.data(), 40), loaded);
  EXPECT_EQ(LoadValueSketch(layout, copy.data(), 40), loaded_values);
}

TEST(ScoreSketches, GroupsAddUp) {
  std::mt19937 chance(5);
  std::normal_distribution<float> normal;
  for (const SketchType type : {SketchType::kInt8, SketchType::kInt4}) {
    const SketchLayout layout{.type = type, .dims = 40, .scale_dims = 16};
    Block head(layout.head_bytes(70));
    std::vector<float> query(40);
    for (float& number : query) number = normal(chance);
    for (int64_t row = 0; row < 70; ++row) {
      std::vector<float> numbers(40);
      for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = normal(chance) * (i < 16 ? 100.0f : 1.0f);
      StoreSketch(layout, head.data() + static_cast<size_t>(row / 64) * layout.block_bytes(), row % 64, numbers);
    }
    const std::vector<float> scores = ScoreSketches(layout, head.data(), 70, query);
    for (int64_t row = 0; row < 70; ++row) {
      const std::vector<float> numbers =
          LoadSketch(layout, head.data() + static_cast<size_t>(row / 64) * layout.block_bytes(), row % 64);
      double want = 0, size = 0;
      for (size_t i = 0; i < query.size(); ++i) {
        want += static_cast<double>(query[i]) * static_cast<double>(numbers[i]);
        size += std::fabs(static_cast<double>(query[i]) * static_cast<double>(numbers[i]));
      }
      EXPECT_NEAR(scores[static_cast<size_t>(row)], want, 1e-3 * size);
    }
  }
}

TEST(StoreSketch, BytesOfInt8) {
  const SketchLayout layout{.type = SketchType::kInt8, .dims = 8};
  Block block(layout.block_bytes(), std::byte{0xee});
  // The largest number is 127, so the scale is 1 and numbers are rounded to integers, halves to even.
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
  // Byte b has number b in the low half and number 4 + b in the high half, each as value + 8; the scale is 2.
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
      // The scale is rounded up to a bf16, by less than 1/128.
      const float step = largest / static_cast<float>(layout.largest()) * (1 + 1.0f / 128);
      for (size_t i = 0; i < numbers.size(); ++i) {
        const float bound = type == SketchType::kBF16 ? std::fabs(numbers[i]) / 256 : step / 2;
        ASSERT_LE(std::fabs(loaded[i] - numbers[i]), bound * 1.0001f) << i;
      }
    }
  }
}

// The scale is the smallest bf16 that the largest number allows.
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

TEST(StoreSketch, NonFiniteNumbersCountAsZero) {
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
  // The largest number is the largest value, so the scale is 1; halves round to even.
  const QuantisedQuery query = QuantiseQuery(std::vector<float>{-16319, 1.2f, 2.5f, 3.5f});
  EXPECT_THAT(query.values, ElementsAre(-16319, 1, 2, 4));
  EXPECT_EQ(query.scale, 1);
  EXPECT_FLOAT_EQ(QuantiseQuery(std::vector<float>{1, -2}).scale, 2.0f / 16319);
  EXPECT_THAT(QuantiseQuery(std::vector<float>(4, 0.0f)).values, Each(0));
  EXPECT_EQ(QuantiseQuery(std::vector<float>(4, 0.0f)).scale, 0);
  // A scale too small to divide by.
  EXPECT_THAT(QuantiseQuery(std::vector<float>{std::numeric_limits<float>::denorm_min(), 0}).values, Each(0));
}

TEST(ScoreSketches, AreProductsOfQueryAndStoredNumbers) {
  std::mt19937 chance(9);
  std::normal_distribution<float> normal;
  constexpr int64_t kRows = 150;  // two whole blocks and part of a third
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
      // Half a step of the query for each number, and rounding errors of the sum.
      const double bound = magnitude * static_cast<double>(largest) * (0.5 / 16319 + 1e-6);
      ASSERT_NEAR(static_cast<double>(scores[static_cast<size_t>(row)]), expected, bound) << row;
    }
  }
}

// ---- page bounds ----

std::vector<float> Floats(std::span<const BF16> numbers) {
  std::vector<float> floats;
  for (const BF16 number : numbers) floats.push_back(ToFloat(number));
  return floats;
}

TEST(Rounding, GoesOutwardToTheNearestBF16) {
  const auto down = [](float x) { return ToFloat(RoundDownToBF16(x)); };
  const auto up = [](float x) { return ToFloat(RoundUpToBF16(x)); };
  for (const float exact : {0.0f, 1.0f, -1.0f, 0.375f, -250.0f, 0x1p-130f, 0x1.fep127f, -0x1.fep127f}) {
    EXPECT_EQ(down(exact), exact);
    EXPECT_EQ(up(exact), exact);
  }
  EXPECT_EQ(down(1.001f), 1.0f);
  EXPECT_EQ(up(1.001f), 1.0078125f);
  EXPECT_EQ(down(-1.001f), -1.0078125f);
  EXPECT_EQ(up(-1.001f), -1.0f);
  EXPECT_EQ(up(1e-45f), 0x1p-133f) << "the smallest bf16";
  EXPECT_EQ(down(1e-45f), 0.0f);
  EXPECT_EQ(up(3.4e38f), 0x1.fep127f) << "stays finite";
  EXPECT_EQ(down(-3.4e38f), -0x1.fep127f);
  std::mt19937 random(1);
  for (int i = 0; i < 100000; ++i) {
    const float x = std::bit_cast<float>(static_cast<uint32_t>(random()));
    if (!(std::fabs(x) < 3e38f)) continue;
    ASSERT_LE(down(x), x);
    ASSERT_GE(up(x), x);
    const uint16_t low = RoundDownToBF16(x).bits & 0x7fff, high = RoundUpToBF16(x).bits & 0x7fff;
    ASSERT_LE(std::abs(low - high), 1) << "neighbours";
  }
}

TEST(Bounds, OfAPageByHand) {
  std::vector<BF16> bounds(6, BF16{0xffff});  // arbitrary old content
  AddToBounds(bounds, 32, std::vector<float>{1, -2, 0.5f});
  EXPECT_THAT(Floats(bounds), ElementsAre(1, -2, 0.5f, 1, -2, 0.5f)) << "row 32 starts a page";
  AddToBounds(bounds, 33, std::vector<float>{3, -4, 0.5f});
  AddToBounds(bounds, 34, std::vector<float>{2, 5, 0.25f});
  EXPECT_THAT(Floats(bounds), ElementsAre(1, -4, 0.25f, 3, 5, 0.5f));
  // 2 · 3 for the first dimension, −1 · −4 for the second, 0 for the third.
  EXPECT_EQ(PageScore(bounds, std::vector<float>{2, -1, 0}), 10);
  EXPECT_EQ(PageScore(bounds, std::vector<float>{-2, 1, 4}), -2 + 5 + 2);
  EXPECT_TRUE(std::isnan(PageScore(bounds, std::vector<float>{1, std::nanf(""), 0})));
  AddToBounds(bounds, 48, std::vector<float>{0, 0, 7});
  EXPECT_THAT(Floats(bounds), ElementsAre(0, 0, 7, 0, 0, 7)) << "so does row 48";
  AddToBounds(bounds, 49, std::vector<float>{INFINITY, -INFINITY, NAN});
  EXPECT_THAT(Floats(bounds), ElementsAre(0, 0, 0, 0, 0, 7)) << "what is not finite counts as zero";
}

// A turn of a chat is undone and other rows are written.
TEST(Bounds, AreValidAfterARewind) {
  std::vector<BF16> bounds(2);
  for (int64_t row = 0; row < 12; ++row) AddToBounds(bounds, row, std::vector<float>{static_cast<float>(row)});
  AddToBounds(bounds, 8, std::vector<float>{-5});
  EXPECT_THAT(Floats(bounds), ElementsAre(-5, 11)) << "the keys of rows 8 to 11 are gone, but not from the bounds";
  for (int64_t row = 0; row < 3; ++row) AddToBounds(bounds, row, std::vector<float>{2});
  EXPECT_THAT(Floats(bounds), ElementsAre(2, 2)) << "from its first row on a page knows nothing of before";
}

// The score of a page is at least the score of each of its keys, as computed and as stored.
TEST(Bounds, NoKeyOfThePageScoresHigher) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  for (int trial = 0; trial < 2000; ++trial) {
    const size_t d = 1 + random() % 130;
    const float key_scale = std::exp(4 * normal(random)), offset = key_scale * normal(random);
    std::vector<std::vector<float>> keys;
    std::vector<BF16> bounds(2 * d);
    for (int64_t row = 0; row < kPageRows; ++row) {
      std::vector<float>& key = keys.emplace_back(d);
      for (float& number : key) number = offset + key_scale * normal(random);
      AddToBounds(bounds, 64 + row, key);
    }
    std::vector<float> query(d);
    for (float& number : query) number = normal(random);
    const double score = static_cast<double>(PageScore(bounds, query));
    double slack = 0;  // rounding error of a sum of d products
    for (size_t i = 0; i < d; ++i)
      slack += 2e-7 * static_cast<double>(std::fabs(query[i])) *
               static_cast<double>(std::max(std::fabs(ToFloat(bounds[i])), std::fabs(ToFloat(bounds[d + i]))));
    slack *= static_cast<double>(d);
    for (const std::vector<float>& key : keys) {
      double given = 0, bf16 = 0, f16 = 0;
      for (size_t i = 0; i < d; ++i) {
        const double q = static_cast<double>(query[i]);
        given += q * static_cast<double>(key[i]);
        bf16 += q * static_cast<double>(ToFloat(ToBF16(key[i])));
        f16 += q * static_cast<double>(ToFloat(ToF16(key[i])));
      }
      ASSERT_GE(score + slack, given) << trial;
      ASSERT_GE(score + slack, bf16) << trial;
      ASSERT_TRUE(!std::isfinite(f16) || score + slack + 0x1p-22 * static_cast<double>(d) >= f16) << trial;
    }
  }
}

TEST(Bounds, DoNotDependOnTheOrderInsideAPage) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<std::vector<float>> keys(16, std::vector<float>(24));
  for (auto& key : keys)
    for (float& number : key) number = normal(random);
  const auto of = [&] {
    std::vector<BF16> bounds(48);
    for (size_t i = 0; i < keys.size(); ++i) AddToBounds(bounds, static_cast<int64_t>(i), keys[i]);
    return Floats(bounds);
  };
  const std::vector<float> first = of();
  for (int i = 0; i < 5; ++i) {
    std::shuffle(keys.begin(), keys.end(), random);
    EXPECT_EQ(of(), first);
  }
}

}  // namespace
}  // namespace infinigen
