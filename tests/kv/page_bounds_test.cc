// Bounds of pages: known answers, and the property that gives them their name.
#include "kv/page_bounds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kv/selection.h"

namespace infinigen {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::vector<float> Floats(std::span<const BF16> numbers) {
  std::vector<float> floats;
  for (const BF16 number : numbers) floats.push_back(ToFloat(number));
  return floats;
}

TEST(Rounding, GoesOutwardAndNoFurtherThanItMust) {
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
  std::vector<BF16> bounds(6, BF16{0xffff});  // whatever stood there
  AddToBounds(bounds, 32, std::vector<float>{1, -2, 0.5f});
  EXPECT_THAT(Floats(bounds), ElementsAre(1, -2, 0.5f, 1, -2, 0.5f)) << "row 32 starts a page";
  AddToBounds(bounds, 33, std::vector<float>{3, -4, 0.5f});
  AddToBounds(bounds, 34, std::vector<float>{2, 5, 0.25f});
  EXPECT_THAT(Floats(bounds), ElementsAre(1, -4, 0.25f, 3, 5, 0.5f));
  // 2 · 3 for the first, −1 · −4 for the second, nothing for the third.
  EXPECT_EQ(PageScore(bounds, std::vector<float>{2, -1, 0}), 10);
  EXPECT_EQ(PageScore(bounds, std::vector<float>{-2, 1, 4}), -2 + 5 + 2);
  EXPECT_TRUE(std::isnan(PageScore(bounds, std::vector<float>{1, std::nanf(""), 0})));
  AddToBounds(bounds, 48, std::vector<float>{0, 0, 7});
  EXPECT_THAT(Floats(bounds), ElementsAre(0, 0, 7, 0, 0, 7)) << "so does row 48";
  AddToBounds(bounds, 49, std::vector<float>{INFINITY, -INFINITY, NAN});
  EXPECT_THAT(Floats(bounds), ElementsAre(0, 0, 0, 0, 0, 7)) << "what is not finite counts as zero";
}

// A turn of a chat is taken back and other rows are written.
TEST(Bounds, AfterARewindTheyAreBoundsAgain) {
  std::vector<BF16> bounds(2);
  for (int64_t row = 0; row < 12; ++row) AddToBounds(bounds, row, std::vector<float>{static_cast<float>(row)});
  AddToBounds(bounds, 8, std::vector<float>{-5});
  EXPECT_THAT(Floats(bounds), ElementsAre(-5, 11)) << "the keys of rows 8 to 11 are gone, but not from the bounds";
  for (int64_t row = 0; row < 3; ++row) AddToBounds(bounds, row, std::vector<float>{2});
  EXPECT_THAT(Floats(bounds), ElementsAre(2, 2)) << "from its first row on a page knows nothing of before";
}

// The score of a page is at least that of each of its keys, as given and as stored.
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
    double slack = 0;  // rounding of a sum of d products
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

// ---- Choosing pages.

TEST(Pages, OnlyThoseCompleteBeforeTheCurrentRowAreSeen) {
  const SelectRule rules[] = {{.window = 3}};
  const SelectCall call{.rules = rules, .page = 16};
  EXPECT_EQ(call.Visible(0), 0);
  EXPECT_EQ(call.Visible(15), 0) << "its page is complete, but with itself";
  EXPECT_EQ(call.Visible(16), 16);
  EXPECT_EQ(call.Visible(47), 32);
  EXPECT_EQ(call.RuleFor(0, 16).window, 3);
  EXPECT_EQ(call.RuleFor(0, 47).window, 15) << "rows 32 to 46";
  const SelectCall rows{.rules = rules, .current_known = true};
  EXPECT_EQ(rows.Visible(15), 16);
  EXPECT_EQ(rows.RuleFor(0, 47).window, 3);
}

TEST(Pages, CountsAreWholePagesAndNotNone) {
  const SelectRule rule{.cap = 0.25, .min_rows = 1};
  EXPECT_EQ(ChosenCount(rule, 400, 400, 401, 16), 96) << "100 rows are six pages and a quarter";
  EXPECT_EQ(ChosenCount(rule, 40, 400, 401, 16), 32) << "a mean of counts need not be whole";
  EXPECT_EQ(ChosenCount(rule, 1, 400, 401, 16), 16);
  EXPECT_EQ(ChosenCount(rule, 16, 16, 17, 16), 16) << "a quarter of 17 is no page, but there is one";
  EXPECT_EQ(ChosenCount(rule, 0, 0, 9, 16), 0) << "there is none";
  EXPECT_EQ(ChosenCount({.cap = 0, .min_rows = 0}, 40, 400, 401, 16), 0) << "none is wanted";
  EXPECT_EQ(ChosenCount({.cap = 1, .min_rows = 0}, 400, 400, 410, 16), 400);
}

// Pages of four, to be seen at a glance: scores −3, 0, −1, −1, then the current page with two rows.
TEST(Pages, AreChosenWhole) {
  std::vector<float> relative;
  for (const float score : {-3.0f, 0.0f, -1.0f, -1.0f}) relative.insert(relative.end(), 4, score);
  const SelectRule rules[] = {{}, {.sinks = 2, .window = 3}, {.force_count = 7}, {.sinks = 1, .force_count = 12}};
  const SelectCall call{.rules = rules, .page = 4};
  ASSERT_EQ(call.Visible(17), 16);
  const auto choose = [&](int64_t slot, int64_t count) {
    return ChooseRows(relative, call.RuleFor(slot, 17), count, 17, 4);
  };
  EXPECT_THAT(choose(0, 4).rows, ElementsAre(4, 5, 6, 7, 16, 17));
  EXPECT_THAT(choose(0, 8).rows, ElementsAre(4, 5, 6, 7, 12, 13, 14, 15, 16, 17)) << "of equal pages the newer";
  EXPECT_THAT(choose(1, 4).rows, ElementsAre(0, 1, 4, 5, 6, 7, 14, 15, 16, 17)) << "sinks, window";
  EXPECT_EQ(choose(1, 4).chosen, 4);
  EXPECT_EQ(choose(0, 16).rows.size(), 18u);
  EXPECT_THAT(choose(2, 0).rows, ElementsAre(4, 5, 6, 7, 16, 17)) << "seven: the tail and one page";
  EXPECT_THAT(choose(3, 0).rows, ElementsAre(0, 4, 5, 6, 7, 12, 13, 14, 15, 16, 17)) << "a sink, the tail, two pages";
  EXPECT_THAT(ChooseRows({}, call.RuleFor(0, 2), 0, 2, 4).rows, ElementsAre(0, 1, 2)) << "no page yet";
  EXPECT_THAT(RelativeScores({}, 2), IsEmpty());
}

}  // namespace
}  // namespace infinigen
