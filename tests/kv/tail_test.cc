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
    const TailSums tail = SumTail(kTailLayout, head.blocks.data(), head.scores, selected, 0);
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
  AddTail(SumTail(kTailLayout, head.blocks.data(), head.scores, selected, 0), head.basis(), 0, largest, sum, got);
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-4);
}

TEST(Tail, WhereEverythingIsSelectedItIsEmptyAndChangesNoBit) {
  const TailHead head;
  std::vector<int32_t> all;
  for (int32_t row = 0; row < kTailRows; ++row) all.push_back(row);
  const TailSums tail = SumTail(kTailLayout, head.blocks.data(), head.scores, all, 0);
  EXPECT_EQ(tail.sum, 0.0f);
  std::vector<float> out = {1.0f, 2.0f};
  EXPECT_EQ(AddTail(tail, head.basis(), 0, 0.0f, 1.0f, out), 0.0f);
  EXPECT_EQ(out, (std::vector<float>{1.0f, 2.0f}));
  EXPECT_EQ(SumTail(kTailLayout, head.blocks.data(), std::vector<float>(5, kNoScore), {}, 0).sum, 0.0f);
}

// Values of a block that share what their sketches leave out: with its mean, the tail is attention to all rows again;
// without it, or for a block that is not complete, it is not.
TEST(Tail, MeansOfBlocksStandInForWhatSketchesLeaveOut) {
  SketchLayout layout = kTailLayout;
  layout.mean_dims = kTailDim;
  const TailHead sketched;
  TailHead head;
  head.blocks.assign(layout.head_bytes(kTailRows), std::byte{0});
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<float> shared(kTailDim);  // by the values of a block
  for (int64_t row = 0; row < kTailRows; ++row) {
    std::byte* block = head.blocks.data() + static_cast<size_t>(row / kSketchBlock) * layout.block_bytes();
    StoreValueSketch(
        layout, block, row % kSketchBlock,
        LoadValueSketch(kTailLayout,
                        sketched.blocks.data() + static_cast<size_t>(row / kSketchBlock) * kTailLayout.block_bytes(),
                        row % kSketchBlock));
    if (row % kSketchBlock == 0)
      for (size_t i = kTailValues; i < shared.size(); ++i) shared[i] = normal(random);
    for (size_t i = kTailValues; i < shared.size(); ++i) head.values[static_cast<size_t>(row)][i] += shared[i];
    if (!CompletesBlock(row)) continue;
    std::vector<float> values;
    for (int64_t r = row + 1 - kSketchBlock; r <= row; ++r)
      values.insert(values.end(), head.values[static_cast<size_t>(r)].begin(),
                    head.values[static_cast<size_t>(r)].end());
    StoreBlockMean(layout, block, values, head.mean);
  }
  std::vector<int32_t> all, selected = {3, 70};
  for (int32_t row = 0; row < kTailRows; ++row) all.push_back(row);
  for (int32_t row = 128; row < kTailRows; ++row) selected.push_back(row);  // the block that is not complete
  std::vector<float> want;
  head.Attend(all, want);
  const auto error = [&](int64_t complete) {
    std::vector<float> got;
    const auto [largest, sum] = head.Attend(selected, got);
    AddTail(SumTail(layout, head.blocks.data(), head.scores, selected, complete), head.basis(), 0, largest, sum, got);
    float most = 0;
    for (size_t i = 0; i < want.size(); ++i) most = std::max(most, std::fabs(got[i] - want[i]));
    return most;
  };
  EXPECT_LT(error(128), 0.02f);  // the means are rounded to 8 bits
  EXPECT_GT(error(64), 0.1f);
  EXPECT_GT(error(0), 0.1f);
}

TEST(BlockMean, IsTheMeanWithinARounding) {
  SketchLayout layout = kTailLayout;
  layout.mean_dims = 18;
  std::vector<std::byte> block(layout.block_bytes());
  std::vector<float> values(kSketchBlock * 18), mean(18, 0.5f);
  std::mt19937 random(9);
  std::normal_distribution<float> normal;
  for (float& number : values) number = normal(random);
  values[3] = std::numeric_limits<float>::infinity();
  StoreBlockMean(layout, block.data(), values, mean);
  const std::vector<float> got = LoadBlockMean(layout, block.data());
  for (size_t i = 0; i < 18; ++i) {
    double sum = 0;
    for (size_t row = 0; row < kSketchBlock; ++row) sum += static_cast<double>(values[row * 18 + i]);
    EXPECT_NEAR(got[i], i == 3 ? 0.0 : sum / kSketchBlock - 0.5, 1.0 / 127);  // sums that are not finite are zero
  }
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
