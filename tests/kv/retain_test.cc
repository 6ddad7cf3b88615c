// Retention on small caches worked out by hand.
#include "kv/retain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <set>

namespace infinigen {
namespace {

using testing::ElementsAre;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(AssignRow, TheNextRowUntilTheQuotaIsFull) {
  EXPECT_EQ(AssignRow({}, {}, {}, 0, 3), 0);
  EXPECT_EQ(AssignRow(std::vector<int32_t>{0, 1}, std::vector<float>{9, 9}, {}, 2, 3), 2);
}

TEST(AssignRow, TheSmallestUnprotectedPriorityAndTheOldestOfEquals) {
  // Quota 6 at position 20: 17, 18 and 19 are the newest half.
  const std::vector<int32_t> positions = {19, 4, 18, 1, 17, 9};
  EXPECT_EQ(AssignRow(positions, std::vector<float>{0, 5, 0, 7, 0, 6}, {}, 20, 6), 1) << "position 4";
  EXPECT_EQ(AssignRow(positions, std::vector<float>{0, 5, 0, 5, 0, 5}, {}, 20, 6), 3) << "position 1, the oldest";
  EXPECT_EQ(AssignRow(positions, std::vector<float>{0, 5, 0, 1, 0, 5}, {.sinks = 2}, 20, 6), 1) << "1 is a sink";
  EXPECT_EQ(AssignRow(positions, std::vector<float>{0, 5, 0, 1, 0, 5}, {.sinks = 100}, 20, 6), 1)
      << "of sinks, only as many are protected as leave a victim: 2 of them";
}

TEST(AssignRow, ACacheOfOneRowCanEvict) {
  for (const int32_t sinks : {0, 1, 100})
    EXPECT_EQ(AssignRow(std::vector<int32_t>{7}, std::vector<float>{3}, {.sinks = sinks}, 8, 1), 0);
  EXPECT_EQ(AssignRow(std::vector<int32_t>{6, 7}, std::vector<float>{kNan, kNan}, {.sinks = 4}, 8, 2), 0)
      << "7 is the newest half";
  EXPECT_EQ(AssignRow(std::vector<int32_t>{0, 1, 2, 9}, std::vector<float>{1, kNan, 0, 9}, {}, 10, 4), 1)
      << "what is not a number is the least";
}

TEST(UpdatePriorities, CountsAndStampsButSkipsSinksAndWindow) {
  const std::vector<int32_t> positions = {0, 1, 5, 30, 12, 29}, rows = {0, 2, 3, 4, 5};
  const SelectRule select{.sinks = 1, .window = 2};
  std::vector<float> priorities = {3, 3, 3, 3, 3, 3};
  UpdatePriorities({.on_select = PriorityUpdate::kCount}, select, 31, rows, positions, priorities);
  EXPECT_THAT(priorities, ElementsAre(3, 3, 4, 3, 4, 3))
      << "0 is a sink, 29 and 30 are in the window, row 1 not selected";
  UpdatePriorities({.on_select = PriorityUpdate::kStamp}, select, 31, rows, positions, priorities);
  EXPECT_THAT(priorities, ElementsAre(3, 3, 31, 3, 31, 3));
  UpdatePriorities({.on_select = PriorityUpdate::kKeep}, select, 99, rows, positions, priorities);
  EXPECT_THAT(priorities, ElementsAre(3, 3, 31, 3, 31, 3));
}

TEST(UpdatePriorities, AnOverflowHalvesAllPrioritiesOfTheHead) {
  const std::vector<int32_t> positions = {0, 1, 2}, rows = {1};
  std::vector<float> priorities = {7, 254, 0};
  UpdatePriorities({.on_select = PriorityUpdate::kCount}, {}, 9, rows, positions, priorities);
  EXPECT_THAT(priorities, ElementsAre(7, 255, 0));
  UpdatePriorities({.on_select = PriorityUpdate::kCount}, {}, 9, rows, positions, priorities);
  EXPECT_THAT(priorities, ElementsAre(3, 128, 0));
}

TEST(Survivors, TheNewestHalfTheSinksAndTheLargestPriorities) {
  const std::vector<float> priorities = {0, 9, 1, 8, 8, 7, 0, 0, 0, 0};
  EXPECT_THAT(Survivors(priorities, {}, 6), ElementsAre(1, 3, 4, 7, 8, 9));
  EXPECT_THAT(Survivors(priorities, {}, 5), ElementsAre(1, 3, 4, 8, 9));
  EXPECT_THAT(Survivors(priorities, {}, 4), ElementsAre(1, 4, 8, 9)) << "of equals the newer";
  EXPECT_THAT(Survivors(priorities, {.sinks = 1}, 4), ElementsAre(0, 1, 8, 9));
  EXPECT_THAT(Survivors(priorities, {.sinks = 2}, 1), ElementsAre(1));
  EXPECT_THAT(Survivors(priorities, {}, 10), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9));
  EXPECT_EQ(Survivors(std::vector<float>(9, kNan), {}, 4).size(), 4u);
}

// After every append the cache holds the latest rows and the sinks.
TEST(Policies, FifoIsAQueueAndStreamingAQueueWithSinks) {
  for (const int32_t sinks : {0, 3}) {
    const RetainRule rule{.on_append = kRetainFifo.on_append, .sinks = sinks};
    const int64_t quota = 11;
    std::vector<int32_t> positions;
    std::vector<float> priorities;
    for (int32_t position = 0; position < 60; ++position) {
      const size_t row = static_cast<size_t>(AssignRow(positions, priorities, rule, position, quota));
      if (row == positions.size()) {
        positions.push_back(0);
        priorities.push_back(0);
      }
      positions[row] = position;
      priorities[row] = PriorityAtAppend(rule.on_append, position, 0);
      std::set<int32_t> want;
      for (int32_t p = 0; p <= position; ++p)
        if (p < sinks || p > position - (quota - sinks)) want.insert(p);
      if (position < quota) continue;
      EXPECT_EQ(std::set<int32_t>(positions.begin(), positions.end()), want) << position;
    }
  }
}

TEST(Policies, NamesAreUnique) {
  std::set<std::string_view> names;
  for (const RetainPolicy* policy : RetainPolicies()) {
    EXPECT_EQ(FindRetainPolicy(policy->name), policy);
    names.insert(policy->name);
  }
  EXPECT_EQ(names.size(), RetainPolicies().size());
  EXPECT_EQ(FindRetainPolicy("none"), nullptr);
}

TEST(Policies, ScrambledPrioritiesHaveNoOrder) {
  int ascending = 0;
  std::set<float> priorities;
  for (int32_t position = 0; position < 2000; ++position) {
    ascending += ScrambledPriority(position, 0) < ScrambledPriority(position + 1, 0);
    priorities.insert(ScrambledPriority(position, 0));
  }
  EXPECT_NEAR(ascending, 1000, 150);
  EXPECT_GT(priorities.size(), 1990u);
  EXPECT_NE(ScrambledPriority(5, 0), ScrambledPriority(5, 1)) << "heads keep different tokens";
}

TEST(QuotaRule, AShareOfTheFinalLength) {
  const QuotaRule limit{.limit = {.share = 0.29}};
  EXPECT_EQ(limit.Quota(100), 29);
  EXPECT_EQ(limit.Quota(1), 1) << "never none";
  EXPECT_EQ(limit.LargestQuota(1000), 290);
  EXPECT_EQ(QuotaRule{.limit = {.share = 1.0}}.Quota(77), 77);
}

TEST(QuotaRule, BytesAfterDenseLayersDividedByTheBatch) {
  // 4 sequences; 10 layers, 2 of them dense; 100 bytes per row and layer.
  QuotaRule limit{.limit = {.bytes = 4 * 10'000, .sequences = 4}, .row_bytes = 100, .layers = 10, .dense_layers = 2};
  EXPECT_EQ(limit.Quota(10), 10) << "all fits";
  EXPECT_EQ(limit.Quota(20), 7) << "(10,000 - 4,000) / 800";
  EXPECT_EQ(limit.Quota(50), 0);
  EXPECT_EQ(limit.LargestQuota(1000), 10);
  int64_t largest = 0;
  for (int64_t tokens = 1; tokens < 100; ++tokens) {
    const int64_t quota = limit.Quota(tokens);
    largest = std::max(largest, quota);
    EXPECT_LE(quota > 0 ? 200 * tokens + 800 * quota : 0, 10'000) << tokens;
  }
  EXPECT_LE(largest, limit.LargestQuota(1000));
}

}  // namespace
}  // namespace infinigen
