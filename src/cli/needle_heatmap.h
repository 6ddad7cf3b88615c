// What was found, over the depth of the fact and the length of the text, as a picture: one panel for each family and
// each way of keeping the cache, all on one scale of colours.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/canvas.h"
#include "cli/needle_table.h"

namespace infinigen {

struct HeatmapPanel {
  double accuracy = 0;                                 // over all of it; below 0: nothing was run
  std::vector<std::vector<NeedleCell::Count>> counts;  // [length][bin], the top of the text first; one bin: no depth
};

struct Heatmap {
  std::string title, subtitle;
  std::vector<std::string> columns;               // "full", "infinigen", ...
  std::vector<std::string> rows;                  // "single", "multi-key, 8 facts", ...
  std::vector<std::string> lengths;               // "2K", "8K", ...
  std::vector<std::vector<HeatmapPanel>> panels;  // [row][column]
};

// One run for each column, in the same order; all of one plan.
Heatmap HeatmapOf(const NeedlePlan& plan, const std::vector<std::string>& names,
                  const std::vector<const NeedleResult*>& results);

Canvas DrawHeatmap(const Heatmap& map);

// Of a share in [0, 1]: dark for nothing, bright for everything; its lightness rises throughout, so it prints in grey.
Colour HeatColour(double share);

// "512", "1.5K", "8K": thousands of 1024.
std::string ShortLength(int64_t tokens);

}  // namespace infinigen
