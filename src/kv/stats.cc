#include "kv/stats.h"

#include "base/check.h"

namespace infinigen {

void LayerKvStats::Add(const LayerKvStats& other) {
  selects = selects || other.selects;
  totals.Add(other.totals);
  seen += other.seen;
  mass.Add(other.mass);
  tail_mass.Add(other.tail_mass);
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

void KvStats::AddUpLayers() {
  LayerKvStats others;
  for (const LayerKvStats& layer : layers)
    if (!layer.selects) others.Add(layer);
  layers = {Selecting(), others};
}

KvStats KvStats::operator-(const KvStats& before) const {
  CHECK(before.layers.size() == layers.size());
  KvStats difference = *this;
  difference.steps -= before.steps;
  difference.evicted -= before.evicted;
  difference.read_bytes -= before.read_bytes;
  difference.fetch.wanted -= before.fetch.wanted;
  difference.fetch.fetched -= before.fetch.fetched;
  difference.fetched_bytes -= before.fetched_bytes;
  difference.stall_ns -= before.stall_ns;
  for (size_t i = 0; i < layers.size(); ++i) {
    LayerKvStats& layer = difference.layers[i];
    const LayerKvStats& old = before.layers[i];
    layer.totals.chosen -= old.totals.chosen;
    layer.totals.attended -= old.totals.attended;
    layer.totals.retained -= old.totals.retained;
    layer.totals.late -= old.totals.late;
    layer.seen -= old.seen;
    layer.mass.Subtract(old.mass);
    layer.tail_mass.Subtract(old.tail_mass);
  }
  return difference;
}

void KvStats::Add(const KvStats& other) {
  if (layers.empty()) {
    *this = other;
    return;
  }
  if (other.layers.empty()) return;
  CHECK(layers.size() == other.layers.size());
  steps += other.steps;
  evicted += other.evicted;
  read_bytes += other.read_bytes;
  fetch.Add(other.fetch);
  fetched_bytes += other.fetched_bytes;
  stall_ns += other.stall_ns;
  for (size_t i = 0; i < layers.size(); ++i) layers[i].Add(other.layers[i]);
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
