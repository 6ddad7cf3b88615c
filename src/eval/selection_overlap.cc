#include "eval/selection_overlap.h"

#include <algorithm>
#include <iterator>
#include <limits>

namespace infinigen {
namespace {

double OverlapShare(uint64_t same, uint64_t chosen) {
  return chosen > 0 ? static_cast<double>(same) / static_cast<double>(chosen)
                    : std::numeric_limits<double>::quiet_NaN();
}

}  // namespace

std::vector<int32_t> ChosenByScore(std::span<const int32_t> rows, int64_t sinks, int64_t window) {
  std::vector<int32_t> chosen;
  for (const int32_t row : rows.first(rows.size() - 1))
    if (row >= sinks && row < rows.back() - window) chosen.push_back(row);
  return chosen;
}

SelectionObserver SelectionOverlap::Kept() {
  return [this](LayerId layer, SeqSlot slot, KvHead head, std::span<const int32_t> rows) {
    if (rows.back() % every_ == 0) kept_[{layer, slot, head, rows.back()}] = Choice(rows);
  };
}

SelectionObserver SelectionOverlap::Compared() {
  return [this](LayerId layer, SeqSlot slot, KvHead head, std::span<const int32_t> rows) {
    const auto found = kept_.find({layer, slot, head, rows.back()});
    if (found == kept_.end()) return;
    const std::vector<int32_t>&other = found->second, mine = Choice(rows);
    std::vector<int32_t> both;
    std::set_intersection(other.begin(), other.end(), mine.begin(), mine.end(), std::back_inserter(both));
    same_ += both.size();
    longer_ += std::max(other.size(), mine.size());
    kept_.erase(found);
  };
}

double SelectionOverlap::share() const { return OverlapShare(same_, longer_); }

SelectionObserver StepOverlap::Observer() {
  return [this](LayerId layer, SeqSlot slot, KvHead head, std::span<const int32_t> rows) {
    std::deque<std::vector<int32_t>>& before = lists_[{layer, slot, head}];
    if (!before.empty() && before.back().back() + 1 != rows.back()) before.clear();  // another sequence
    Compare(layer, before, rows);
    before.emplace_back(rows.begin(), rows.end());
    if (std::ssize(before) > kSteps.back()) before.pop_front();
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
