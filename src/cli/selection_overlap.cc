#include "cli/selection_overlap.h"

#include <algorithm>
#include <iterator>
#include <limits>

namespace infinigen {

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

double SelectionOverlap::share() const {
  if (longer_ == 0) return std::numeric_limits<double>::quiet_NaN();
  return static_cast<double>(same_) / static_cast<double>(longer_);
}

}  // namespace infinigen
