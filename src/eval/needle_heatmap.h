// A heat map of the facts found, by depth of the fact and length of the text, as SVG: one panel for each family and KV
// method, all with the same colour scale. Pure functions, any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "eval/needle_score.h"

namespace infinigen {

struct HeatmapPanel {
  double accuracy = 0;  // over the whole panel; below 0: nothing was run
  // [length][bin], from the beginning of the text; only one bin if the facts have no depth
  std::vector<std::vector<NeedleCell::Count>> counts;
};

struct Heatmap {
  std::string title, subtitle;
  std::vector<std::string> columns;               // "full", "infinigen", ...
  std::vector<std::string> rows;                  // "single", "multi-key, 8 facts", ...
  std::vector<std::string> lengths;               // "2K", "8K", ...
  std::vector<std::vector<HeatmapPanel>> panels;  // [row][column]
};

// One column for each run; all runs are runs of `plan`. `model`: the model's name.
Heatmap HeatmapOf(const NeedlePlan& plan, const NeedleOrigin& origin, const std::string& model,
                  const std::vector<NeedleKvRun>& runs);

// The SVG file; the same map gives the same bytes.
std::string HeatmapSvg(const Heatmap& map);

struct Colour {
  uint8_t red = 0, green = 0, blue = 0;

  std::string Hex() const;  // "#fae646"
  double light() const { return 0.3 * red + 0.59 * green + 0.11 * blue; }
  friend bool operator==(const Colour&, const Colour&) = default;
};

// The colour of a share in [0, 1], from dark (0) to bright (1). Lightness always rises, so the map works in greyscale.
Colour HeatColour(double share);

// "512", "1.5K", "8K": K is 1024.
std::string ShortLength(int64_t tokens);

}  // namespace infinigen
