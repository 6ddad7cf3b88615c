#include "text/stop_strings.h"

#include <algorithm>
#include <utility>

namespace infinigen {

StopStrings::StopStrings(std::vector<std::string> stops) : stops_(std::move(stops)) {
  stops_.erase(std::remove_if(stops_.begin(), stops_.end(), [](const std::string& stop) { return stop.empty(); }),
               stops_.end());
}

std::string StopStrings::Push(std::string_view piece) {
  if (matched_) return {};
  held_ += piece;
  // The earliest place where a stop string stands complete, and where one might still be forming.
  size_t match = std::string::npos;
  size_t forming = held_.size();
  for (const std::string& stop : stops_) {
    const size_t hit = held_.find(stop);
    if (hit < match) {
      match = hit;
      matched_stop_ = stop;
    }
    const size_t longest = std::min(stop.size() - 1, held_.size());
    for (size_t length = longest; length > 0; --length) {
      if (!std::string_view(stop).starts_with(std::string_view(held_).substr(held_.size() - length))) continue;
      forming = std::min(forming, held_.size() - length);
      break;
    }
  }
  // One that is forming may have started before the complete one: only when it is settled is the match the first.
  if (match != std::string::npos && match <= forming) {
    matched_ = true;
    std::string shown = held_.substr(0, match);
    held_.clear();
    return shown;
  }
  matched_stop_.clear();
  std::string shown = held_.substr(0, forming);
  held_.erase(0, forming);
  return shown;
}

std::string StopStrings::Finish() {
  if (matched_) return {};
  // A stop string that is complete in what was held back only waited for one that started earlier.
  size_t match = std::string::npos;
  for (const std::string& stop : stops_) {
    const size_t hit = held_.find(stop);
    if (hit < match) {
      match = hit;
      matched_stop_ = stop;
    }
  }
  matched_ = match != std::string::npos;
  std::string shown = held_.substr(0, match);
  held_.clear();
  return shown;
}

}  // namespace infinigen
