// The picture of found facts: colours, panels, and the SVG file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>

#include "eval/needle_heatmap.h"

namespace infinigen {
namespace {

using testing::HasSubstr;
using testing::Not;

size_t CountOf(std::string_view text, std::string_view part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(Heatmap, ColoursGrowLighter) {
  double last = -1;
  for (int i = 0; i <= 100; ++i) {
    EXPECT_GT(HeatColour(i / 100.0).light(), last) << i;
    last = HeatColour(i / 100.0).light();
  }
  EXPECT_EQ(HeatColour(-1), HeatColour(0));
  EXPECT_EQ(HeatColour(2), HeatColour(1));
  EXPECT_EQ(HeatColour(1).Hex(), "#fae646");
  EXPECT_EQ((Colour{1, 2, 255}).Hex(), "#0102ff");
}

TEST(Heatmap, Lengths) {
  EXPECT_EQ(ShortLength(8192), "8K");
  EXPECT_EQ(ShortLength(1536), "1.5K");
  EXPECT_EQ(ShortLength(300), "300");
}

// Two families, one of them without depths; the first method finds everything, the other nothing.
std::vector<NeedleKvRun> TwoRuns(const NeedlePlan& plan) {
  std::vector<NeedleKvRun> runs(2);
  runs[0].kv = "full";
  runs[1].kv = "other";
  for (const NeedleFamily family : plan.families)
    for (const int64_t length : plan.lengths) {
      NeedleCell cell{.family = family, .length = length, .facts = DefaultFacts(family)};
      cell.bins.resize(family == NeedleFamily::kWords ? 1 : 4, {.n = 1, .found = 1});
      cell.score = {{4, 4}, 4.0};
      runs[0].result.cells.push_back(cell);
      for (NeedleCell::Count& bin : cell.bins) bin = {.n = 1, .found = 0};
      cell.score = {{4, 0}, 0.0};
      if (length == 1024) cell.bins.back() = {};  // no case
      runs[1].result.cells.push_back(cell);
    }
  return runs;
}

const NeedlePlan kPlan{
    .lengths = {512, 1024}, .facts = {}, .n = 4, .families = {NeedleFamily::kSingle, NeedleFamily::kWords}};

TEST(Heatmap, HasAPanelForEachFamilyAndMethod) {
  const Heatmap map = HeatmapOf(kPlan, {.file = "a/book.txt", .seed = 7}, "mini", TwoRuns(kPlan));
  EXPECT_EQ(map.rows, (std::vector<std::string>{"single", "words"}));
  EXPECT_EQ(map.columns, (std::vector<std::string>{"full", "other"}));
  EXPECT_EQ(map.lengths, (std::vector<std::string>{"512", "1K"}));
  EXPECT_EQ(map.subtitle, "mini, 4 cases each, book.txt, seed 7");
  ASSERT_EQ(map.panels[0].size(), 2u);
  EXPECT_EQ(map.panels[0][0].accuracy, 1);
  EXPECT_EQ(map.panels[1][1].accuracy, 0);
  EXPECT_EQ(map.panels[0][1].counts[1].size(), 4u);
  EXPECT_EQ(map.panels[1][1].counts[1].size(), 1u);
}

TEST(Heatmap, DrawsEveryCellInsideThePicture) {
  const std::string svg = HeatmapSvg(HeatmapOf(kPlan, {}, "mini", TwoRuns(kPlan)));
  // Cells: 2 lengths of 4 depths, and 2 lengths of a list. The legend has one box for "no case".
  EXPECT_EQ(CountOf(svg, "fill=\"" + HeatColour(1).Hex() + "\""), 10u);
  EXPECT_EQ(CountOf(svg, "fill=\"" + HeatColour(0).Hex() + "\""), 8u);
  EXPECT_EQ(CountOf(svg, "fill=\"#e4e6eb\""), 2u + 1u);
  EXPECT_EQ(CountOf(svg, ">100</text>"), 10u);
  EXPECT_EQ(CountOf(svg, "on-dark\">0</text>"), 8u) << "bright numbers on dark cells";
  EXPECT_THAT(svg, HasSubstr("<title>single, other: 0 %</title>"));
  EXPECT_EQ(CountOf(svg, "<g>"), CountOf(svg, "</g>"));
  std::smatch size;
  ASSERT_TRUE(std::regex_search(svg, size, std::regex("viewBox=\"0 0 (\\d+) (\\d+)\"")));
  const int width = std::stoi(size[1]), height = std::stoi(size[2]);
  const std::regex rect("<rect x=\"(\\d+)\" y=\"(\\d+)\" width=\"(\\d+)\" height=\"(\\d+)\"");
  size_t rects = 0;
  for (std::sregex_iterator it(svg.begin(), svg.end(), rect), end; it != end; ++it, ++rects) {
    EXPECT_LT(std::stoi((*it)[1]) + std::stoi((*it)[3]), width);
    EXPECT_LT(std::stoi((*it)[2]) + std::stoi((*it)[4]), height);
  }
  EXPECT_EQ(rects, 20u + 2u);
  EXPECT_EQ(svg, HeatmapSvg(HeatmapOf(kPlan, {}, "mini", TwoRuns(kPlan)))) << "the same bytes";
}

TEST(Heatmap, ForeignNamesStayText) {
  const std::string svg = HeatmapSvg(HeatmapOf(kPlan, {.file = "a<b>&\n\xff.txt"}, "</text><script>", TwoRuns(kPlan)));
  EXPECT_THAT(svg, Not(HasSubstr("<script>")));
  EXPECT_THAT(svg, HasSubstr("&lt;/text&gt;&lt;script&gt;"));
  EXPECT_THAT(svg, HasSubstr("a&lt;b&gt;&amp; \xef\xbf\xbd.txt"));
}

}  // namespace
}  // namespace infinigen
