#include "eval/needle_heatmap.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "base/check.h"
#include "runtime/requests.h"

namespace infinigen {
namespace {

constexpr Colour kNothing = {228, 230, 235};  // cells without a case
constexpr std::array<Colour, 6> kScale = {
    {{48, 18, 70}, {66, 62, 130}, {45, 112, 142}, {38, 160, 130}, {130, 208, 80}, {250, 230, 70}}};

// Pixels.
constexpr size_t kMargin = 24, kGap = 20;
constexpr size_t kLetterWidth = 8;                      // more than the mean width of a letter at 13 px
constexpr size_t kPanelHeight = 220, kListHeight = 40;  // a list has no depths
constexpr size_t kLeastColumn = 48, kMostColumn = 84, kLeastPanel = 168;
constexpr size_t kDepthWidth = 52;   // the names of depths, left of each row of panels
constexpr size_t kHead = 58;         // title and subtitle
constexpr size_t kAbove = 44;        // a panel: the family's name, then the method's
constexpr size_t kBelow = 40;        // a panel: its lengths, and the way to the next row
constexpr size_t kLeastNumber = 16;  // height of a cell that has room for a number
constexpr size_t kLegendHeight = 14, kLegendWidth = 240;

struct Layout {
  size_t column = 0;                  // width of a length
  size_t panel = 0;                   // width of a panel
  std::vector<size_t> tops, heights;  // of each row's panels
  size_t legend = 0;                  // top
  size_t width = 0, height = 0;

  size_t left() const { return kMargin + kDepthWidth; }
  size_t x(size_t index) const { return left() + index * (panel + kGap); }
};

bool HasDepths(const Heatmap& map, size_t row) { return map.panels[row][0].counts[0].size() > 1; }

Layout LayOut(const Heatmap& map) {
  Layout of;
  const size_t lengths = map.lengths.size();
  of.column = std::clamp(kLeastPanel / lengths, kLeastColumn, kMostColumn);
  of.panel = of.column * lengths;
  for (const std::string& name : map.columns)
    of.panel = std::max(of.panel, kLetterWidth * (name.size() + 7));  // "  100 %"
  size_t y = kMargin + kHead;
  for (size_t row = 0; row < map.rows.size(); ++row) {
    of.tops.push_back(y + kAbove);
    of.heights.push_back(HasDepths(map, row) ? kPanelHeight : kListHeight);
    y = of.tops.back() + of.heights.back() + kBelow;
  }
  of.legend = y;
  of.height = of.legend + kLegendHeight + 24 + kMargin;
  const size_t panels = of.x(map.columns.size() - 1) + of.panel;
  const size_t legend = of.left() + kLegendWidth + 30 + 26 + 7 * kLetterWidth;  // "no case"
  const size_t heading = kMargin + kLetterWidth * std::max(map.title.size() * 3 / 2, map.subtitle.size());
  of.width = std::max({panels, legend, heading}) + kMargin;
  return of;
}

// As XML text: foreign names may hold any bytes.
std::string XmlText(std::string_view text) {
  std::string escaped;
  for (const char c : OneLine(ReplaceInvalidUtf8(text))) {
    if (c == '&')
      escaped += "&amp;";
    else if (c == '<')
      escaped += "&lt;";
    else if (c == '>')
      escaped += "&gt;";
    else
      escaped += c;
  }
  return escaped;
}

// The body of the file. `y` of a text is its base line.
class Svg {
 public:
  void Rect(size_t x, size_t y, size_t width, size_t height, const std::string& fill) {
    body_ +=
        fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{}\"/>\n", x, y, width, height, fill);
  }
  void Text(size_t x, size_t y, std::string_view style, std::string_view text) {
    const std::string attribute = style.empty() ? "" : fmt::format(" class=\"{}\"", style);
    body_ += fmt::format("<text x=\"{}\" y=\"{}\"{}>{}</text>\n", x, y, attribute, XmlText(text));
  }
  void BeginGroup(std::string_view title) { body_ += fmt::format("<g><title>{}</title>\n", XmlText(title)); }
  void EndGroup() { body_ += "</g>\n"; }

  std::string File(size_t width, size_t height) const {
    std::string stops;
    for (size_t i = 0; i < kScale.size(); ++i)
      stops += fmt::format("<stop offset=\"{}%\" stop-color=\"{}\"/>", i * 100 / (kScale.size() - 1), kScale[i].Hex());
    return fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\">\n"
        "<style>text{{font:13px sans-serif;fill:#22262e}}.title{{font-size:18px}}.faint{{fill:#767c88}}"
        ".middle{{text-anchor:middle}}.end{{text-anchor:end}}.on-dark{{fill:#fff}}</style>\n"
        "<defs><linearGradient id=\"scale\">{2}</linearGradient></defs>\n"
        "<rect width=\"{0}\" height=\"{1}\" fill=\"#ffffff\"/>\n{3}</svg>\n",
        width, height, stops, body_);
  }

 private:
  std::string body_;
};

void DrawCells(Svg& svg, const Layout& of, size_t left, size_t row, const HeatmapPanel& panel) {
  constexpr size_t kSeam = 1;  // between two cells
  for (size_t length = 0; length < panel.counts.size(); ++length) {
    const std::vector<NeedleCell::Count>& bins = panel.counts[length];
    for (size_t bin = 0; bin < bins.size(); ++bin) {
      const size_t y = of.tops[row] + bin * of.heights[row] / bins.size();
      const size_t height = of.tops[row] + (bin + 1) * of.heights[row] / bins.size() - y - kSeam;
      const size_t x = left + length * of.column;
      const NeedleCell::Count& count = bins[bin];
      const Colour colour = count.n > 0 ? HeatColour(count.share()) : kNothing;
      svg.Rect(x, y, of.column - kSeam, height, colour.Hex());
      if (count.n == 0 || height < kLeastNumber) continue;
      svg.Text(x + of.column / 2, y + height / 2 + 5, colour.light() > 140 ? "middle" : "middle on-dark",
               fmt::format("{:.0f}", 100 * count.share()));
    }
  }
}

// One row of panels: the family, then for each method its name, its accuracy and its cells, with the lengths below.
void DrawRow(Svg& svg, const Layout& of, const Heatmap& map, size_t row) {
  const size_t top = of.tops[row], bottom = top + of.heights[row];
  svg.Text(kMargin, top - 26, "", map.rows[row]);
  for (size_t column = 0; column < map.columns.size(); ++column) {
    const HeatmapPanel& panel = map.panels[row][column];
    const std::string& name = map.columns[column];
    const std::string share = panel.accuracy < 0 ? "-" : fmt::format("{:.0f} %", 100 * panel.accuracy);
    const size_t x = of.x(column);
    svg.BeginGroup(fmt::format("{}, {}: {}", map.rows[row], name, share));
    svg.Text(x, top - 8, "", name);
    svg.Text(x + of.panel, top - 8, "faint end", share);
    DrawCells(svg, of, x, row, panel);
    for (size_t length = 0; length < map.lengths.size(); ++length)
      svg.Text(x + length * of.column + of.column / 2, bottom + 16, "faint middle", map.lengths[length]);
    svg.EndGroup();
  }
  if (!HasDepths(map, row)) return;
  svg.Text(kMargin, top + 12, "faint", "start");
  svg.Text(kMargin, (top + bottom) / 2 + 5, "faint", "depth");
  svg.Text(kMargin, bottom - 3, "faint", "end");
}

void DrawLegend(Svg& svg, const Layout& of) {
  svg.Text(kMargin, of.legend + 12, "", "found");
  svg.Rect(of.left(), of.legend, kLegendWidth, kLegendHeight, "url(#scale)");
  for (const size_t percent : {0, 50, 100})
    svg.Text(of.left() + kLegendWidth * percent / 100, of.legend + kLegendHeight + 16, "faint middle",
             fmt::format("{} %", percent));
  const size_t empty = of.left() + kLegendWidth + 30;
  svg.Rect(empty, of.legend, 20, kLegendHeight, kNothing.Hex());
  svg.Text(empty + 26, of.legend + 12, "faint", "no case");
}

}  // namespace

std::string Colour::Hex() const { return fmt::format("#{:02x}{:02x}{:02x}", red, green, blue); }

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

Heatmap HeatmapOf(const NeedlePlan& plan, const NeedleOrigin& origin, const std::string& model,
                  const std::vector<NeedleKvRun>& runs) {
  CHECK(!runs.empty());
  const std::string source = origin.generated() ? "generated text" : origin.file.substr(origin.file.rfind('/') + 1);
  Heatmap map{.title = "Planted facts found, by length and depth",
              .subtitle = fmt::format("{}, {} cases each, {}, seed {}", model, plan.n, source, origin.seed)};
  for (const NeedleKvRun& run : runs) map.columns.push_back(run.kv);
  for (const int64_t length : plan.lengths) map.lengths.push_back(ShortLength(length));
  size_t first = 0;  // cell of a family
  for (const NeedleFamily family : plan.families) {
    const std::vector<int64_t> facts = plan.FactsOf(family);
    for (size_t k = 0; k < facts.size(); ++k) {
      map.rows.push_back(facts[k] == DefaultFacts(family)
                             ? std::string(Name(family))
                             : fmt::format("{}, {} fact{}", Name(family), facts[k], facts[k] == 1 ? "" : "s"));
      std::vector<HeatmapPanel>& row = map.panels.emplace_back();
      for (const NeedleKvRun& run : runs) {
        HeatmapPanel& panel = row.emplace_back();
        NeedleScore score;
        for (size_t length = 0; length < plan.lengths.size(); ++length) {
          const NeedleCell& cell = run.result.cells[first + length * facts.size() + k];
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

std::string HeatmapSvg(const Heatmap& map) {
  CHECK(!map.rows.empty() && !map.columns.empty() && !map.lengths.empty());
  const Layout of = LayOut(map);
  Svg svg;
  svg.Text(kMargin, kMargin + 18, "title", map.title);
  svg.Text(kMargin, kMargin + 40, "faint", map.subtitle);
  for (size_t row = 0; row < map.rows.size(); ++row) DrawRow(svg, of, map, row);
  DrawLegend(svg, of);
  return svg.File(of.width, of.height);
}

}  // namespace infinigen
