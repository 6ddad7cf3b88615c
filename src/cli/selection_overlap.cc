#include "cli/selection_overlap.h"

#include <algorithm>
#include <iterator>
#include <limits>

namespace infinigen {

SelectionObserver SelectionOverlap::Kept() {
  return [this](LayerId layer, SeqSlot slot, KvHead head, std::span<const int32_t> rows) {
    if (rows.back() % every_ == 0) kept_[{layer, slot, head, rows.back()}] = {rows.begin(), rows.end() - 1};
  };
}

SelectionObserver SelectionOverlap::Compared() {
  return [this](LayerId layer, SeqSlot slot, KvHead head, std::span<const int32_t> rows) {
    const auto found = kept_.find({layer, slot, head, rows.back()});
    if (found == kept_.end()) return;
    const std::vector<int32_t>& other = found->second;
    std::vector<int32_t> both;
    std::set_intersection(other.begin(), other.end(), rows.begin(), rows.end() - 1, std::back_inserter(both));
    same_ += both.size();
    longer_ += std::max(other.size(), rows.size() - 1);
    ++lists_;
    kept_.erase(found);
  };
}

double SelectionOverlap::share() const {
  if (lists_ == 0) return std::numeric_limits<double>::quiet_NaN();
  return longer_ == 0 ? 1.0 : static_cast<double>(same_) / static_cast<double>(longer_);
}

}  // namespace infinigen
