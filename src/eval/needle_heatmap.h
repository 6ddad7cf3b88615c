// A picture of what was found, over the depth of the fact and the length of the text, as SVG: one panel for each family
// and each KV method, all on one scale of colours. Pure functions, any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "eval/needle_score.h"

namespace infinigen {

struct HeatmapPanel {
  double accuracy = 0;                                 // over the whole panel; below 0: nothing was run
  std::vector<std::vector<NeedleCell::Count>> counts;  // [length][bin], the beginning of the text first; one bin: none
                                                       // of the facts has a depth
};

struct Heatmap {
  std::string title, subtitle;
  std::vector<std::string> columns;               // "full", "infinigen", ...
  std::vector<std::string> rows;                  // "single", "multi-key, 8 facts", ...
  std::vector<std::string> lengths;               // "2K", "8K", ...
  std::vector<std::vector<HeatmapPanel>> panels;  // [row][column]
};

// A column for each run; all runs are of `plan`. `model`: its name.
Heatmap HeatmapOf(const NeedlePlan& plan, const NeedleOrigin& origin, const std::string& model,
                  const std::vector<NeedleKvRun>& runs);

// The file. The same bytes for the same map.
std::string HeatmapSvg(const Heatmap& map);

struct Colour {
  uint8_t red = 0, green = 0, blue = 0;

  std::string Hex() const;  // "#fae646"
  double light() const { return 0.3 * red + 0.59 * green + 0.11 * blue; }
  friend bool operator==(const Colour&, const Colour&) = default;
};

// The colour of a share in [0, 1], from dark for 0 to bright for 1. Lightness rises throughout, so it prints in grey.
Colour HeatColour(double share);

// "512", "1.5K", "8K": K is 1024.
std::string ShortLength(int64_t tokens);

}  // namespace infinigen
