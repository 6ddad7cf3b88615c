#include "cli/needle_heatmap.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/check.h"

namespace infinigen {
namespace {

constexpr Colour kPaper = {255, 255, 255}, kInk = {34, 38, 46}, kFaint = {118, 124, 136}, kNothing = {228, 230, 235};
constexpr std::array<Colour, 6> kScale = {
    {{48, 18, 70}, {66, 62, 130}, {45, 112, 142}, {38, 160, 130}, {130, 208, 80}, {250, 230, 70}}};

// Pixels. The font has dots of 2 pixels, headings of 3.
constexpr size_t kMargin = 32, kGap = 28, kText = 2, kHeading = 3, kLine = 7 * kText;
constexpr size_t kPanelHeight = 280, kListHeight = 56;  // of a family without depths
constexpr size_t kLeastColumn = 64, kMostColumn = 120, kLeastPanel = 240;
constexpr size_t kDepthWidth = 76;          // the labels of depths, left of each row of panels
constexpr size_t kSeam = 2;                 // between two cells
constexpr size_t kAbove = 26 + kLine + 12;  // a panel: the family's name, then the method's
constexpr size_t kBelow = 10 + kLine + 34;  // its lengths, and the way to the next row
constexpr size_t kLegendHeight = 18, kLegendWidth = 320;

struct Layout {
  size_t column = 0;                  // width of a length
  size_t left = 0;                    // of the first panel
  size_t across = 0;                  // from one panel to the next
  std::vector<size_t> tops, heights;  // of each row's panels
  size_t legend = 0;
  size_t width = 0, height = 0;

  size_t x(size_t index) const { return left + index * across; }
};

bool HasDepths(const Heatmap& map, size_t row) { return map.panels[row][0].counts[0].size() > 1; }

Layout LayOut(const Heatmap& map) {
  Layout of;
  const size_t lengths = map.lengths.size();
  of.column = std::clamp(kLeastPanel / lengths, kLeastColumn, kMostColumn);
  size_t panel = of.column * lengths;  // or as wide as what stands above it
  for (const std::string& name : map.columns) panel = std::max(panel, TextWidth(name + "  100 %", kText));
  of.across = panel + kGap;
  of.left = kMargin + kDepthWidth;
  size_t y = kMargin + TextHeight(kHeading) + 14 + kLine + 34;
  for (size_t row = 0; row < map.rows.size(); ++row) {
    of.tops.push_back(y + kAbove);
    of.heights.push_back(HasDepths(map, row) ? kPanelHeight : kListHeight);
    y = of.tops.back() + of.heights.back() + kBelow;
  }
  of.legend = y;
  of.height = of.legend + kLegendHeight + 8 + kLine + kMargin;
  const size_t panels = of.left + map.columns.size() * of.across - kGap;
  const size_t legend = of.left + kLegendWidth + 40 + 38 + TextWidth("no case", kText);
  const size_t heading = kMargin + std::max(TextWidth(map.title, kHeading), TextWidth(map.subtitle, kText));
  of.width = std::max({panels, legend, heading}) + kMargin;
  return of;
}

void Centred(Canvas& canvas, size_t middle, size_t y, Colour colour, const std::string& text) {
  const size_t half = TextWidth(text, kText) / 2;
  canvas.Text(middle > half ? middle - half : 0, y, kText, colour, text);
}

// Dark letters on bright cells, bright ones on dark cells.
Colour InkOn(Colour cell) {
  const double light = 0.3 * cell.red + 0.59 * cell.green + 0.11 * cell.blue;
  return light > 140 ? kInk : kPaper;
}

void DrawPanel(Canvas& canvas, const Layout& of, size_t left, size_t row, const HeatmapPanel& panel) {
  const size_t top = of.tops[row], height = of.heights[row];
  for (size_t length = 0; length < panel.counts.size(); ++length) {
    const std::vector<NeedleCell::Count>& bins = panel.counts[length];
    for (size_t bin = 0; bin < bins.size(); ++bin) {
      const size_t y = top + bin * height / bins.size(), end = top + (bin + 1) * height / bins.size();
      const size_t x = left + length * of.column;
      const NeedleCell::Count& count = bins[bin];
      const Colour colour = count.n > 0 ? HeatColour(count.share()) : kNothing;
      canvas.Fill(x, y, of.column - kSeam, end - y - kSeam, colour);
      if (count.n == 0 || end - y < kLine + 4) continue;
      Centred(canvas, x + (of.column - kSeam) / 2, y + (end - y - kSeam - kLine) / 2, InkOn(colour),
              fmt::format("{:.0f}", 100 * count.share()));
    }
  }
}

// One row of panels: the family, then for each method its name, its share and its panel, with lengths below.
void DrawRow(Canvas& canvas, const Layout& of, const Heatmap& map, size_t row) {
  const size_t top = of.tops[row], bottom = top + of.heights[row];
  canvas.Text(kMargin, top - kAbove, kText, kInk, map.rows[row]);
  for (size_t column = 0; column < map.columns.size(); ++column) {
    const HeatmapPanel& panel = map.panels[row][column];
    const std::string& name = map.columns[column];
    const std::string share = panel.accuracy < 0 ? "-" : fmt::format("{:.0f} %", 100 * panel.accuracy);
    canvas.Text(of.x(column), top - 12 - kLine, kText, kInk, name);
    canvas.Text(of.x(column) + TextWidth(name + "  ", kText), top - 12 - kLine, kText, kFaint, share);
    DrawPanel(canvas, of, of.x(column), row, panel);
    for (size_t length = 0; length < map.lengths.size(); ++length)
      Centred(canvas, of.x(column) + length * of.column + (of.column - kSeam) / 2, bottom + 10, kFaint,
              map.lengths[length]);
  }
  if (!HasDepths(map, row)) return;
  canvas.Text(kMargin, top, kText, kFaint, "start");
  canvas.Text(kMargin, (top + bottom) / 2 - kLine / 2, kText, kFaint, "depth");
  canvas.Text(kMargin, bottom - kLine - kSeam, kText, kFaint, "end");
}

void DrawLegend(Canvas& canvas, const Layout& of) {
  for (size_t x = 0; x < kLegendWidth; ++x)
    canvas.Fill(of.left + x, of.legend, 1, kLegendHeight,
                HeatColour(static_cast<double>(x) / static_cast<double>(kLegendWidth - 1)));
  for (const size_t percent : {0, 50, 100})
    Centred(canvas, of.left + kLegendWidth * percent / 100, of.legend + kLegendHeight + 8, kFaint,
            fmt::format("{} %", percent));
  canvas.Text(kMargin, of.legend + 2, kText, kInk, "found");
  const size_t empty = of.left + kLegendWidth + 40;
  canvas.Fill(empty, of.legend, 28, kLegendHeight, kNothing);
  canvas.Text(empty + 38, of.legend + 2, kText, kFaint, "no case");
}

}  // namespace

Colour HeatColour(double share) {
  const double at = std::clamp(share, 0.0, 1.0) * static_cast<double>(kScale.size() - 1);
  const size_t low = std::min(static_cast<size_t>(at), kScale.size() - 2);
  const double part = at - static_cast<double>(low);
  const auto mix = [part](uint8_t a, uint8_t b) { return static_cast<uint8_t>(std::lround(a + part * (b - a))); };
  const Colour &a = kScale[low], &b = kScale[low + 1];
  return {mix(a.red, b.red), mix(a.green, b.green), mix(a.blue, b.blue)};
}

std::string ShortLength(int64_t tokens) {
  if (tokens < 1024) return fmt::format("{}", tokens);
  return tokens % 1024 == 0 ? fmt::format("{}K", tokens / 1024)
                            : fmt::format("{:.1f}K", static_cast<double>(tokens) / 1024);
}

Heatmap HeatmapOf(const NeedlePlan& plan, const std::vector<std::string>& names,
                  const std::vector<const NeedleResult*>& results) {
  CHECK(!results.empty() && names.size() == results.size());
  Heatmap map{.columns = names};
  for (const int64_t length : plan.lengths) map.lengths.push_back(ShortLength(length));
  size_t first = 0;  // cell of a family; cells are ordered by family, length, facts
  for (const NeedleFamily family : plan.families) {
    const std::vector<int64_t> facts = plan.FactsOf(family);
    for (size_t k = 0; k < facts.size(); ++k) {
      map.rows.push_back(facts[k] == DefaultFacts(family)
                             ? std::string(Name(family))
                             : fmt::format("{}, {} fact{}", Name(family), facts[k], facts[k] == 1 ? "" : "s"));
      std::vector<HeatmapPanel>& row = map.panels.emplace_back();
      for (const NeedleResult* result : results) {
        HeatmapPanel& panel = row.emplace_back();
        NeedleScore score;
        for (size_t length = 0; length < plan.lengths.size(); ++length) {
          const NeedleCell& cell = result->cells[first + length * facts.size() + k];
          panel.counts.push_back(cell.bins);
          score += cell.score;
        }
        panel.accuracy = score.all.n > 0 ? score.accuracy() : -1;
      }
    }
    first += plan.lengths.size() * facts.size();
  }
  return map;
}

Canvas DrawHeatmap(const Heatmap& map) {
  CHECK(!map.rows.empty() && !map.columns.empty() && !map.lengths.empty());
  const Layout of = LayOut(map);
  Canvas canvas(of.width, of.height, kPaper);
  canvas.Text(kMargin, kMargin, kHeading, kInk, map.title);
  canvas.Text(kMargin, kMargin + TextHeight(kHeading) + 14, kText, kFaint, map.subtitle);
  for (size_t row = 0; row < map.rows.size(); ++row) DrawRow(canvas, of, map, row);
  DrawLegend(canvas, of);
  return canvas;
}

}  // namespace infinigen
