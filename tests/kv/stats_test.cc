// KvStats: ratios over layers, differences, sums, and percentiles.
#include "kv/stats.h"

#include <gtest/gtest.h>

#include <limits>

namespace infinigen {
namespace {

// `seen`: tokens including evicted ones; 0: nothing was evicted.
LayerKvStats Layer(bool selects, uint64_t chosen, uint64_t attended, uint64_t retained, uint64_t seen = 0) {
  LayerKvStats layer;
  layer.selects = selects;
  layer.totals = {.chosen = chosen, .attended = attended, .retained = retained};
  layer.seen = seen == 0 ? retained : seen;
  return layer;
}

void AddShare(MassTotals& mass, double share) {
  ++mass.count;
  mass.sum += share;
  ++mass.bins[static_cast<int>(share * MassTotals::kBins)];
}

TEST(KvStats, RatiosOfALayer) {
  const LayerKvStats layer = Layer(true, 20, 50, 200);
  EXPECT_DOUBLE_EQ(layer.selected_ratio(), 0.1);
  EXPECT_DOUBLE_EQ(layer.extra_ratio(), 0.15) << "attended and not chosen";
  EXPECT_DOUBLE_EQ(layer.attended_ratio(), 0.25);
  const LayerKvStats evicting = Layer(true, 20, 50, 200, 1000);
  EXPECT_DOUBLE_EQ(evicting.selected_ratio(), 0.1) << "of those retained";
  EXPECT_DOUBLE_EQ(evicting.attended_ratio(), 0.05) << "of all tokens";
  const LayerKvStats dense = Layer(false, 0, 200, 200);
  EXPECT_EQ(dense.selected_ratio(), 1);
  EXPECT_EQ(dense.extra_ratio(), 0);
  EXPECT_EQ(dense.attended_ratio(), 1);
}

TEST(KvStats, LateRowsAreAShareOfTheRetained) {
  LayerKvStats layer = Layer(true, 20, 50, 200);
  EXPECT_EQ(layer.late_ratio(), 0);
  layer.totals.late = 8;
  EXPECT_DOUBLE_EQ(layer.late_ratio(), 0.04);
  KvStats stats, before;
  stats.layers = {layer, layer};
  before.layers = {layer, Layer(true, 0, 0, 0)};
  EXPECT_EQ((stats - before).layers[0].totals.late, 0u);
  EXPECT_EQ((stats - before).layers[1].totals.late, 8u);
  EXPECT_EQ(stats.Selecting().totals.late, 16u);
  EXPECT_EQ(Layer(true, 0, 0, 0).late_ratio(), 0);
}

TEST(KvStats, BeforeTheFirstStepEverythingIsAttended) {
  EXPECT_EQ(Layer(true, 0, 0, 0).selected_ratio(), 1);
  EXPECT_EQ(KvStats().Selecting().selected_ratio(), 1);
  EXPECT_EQ(KvStats().Selecting().extra_ratio(), 0);
  EXPECT_EQ(KvStats().All().attended_ratio(), 1);
}

TEST(KvStats, SumsAreOverRowsNotOverRatios) {
  KvStats stats;
  stats.layers = {Layer(false, 0, 1000, 1000), Layer(true, 10, 20, 100), Layer(true, 100, 150, 900)};
  EXPECT_DOUBLE_EQ(stats.Selecting().selected_ratio(), 110.0 / 1000);
  EXPECT_DOUBLE_EQ(stats.Selecting().extra_ratio(), 60.0 / 1000);
  EXPECT_DOUBLE_EQ(stats.All().attended_ratio(), 1170.0 / 2000) << "dense layers too";
}

TEST(KvStats, DifferenceToAnEarlierSnapshot) {
  KvStats before;
  before.layers = {Layer(true, 10, 20, 100)};
  AddShare(before.layers[0].mass, 0.25);
  before.steps = 3;
  before.read_bytes = 1000;
  KvStats now = before;
  now.layers[0].Add(Layer(true, 5, 30, 60));
  AddShare(now.layers[0].mass, 0.75);
  now.steps = 5;
  now.read_bytes = 1800;
  now.entry_row_bytes = 64;
  now.sketch_row_bytes = 10;
  const KvStats since = now - before;
  EXPECT_EQ(since.steps, 2);
  EXPECT_EQ(since.read_bytes, 800u);
  EXPECT_EQ(since.entry_row_bytes, 64u) << "a size, not a sum";
  EXPECT_EQ(since.sketch_row_bytes, 10u);
  EXPECT_EQ(since.layers[0].totals.chosen, 5u);
  EXPECT_EQ(since.layers[0].totals.attended, 30u);
  EXPECT_EQ(since.layers[0].totals.retained, 60u);
  EXPECT_EQ(since.layers[0].mass.count, 1u);
  EXPECT_EQ(MeanShare(since.layers[0].mass), 0.75);
  EXPECT_EQ(SharePercentile(since.layers[0].mass, 100), 0.75);
  EXPECT_EQ(SharePercentile(since.layers[0].mass, 0), 0.75) << "the share before is gone from its bin";
}

TEST(KvStats, RunsAddUp) {
  KvStats a, b;
  a.layers = {Layer(false, 0, 10, 10), Layer(true, 1, 2, 10), Layer(true, 3, 4, 10)};
  a.steps = 2;
  a.fetched_bytes = 100;
  a.stall_ns = 7;
  a.AddUpLayers();
  ASSERT_EQ(a.layers.size(), 2u);
  EXPECT_EQ(a.Selecting().totals.chosen, 4u);
  EXPECT_EQ(a.All().totals.attended, 16u);
  b.Add(a);  // to empty stats
  b.Add({});
  b.Add(a);
  EXPECT_EQ(b.steps, 4);
  EXPECT_EQ(b.fetched_bytes, 200u);
  EXPECT_EQ(b.stall_ns, 14u);
  EXPECT_EQ(b.Selecting().totals.chosen, 8u);
  EXPECT_EQ(b.All().totals.retained, 60u);
}

// Broken attention has shares that are no numbers.
TEST(MassTotals, SharesThatAreNoneCountAsZeroOrOne) {
  MassTotals mass;
  for (const double share : {std::numeric_limits<double>::quiet_NaN(), -0.5, -std::numeric_limits<double>::infinity()})
    mass.Add(share);
  mass.Add(1.5);
  mass.Add(std::numeric_limits<double>::infinity());
  EXPECT_EQ(mass.count, 5u);
  EXPECT_EQ(mass.bins[0], 3u);
  EXPECT_EQ(mass.bins[MassTotals::kBins], 2u);
  EXPECT_EQ(mass.sum, 2.0);
}

TEST(MassTotals, MeanAndPercentiles) {
  MassTotals mass;
  EXPECT_EQ(MeanShare(mass), 0);
  EXPECT_EQ(SharePercentile(mass, 5), 0);
  for (int i = 1; i <= 100; ++i) AddShare(mass, i / 100.0);
  EXPECT_NEAR(MeanShare(mass), 0.505, 1e-12);
  EXPECT_NEAR(SharePercentile(mass, 5), 0.05, 1.001 / MassTotals::kBins);
  EXPECT_NEAR(SharePercentile(mass, 50), 0.5, 1.001 / MassTotals::kBins);
  EXPECT_EQ(SharePercentile(mass, 100), 1);
  EXPECT_NEAR(SharePercentile(mass, 0), 0.01, 1.001 / MassTotals::kBins) << "the least there is";
  MassTotals one;
  AddShare(one, 1);
  EXPECT_EQ(SharePercentile(one, 5), 1);
}

TEST(MassTotals, LayersAddUp) {
  LayerKvStats a = Layer(true, 1, 2, 4), b = Layer(true, 1, 2, 4);
  AddShare(a.mass, 0.5);
  AddShare(b.mass, 1);
  AddShare(b.mass, 1);
  a.Add(b);
  EXPECT_EQ(a.mass.count, 3u);
  EXPECT_NEAR(MeanShare(a.mass), 2.5 / 3, 1e-12);
  EXPECT_EQ(SharePercentile(a.mass, 33), 0.5);
  EXPECT_EQ(SharePercentile(a.mass, 34), 1);
}

}  // namespace
}  // namespace infinigen
