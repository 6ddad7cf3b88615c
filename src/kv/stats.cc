#include "kv/stats.h"

#include "base/check.h"

namespace infinigen {

void LayerKvStats::Add(const LayerKvStats& other) {
  selects = selects || other.selects;
  totals.chosen += other.totals.chosen;
  totals.attended += other.totals.attended;
  totals.retained += other.totals.retained;
  seen += other.seen;
  mass.count += other.mass.count;
  mass.sum += other.mass.sum;
  for (int bin = 0; bin <= MassTotals::kBins; ++bin) mass.bins[bin] += other.mass.bins[bin];
}

LayerKvStats KvStats::Selecting() const {
  LayerKvStats sum;
  for (const LayerKvStats& layer : layers)
    if (layer.selects) sum.Add(layer);
  return sum;
}

LayerKvStats KvStats::All() const {
  LayerKvStats sum;
  for (const LayerKvStats& layer : layers) sum.Add(layer);
  return sum;
}

KvStats KvStats::operator-(const KvStats& before) const {
  CHECK(before.layers.size() == layers.size());
  KvStats rest = *this;
  rest.steps -= before.steps;
  rest.evicted -= before.evicted;
  rest.read_bytes -= before.read_bytes;
  rest.near.wanted -= before.near.wanted;
  rest.near.fetched -= before.near.fetched;
  rest.fetched_bytes -= before.fetched_bytes;
  for (size_t i = 0; i < layers.size(); ++i) {
    LayerKvStats& of = rest.layers[i];
    const LayerKvStats& old = before.layers[i];
    of.totals.chosen -= old.totals.chosen;
    of.totals.attended -= old.totals.attended;
    of.totals.retained -= old.totals.retained;
    of.seen -= old.seen;
    of.mass.count -= old.mass.count;
    of.mass.sum -= old.mass.sum;
    for (int bin = 0; bin <= MassTotals::kBins; ++bin) of.mass.bins[bin] -= old.mass.bins[bin];
  }
  return rest;
}

double MeanShare(const MassTotals& mass) { return mass.count == 0 ? 0 : mass.sum / static_cast<double>(mass.count); }

double SharePercentile(const MassTotals& mass, double percent) {
  const double wanted = percent / 100 * static_cast<double>(mass.count);
  double seen = 0;
  for (int bin = 0; bin <= MassTotals::kBins; ++bin) {
    seen += static_cast<double>(mass.bins[bin]);
    if (seen > 0 && seen >= wanted) return static_cast<double>(bin) / MassTotals::kBins;
  }
  return 0;
}

}  // namespace infinigen
