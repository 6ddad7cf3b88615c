#include "cli/step_overlap.h"

#include <algorithm>
#include <limits>

#include "cli/selection_overlap.h"

namespace infinigen {
namespace {

double OverlapShare(uint64_t same, uint64_t chosen) {
  return chosen > 0 ? static_cast<double>(same) / static_cast<double>(chosen)
                    : std::numeric_limits<double>::quiet_NaN();
}

}  // namespace

SelectionObserver StepOverlap::Observer() {
  return [this](LayerId layer, SeqSlot slot, KvHead head, std::span<const int32_t> rows) {
    std::deque<std::vector<int32_t>>& before = lists_[{layer, slot, head}];
    if (!before.empty() && before.back().back() + 1 != rows.back()) before.clear();  // another sequence
    Compare(layer, before, rows);
    before.emplace_back(rows.begin(), rows.end());
    if (static_cast<int64_t>(before.size()) > kSteps.back()) before.pop_front();
  };
}

void StepOverlap::Compare(LayerId layer, const std::deque<std::vector<int32_t>>& before,
                          std::span<const int32_t> rows) {
  const std::vector<int32_t> chosen = ChosenByScore(rows, sinks_, window_);
  Sums& sums = sums_[layer];
  for (size_t i = 0; i < kSteps.size(); ++i) {
    const size_t steps = static_cast<size_t>(kSteps[i]);
    if (before.size() < steps) break;
    const std::vector<int32_t>& then = before[before.size() - steps];
    auto at = then.begin();
    for (const int32_t row : chosen) {  // both ascend
      if (row >= then.back() - window_) break;
      while (at != then.end() && *at < row) ++at;
      if (at != then.end() && *at == row) ++sums.same[i];
      ++sums.chosen[i];
    }
  }
}

double StepOverlap::share(size_t i) const {
  uint64_t same = 0, chosen = 0;
  for (const auto& [layer, sums] : sums_) {
    same += sums.same[i];
    chosen += sums.chosen[i];
  }
  return OverlapShare(same, chosen);
}

double StepOverlap::share(size_t i, LayerId layer) const {
  const auto found = sums_.find(layer);
  return found == sums_.end() ? OverlapShare(0, 0) : OverlapShare(found->second.same[i], found->second.chosen[i]);
}

std::vector<LayerId> StepOverlap::layers() const {
  std::vector<LayerId> layers;
  for (const auto& [layer, sums] : sums_) layers.push_back(layer);
  return layers;
}

}  // namespace infinigen
