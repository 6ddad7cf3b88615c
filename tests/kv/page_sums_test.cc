// Sums of pages: known answers, and the mean that gives the method its name.
#include "kv/page_sums.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace infinigen {
namespace {

using testing::ElementsAre;

TEST(PageSums, OfAPageByHand) {
  std::vector<float> sum(3, NAN);  // whatever stood there
  AddToPageSum(sum, 32, std::vector<float>{1, -2, 0.5f});
  EXPECT_THAT(sum, ElementsAre(1, -2, 0.5f)) << "row 32 starts a page";
  AddToPageSum(sum, 33, std::vector<float>{3, -4, 0.5f});
  AddToPageSum(sum, 34, std::vector<float>{2, 5, 0.25f});
  EXPECT_THAT(sum, ElementsAre(6, -1, 1.25f));
  EXPECT_EQ(PageMeanScore(sum, std::vector<float>{2, -1, 4}), (12.0f + 1.0f + 5.0f) / 16);
  EXPECT_TRUE(std::isnan(PageMeanScore(sum, std::vector<float>{1, NAN, 0})));
  AddToPageSum(sum, 35, std::vector<float>{INFINITY, -INFINITY, NAN});
  EXPECT_THAT(sum, ElementsAre(6, -1, 1.25f)) << "what is not finite counts as zero";
  AddToPageSum(sum, 48, std::vector<float>{0, 0, 7});
  EXPECT_THAT(sum, ElementsAre(0, 0, 7)) << "so does row 48";
}

// Within the rounding of 16 additions and of a dot product: (16 + d) · 2^-24 of the sum of all magnitudes.
TEST(PageSums, ThePageScoresTheMeanOfItsKeys) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  for (int trial = 0; trial < 500; ++trial) {
    const size_t d = 1 + random() % 130;
    std::vector<float> sum(d), query(d), key(d);
    for (float& number : query) number = normal(random);
    double mean = 0, magnitude = 0;
    for (int64_t row = 0; row < kPageRows; ++row) {
      for (size_t i = 0; i < d; ++i) {
        key[i] = normal(random);
        const double product = static_cast<double>(query[i]) * static_cast<double>(key[i]) / 16;
        mean += product;
        magnitude += std::fabs(product);
      }
      AddToPageSum(sum, 64 + row, key);
    }
    const double bound = static_cast<double>(16 + d) * 0x1p-24 * magnitude;
    ASSERT_NEAR(static_cast<double>(PageMeanScore(sum, query)), mean, bound) << "dimensions " << d;
  }
}

TEST(PageSums, TakeAsManyBytesAsBounds) {
  EXPECT_EQ((PageSumsLayout{8, 64}.index().head_bytes(100)), (PageBoundsLayout{8, 64}.head_bytes(100)));
}

}  // namespace
}  // namespace infinigen
