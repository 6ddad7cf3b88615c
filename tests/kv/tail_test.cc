// The definition of the tail (kv/tail.h), against attention over entries that their sketches describe exactly.
#include "kv/tail.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "kv/index.h"

namespace infinigen {
namespace {

constexpr int64_t kTailRows = 150, kTailDim = 16, kTailValues = 8;
constexpr SketchLayout kTailLayout{
    .type = SketchType::kInt4, .kv_heads = 1, .dims = 16, .scale_dims = 8, .value_dims = 8};
constexpr float kNoScore = std::numeric_limits<float>::quiet_NaN();

// One head whose values are value_mean + columns · whole numbers from -7 to 7, so that value sketches hold them
// exactly.
struct TailHead {
  TailHead() {
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    for (int64_t c = 0; c < kTailValues; ++c)
      for (int64_t i = 0; i < kTailDim; ++i) columns[static_cast<size_t>(i * kTailValues + c)] = i == c ? 1.0f : 0.0f;
    for (float& number : mean) number = normal(random);
    for (int64_t row = 0; row < kTailRows; ++row) {
      scores.push_back(normal(random));
      std::vector<float> sketch;
      for (int64_t c = 0; c < kTailValues; ++c) sketch.push_back(static_cast<float>(random() % 15) - 7);
      sketch[0] = 7;  // so that the scale is 1
      StoreValueSketch(kTailLayout, blocks.data() + static_cast<size_t>(row / kSketchBlock) * kTailLayout.block_bytes(),
                       row % kSketchBlock, sketch);
      std::vector<float>& value = values.emplace_back(mean);
      for (int64_t c = 0; c < kTailValues; ++c) value[static_cast<size_t>(c)] += sketch[static_cast<size_t>(c)];
    }
  }

  // Attention to `rows` of their values: {largest score, Σ e^{score − largest}}, and the weighted mean in out.
  std::pair<float, float> Attend(const std::vector<int32_t>& rows, std::vector<float>& out) const {
    float largest = -INFINITY, sum = 0;
    for (const int32_t row : rows) largest = std::max(largest, scores[static_cast<size_t>(row)]);
    out.assign(kTailDim, 0.0f);
    for (const int32_t row : rows) {
      const float weight = std::exp(scores[static_cast<size_t>(row)] - largest);
      sum += weight;
      for (size_t i = 0; i < out.size(); ++i) out[i] += weight * values[static_cast<size_t>(row)][i];
    }
    for (float& number : out) number /= sum;
    return {largest, sum};
  }
  TailBasis basis() const {
    return {.kv_heads = 1,
            .head_dim = kTailDim,
            .value_dims = kTailValues,
            .value = columns.data(),
            .value_mean = mean.data()};
  }

  std::vector<std::byte> blocks = std::vector<std::byte>(kTailLayout.head_bytes(kTailRows));
  std::vector<float> scores, columns = std::vector<float>(kTailDim * kTailValues), mean = std::vector<float>(kTailDim);
  std::vector<std::vector<float>> values;
};

TEST(Tail, WithExactSketchesItIsAttentionToAllRows) {
  const TailHead head;
  std::vector<int32_t> all;
  for (int32_t row = 0; row < kTailRows; ++row) all.push_back(row);
  std::vector<float> want, got;
  head.Attend(all, want);
  for (const std::vector<int32_t>& selected : {std::vector<int32_t>{149}, {0, 1, 63, 64, 100, 149}, {77, 149}}) {
    const auto [largest, sum] = head.Attend(selected, got);
    const TailSums tail = SumTail(kTailLayout, head.blocks.data(), head.scores, selected);
    const float share = AddTail(tail, head.basis(), 0, largest, sum, got);
    for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-4);
    double outside = 0, everything = 0;
    for (int32_t row = 0; row < kTailRows; ++row) {
      const double weight = std::exp(static_cast<double>(head.scores[static_cast<size_t>(row)]));
      everything += weight;
      if (std::find(selected.begin(), selected.end(), row) == selected.end()) outside += weight;
    }
    EXPECT_NEAR(share, outside / everything, 1e-5);
  }
}

TEST(Tail, RowsWithoutAScoreAreNotInIt) {
  TailHead head;
  std::vector<int32_t> rest;
  for (int32_t row = 0; row < kTailRows; ++row) {
    if (row % 3 == 0) head.scores[static_cast<size_t>(row)] = kNoScore;
    if (row % 3 != 0) rest.push_back(row);
  }
  std::vector<float> want, got;
  head.Attend(rest, want);
  const std::vector<int32_t> selected = {1, 2, 149};
  const auto [largest, sum] = head.Attend(selected, got);
  AddTail(SumTail(kTailLayout, head.blocks.data(), head.scores, selected), head.basis(), 0, largest, sum, got);
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-4);
}

TEST(Tail, WhereEverythingIsSelectedItIsEmptyAndChangesNoBit) {
  const TailHead head;
  std::vector<int32_t> all;
  for (int32_t row = 0; row < kTailRows; ++row) all.push_back(row);
  const TailSums tail = SumTail(kTailLayout, head.blocks.data(), head.scores, all);
  EXPECT_EQ(tail.sum, 0.0f);
  std::vector<float> out = {1.0f, 2.0f};
  EXPECT_EQ(AddTail(tail, head.basis(), 0, 0.0f, 1.0f, out), 0.0f);
  EXPECT_EQ(out, (std::vector<float>{1.0f, 2.0f}));
  EXPECT_EQ(SumTail(kTailLayout, head.blocks.data(), std::vector<float>(5, kNoScore), {}).sum, 0.0f);
}

TEST(MassTotals, SumsAndDifferences) {
  MassTotals a, b;
  a.Add(0.25);
  a.Add(1.0);
  b.Add(0.25);
  a.Subtract(b);
  EXPECT_EQ(a.count, 1u);
  EXPECT_EQ(a.sum, 1.0);
  EXPECT_EQ(a.bins[MassTotals::kBins], 1u);
  EXPECT_EQ(a.bins[250], 0u);
}

}  // namespace
}  // namespace infinigen
