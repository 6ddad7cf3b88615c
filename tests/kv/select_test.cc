// Selection on cases small enough to work out by hand.
#include "kv/select.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace infinigen {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// No sinks and no window: only chosen rows and the current row are attended.
constexpr SelectRule kBare{.alpha = 5, .cap = 1, .min_rows = 0};

TEST(RelativeScores, EachHeadIsComparedWithItsOwnBest) {
  // All scores of the second head are lower, but its best row still has relative score 0.
  const std::vector<float> scores = {10, 8,  1,  0,  //
                                     -9, -5, -3, -4};
  EXPECT_THAT(RelativeScores(scores, 2), ElementsAre(0, -2, 0, -1));
  EXPECT_THAT(RelativeScores(std::vector<float>{3, 7, 5}, 1), ElementsAre(-4, 0, -2));
  EXPECT_THAT(RelativeScores({}, 3), IsEmpty());
}

TEST(RelativeScores, IgnoresNaN) {
  const std::vector<float> relative = RelativeScores(std::vector<float>{kNaN, 2, kNaN,  //
                                                                        1, kNaN, kNaN},
                                                     2);
  EXPECT_EQ(relative[0], 0);
  EXPECT_EQ(relative[1], 0);
  EXPECT_TRUE(std::isnan(relative[2]));
}

TEST(CountForMass, TheFewestRowsThatHoldTheShare) {
  const auto scores = [](std::vector<float> weights) {
    for (float& weight : weights) weight = std::log(weight);
    return weights;
  };
  const std::vector<float> one = scores({0.125f, 0.5f, 0.25f, 0.0625f, 0.0625f});
  EXPECT_EQ(CountForMass(one, 1, 0.4f), 1);
  EXPECT_EQ(CountForMass(one, 1, 0.7f), 2);
  EXPECT_EQ(CountForMass(one, 1, 0.8f), 3);
  EXPECT_EQ(CountForMass(one, 1, 1.0f), 5);
  // Two heads that attend to different rows: each row counts with the head to which it matters most.
  EXPECT_EQ(CountForMass(scores({0.9f, 0.05f, 0.05f, 0.05f, 0.9f, 0.05f}), 2, 0.8f), 2);
  EXPECT_EQ(CountForMass(scores({0.5f, 0.25f, 0.25f, 0.25f, 0.5f, 0.25f}), 2, 0.9f), 3);
  std::vector<float> broken = one;
  broken[1] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(CountForMass(broken, 1, 0.7f), 2) << "0.25 and 0.125 of 0.5";
  EXPECT_EQ(CountForMass(std::vector<float>(4, std::numeric_limits<float>::quiet_NaN()), 1, 0.5f), 0)
      << "nothing to hold";
}

TEST(CountPassing, TheThresholdItselfPasses) {
  const std::vector<float> relative = {0, -4.9f, -5, -5.1f, kNaN, -kInfinity};
  EXPECT_EQ(CountPassing(relative, 5), 3);
  EXPECT_EQ(CountPassing(relative, 0), 1);
  EXPECT_EQ(CountPassing(relative, kInfinity), 5) << "all but the one that is no number";
}

TEST(ChosenCount, BetweenMinimumAndCap) {
  const SelectRule rule{.cap = 0.25, .min_rows = 3};
  EXPECT_EQ(ChosenCount(rule, /*passing=*/7, /*visible=*/40, /*n=*/40), 7);
  EXPECT_EQ(ChosenCount(rule, 11, 40, 40), 10) << "a quarter of 40";
  EXPECT_EQ(ChosenCount(rule, 11, 43, 43), 10) << "rounded down";
  EXPECT_EQ(ChosenCount(rule, 11, 44, 44), 11);
  EXPECT_EQ(ChosenCount(rule, 1, 40, 40), 3) << "at least the minimum";
  EXPECT_EQ(ChosenCount(rule, 5, 8, 8), 3) << "the minimum stands above the cap";
  EXPECT_EQ(ChosenCount(rule, 2, 2, 3), 2) << "no more than there are";
  EXPECT_EQ(ChosenCount({.cap = 0, .min_rows = 0}, 9, 40, 40), 0);
  EXPECT_EQ(ChosenCount({.cap = 1, .min_rows = 0}, 40, 40, 40), 40);
  EXPECT_EQ(ChosenCount({.cap = 0.29, .min_rows = 0}, 100, 100, 100), 29);  // the double 0.29 is slightly less
  EXPECT_EQ(ChosenCount({.cap = 0.7, .min_rows = 0}, 10, 10, 10), 7);
}

TEST(ChooseRows, TheLargestFirstAndTheNewerOfEquals) {
  const std::vector<float> relative = {-1, 0, -1, -2, -1, -3};
  EXPECT_THAT(ChooseRows(relative, kBare, 1, 5).rows, ElementsAre(1, 5));
  EXPECT_THAT(ChooseRows(relative, kBare, 2, 5).rows, ElementsAre(1, 4, 5)) << "of 0, 2 and 4 the newest";
  EXPECT_THAT(ChooseRows(relative, kBare, 3, 5).rows, ElementsAre(1, 2, 4, 5));
  EXPECT_THAT(ChooseRows(relative, kBare, 4, 5).rows, ElementsAre(0, 1, 2, 4, 5));
  EXPECT_EQ(ChooseRows(relative, kBare, 4, 5).chosen, 4);
}

TEST(ChooseRows, TheCurrentRowIsAttendedWhetherChosenOrNot) {
  EXPECT_THAT(ChooseRows(std::vector<float>{0, -9, -9, -1}, kBare, 2, 3).rows, ElementsAre(0, 3)) << "chosen itself";
  // With a guess the current row has no score.
  const SelectedRows ahead = ChooseRows(std::vector<float>{0, -9, -1}, kBare, 2, 3);
  EXPECT_THAT(ahead.rows, ElementsAre(0, 2, 3));
  EXPECT_EQ(ahead.chosen, 2);
  EXPECT_THAT(ChooseRows({}, kBare, 0, 0).rows, ElementsAre(0)) << "the first token";
}

TEST(ChooseRows, SinksAndWindowComeAfterTheCap) {
  SelectRule rule = kBare;
  rule.sinks = 2;
  rule.window = 3;
  const std::vector<float> relative = {-8, -8, -1, -8, 0, -8, -8, -8, -8, -8};
  const SelectedRows two = ChooseRows(relative, rule, 2, 9);
  EXPECT_THAT(two.rows, ElementsAre(0, 1, 2, 4, 6, 7, 8, 9)) << "two sinks, two chosen, three before the current one";
  EXPECT_EQ(two.chosen, 2);
  // Chosen rows inside the window are listed once, and count as chosen.
  const SelectedRows overlap = ChooseRows(std::vector<float>{-8, -8, -8, -8, -8, -8, 0, -8, -8, -8}, rule, 1, 9);
  EXPECT_THAT(overlap.rows, ElementsAre(0, 1, 6, 7, 8, 9));
  EXPECT_EQ(overlap.chosen, 1);
  EXPECT_THAT(ChooseRows(std::vector<float>(4), rule, 0, 3).rows, ElementsAre(0, 1, 2, 3)) << "nothing is repeated";
}

TEST(ChooseRows, NaNIsNeverChosen) {
  const std::vector<float> relative = {kNaN, -7, kNaN, -8, kNaN};
  const SelectedRows selected = ChooseRows(relative, kBare, 4, 4);
  EXPECT_THAT(selected.rows, ElementsAre(1, 3, 4));
  EXPECT_EQ(selected.chosen, 2);
}

TEST(ChooseRows, AForcedCountIsExact) {
  SelectRule rule = kBare;
  rule.sinks = 1;
  rule.window = 2;
  const std::vector<float> relative = {0, -5, -1, -1, -4, -3, 0, 0, 0, 0};
  for (int32_t count = 4; count <= 10; ++count) {
    rule.force_count = count;
    EXPECT_EQ(ChooseRows(relative, rule, 0, 9).rows.size(), static_cast<size_t>(count));
  }
  rule.force_count = 6;
  const SelectedRows six = ChooseRows(relative, rule, 0, 9);
  EXPECT_THAT(six.rows, ElementsAre(0, 3, 6, 7, 8, 9))
      << "row 0, 7, 8, 9 anyway, then by score 6 and of 2 and 3 the newer";
  EXPECT_EQ(six.chosen, 2);
  rule.force_count = 99;
  EXPECT_EQ(ChooseRows(relative, rule, 0, 9).rows.size(), 10u) << "no more than there are";
  rule.force_count = 2;
  EXPECT_THAT(ChooseRows(relative, rule, 0, 9).rows, ElementsAre(0, 7, 8, 9)) << "sinks and window stay";
}

// The published variant: all heads choose the mean number of passing rows.
TEST(ChooseRows, MeanCounts) {
  const SelectRule rule{.alpha = 1, .cap = 1, .min_rows = 0};
  const std::vector<float> sharp = {0, -9, -9, -9, -9, -9}, flat = {0, 0, -9, 0, 0, 0};
  const int64_t mean = (CountPassing(sharp, rule.alpha) + CountPassing(flat, rule.alpha)) / 2;
  EXPECT_EQ(mean, 3);
  const int64_t count = ChosenCount(rule, mean, 6, 6);
  EXPECT_THAT(ChooseRows(sharp, rule, count, 5).rows, ElementsAre(0, 4, 5)) << "two that do not pass themselves";
  EXPECT_THAT(ChooseRows(flat, rule, count, 5).rows, ElementsAre(3, 4, 5));
}

// ---- pages ----

TEST(Pages, OnlyPagesCompleteBeforeTheCurrentRowHaveScores) {
  const SelectRule rules[] = {{.window = 3}};
  const SelectCall call{.rules = rules, .page = 16};
  EXPECT_EQ(call.Visible(0), 0);
  EXPECT_EQ(call.Visible(15), 0) << "the page is complete only with the current row";
  EXPECT_EQ(call.Visible(16), 16);
  EXPECT_EQ(call.Visible(47), 32);
  EXPECT_EQ(call.RuleFor(0, 16).window, 3);
  EXPECT_EQ(call.RuleFor(0, 47).window, 15) << "rows 32 to 46";
  const SelectCall rows{.rules = rules, .current_known = true};
  EXPECT_EQ(rows.Visible(15), 16);
  EXPECT_EQ(rows.RuleFor(0, 47).window, 3);
}

TEST(Pages, CountsAreWholePagesAndAtLeastOne) {
  const SelectRule rule{.cap = 0.25, .min_rows = 1};
  EXPECT_EQ(ChosenCount(rule, 400, 400, 401, 16), 96) << "100 rows are six pages and a quarter";
  EXPECT_EQ(ChosenCount(rule, 40, 400, 401, 16), 32) << "a mean of counts need not be whole";
  EXPECT_EQ(ChosenCount(rule, 1, 400, 401, 16), 16);
  EXPECT_EQ(ChosenCount(rule, 16, 16, 17, 16), 16) << "a quarter of 17 is less than a page, but one is chosen";
  EXPECT_EQ(ChosenCount(rule, 0, 0, 9, 16), 0) << "there is no page";
  EXPECT_EQ(ChosenCount({.cap = 0, .min_rows = 0}, 40, 400, 401, 16), 0) << "cap and minimum are 0";
  EXPECT_EQ(ChosenCount({.cap = 1, .min_rows = 0}, 400, 400, 410, 16), 400);
}

// Pages of four rows with scores −3, 0, −1, −1, then the current page with two rows.
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

TEST(LateRows, TheBestThatAreNotAttended) {
  const std::vector<float> relative = {-1, 0, -3, -2, kNaN, -2, -9};
  const std::vector<int32_t> attended = {1, 6};
  EXPECT_THAT(ChooseLateRows(relative, attended, 0, 6), IsEmpty());
  EXPECT_THAT(ChooseLateRows(relative, attended, 1, 6), ElementsAre(0));
  EXPECT_THAT(ChooseLateRows(relative, attended, 2, 6), ElementsAre(0, 5)) << "of equals the newer";
  EXPECT_THAT(ChooseLateRows(relative, attended, 3, 6), ElementsAre(0, 3, 5));
  EXPECT_THAT(ChooseLateRows(relative, attended, 100, 6), ElementsAre(0, 2, 3, 5)) << "a row without a score never";
  // Row 3 is newer than row 5 by position.
  const std::vector<int32_t> positions = {0, 1, 2, 8, 3, 4, 9};
  EXPECT_THAT(ChooseLateRows(relative, attended, 2, {7, 9, positions.data()}), ElementsAre(0, 3));
  EXPECT_THAT(ChooseLateRows(relative, std::vector<int32_t>{0, 1, 2, 3, 5, 6}, 2, 6), IsEmpty());
}

TEST(LateRows, JoinTheOthersInOrder) {
  std::vector<int32_t> all(5), items(3);
  MergeLateRows(std::vector<int32_t>{2, 7}, std::vector<int32_t>{0, 5, 9}, all.data(), items.data());
  EXPECT_THAT(all, ElementsAre(0, 2, 5, 7, 9));
  EXPECT_THAT(items, ElementsAre(0, 2, 4));
  all.assign(2, -1);
  MergeLateRows(std::vector<int32_t>{2, 7}, {}, all.data(), items.data());
  EXPECT_THAT(all, ElementsAre(2, 7));
}

}  // namespace
}  // namespace infinigen
