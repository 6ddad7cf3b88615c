// Turning against its definition: cases worked out by hand, the Hadamard matrix entry by entry, and its properties.
#include "kv/turn.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>
#include <vector>

namespace infinigen {
namespace {

std::vector<float> Turned(std::vector<float> head) {
  TurnHead(head);
  return head;
}
std::vector<float> RandomHead(std::mt19937& engine, size_t dim) {
  std::normal_distribution<float> normal;
  std::vector<float> head(dim);
  for (float& x : head) x = normal(engine);
  return head;
}
double Dot(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

TEST(Turn, ByHand) {
  EXPECT_EQ(Turned({3}), (std::vector<float>{3}));
  EXPECT_EQ(Turned({1, 2, 3, 5}), (std::vector<float>{5.5f, -1.5f, -2.5f, 0.5f}));
  EXPECT_EQ(Turned({1, 2, 3, 5, 7}), (std::vector<float>{5.5f, -1.5f, -2.5f, 0.5f, 7})) << "runs of 4 and 1";
  EXPECT_EQ(Turned(std::vector<float>(16, 1.0f))[0], 4.0f);
}

TEST(Turn, RunsAreThePowersOfTwoOfTheDimension) {
  EXPECT_EQ(TurnRun(1), 1);
  EXPECT_EQ(TurnRun(80), 64);
  EXPECT_EQ(TurnRun(16), 16);
  EXPECT_EQ(TurnRun(511), 256);
  for (int64_t run = 1; run <= 512; run *= 2)
    EXPECT_FLOAT_EQ(TurnScale(run), 1 / std::sqrt(static_cast<float>(run))) << run;
}

// Entry (i, j) of the Hadamard matrix is −1 to the number of ones that i and j have in common.
TEST(Turn, IsTheHadamardMatrix) {
  constexpr size_t kDim = 32;
  for (size_t j = 0; j < kDim; ++j) {
    std::vector<float> unit(kDim, 0.0f);
    unit[j] = 1;
    const std::vector<float> column = Turned(unit);
    for (size_t i = 0; i < kDim; ++i)
      EXPECT_FLOAT_EQ(column[i], (std::popcount(i & j) % 2 == 0 ? 1.0f : -1.0f) * TurnScale(kDim));
  }
}

TEST(Turn, KeepsScoresAndUndoesItself) {
  std::mt19937 engine(3);
  for (const size_t dim : {1u, 2u, 7u, 20u, 64u, 75u, 80u, 128u, 200u, 512u}) {
    const std::vector<float> query = RandomHead(engine, dim), key = RandomHead(engine, dim);
    const double size = std::sqrt(Dot(query, query) * Dot(key, key));
    EXPECT_NEAR(Dot(Turned(query), Turned(key)), Dot(query, key), 1e-6 * size) << dim;
    const std::vector<float> back = Turned(Turned(query));
    for (size_t i = 0; i < dim; ++i) EXPECT_NEAR(back[i], query[i], 2e-6f) << dim << " at " << i;
  }
}

// The reason for turning: a number that is large in every row no longer sets the scale of the others.
TEST(Turn, SpreadsALargeNumber) {
  std::vector<float> head(64, 0.0f);
  head[5] = 8;
  for (const float x : Turned(head)) EXPECT_EQ(std::fabs(x), 1.0f);
}

}  // namespace
}  // namespace infinigen
