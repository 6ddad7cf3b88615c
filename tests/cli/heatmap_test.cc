// Pictures: the PNG file, letters on a canvas, the heat map of found facts.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "cli/canvas.h"
#include "cli/needle_heatmap.h"
#include "cli/png.h"

namespace infinigen {
namespace {

// The deflate decoder of the tests: one block with the fixed codes, read bit by bit as RFC 1951 tells it.
class Inflater {
 public:
  explicit Inflater(std::string_view bytes) : bytes_(bytes) {}

  std::string Block() {
    EXPECT_EQ(Bits(1), 1u);  // last
    EXPECT_EQ(Bits(2), 1u);  // fixed
    std::string out;
    for (uint32_t symbol; (symbol = Symbol()) != 256;) {
      if (symbol < 256) {
        out += static_cast<char>(symbol);
        continue;
      }
      uint32_t length = 258;
      if (symbol < 285) {
        const uint32_t at = symbol - 257, extra = at < 8 ? 0 : at / 4 - 1;
        length = 3 + (at < 8 ? at : ((4 + at % 4) << extra)) + Bits(extra);
      }
      uint32_t distance = 0;
      for (int i = 0; i < 5; ++i) distance = distance << 1 | Bits(1);
      EXPECT_LT(distance, 4u);
      EXPECT_LE(distance + 1, out.size());
      if (distance >= out.size()) return {};
      for (uint32_t i = 0; i < length; ++i) out += out[out.size() - distance - 1];
    }
    return out;
  }
  size_t used() const { return (bit_ + 7) / 8; }

 private:
  uint32_t Bits(uint32_t count) {
    uint32_t value = 0;
    for (uint32_t i = 0; i < count; ++i, ++bit_)
      value |= (static_cast<unsigned char>(bytes_.at(bit_ / 8)) >> (bit_ % 8) & 1u) << i;
    return value;
  }
  uint32_t Symbol() {
    uint32_t code = 0;
    for (uint32_t length = 1; length <= 9; ++length) {
      code = code << 1 | Bits(1);
      if (length == 7 && code < 24) return 256 + code;
      if (length == 8 && code >= 0x30 && code < 0xC0) return code - 0x30;
      if (length == 8 && code >= 0xC0 && code < 0xC8) return 280 + code - 0xC0;
      if (length == 9 && code >= 0x190) return 144 + code - 0x190;
    }
    ADD_FAILURE() << "no such code";
    return 256;
  }

  std::string_view bytes_;
  size_t bit_ = 0;
};

TEST(Png, ChecksumsAreTheKnownOnes) {
  EXPECT_EQ(Crc32("123456789"), 0xCBF43926u);
  EXPECT_EQ(Crc32("IEND"), 0xAE426082u);
  const std::string stream = ZlibRuns("Wikipedia");
  EXPECT_EQ(stream.substr(stream.size() - 4), "\x11\xE6\x03\x98") << "Adler-32";
}

TEST(Png, RunsOfEveryLengthComeBack) {
  std::string bytes;
  for (int length = 1; length <= 600; length += length < 270 ? 1 : 31) {
    bytes += std::string(static_cast<size_t>(length), static_cast<char>(length));
    bytes += "\x01\x80\xff";
    for (int i = 0; i < length; ++i) bytes += "abc"[i % 3];
  }
  const std::string stream = ZlibRuns(bytes);
  ASSERT_EQ(stream.substr(0, 2), "\x78\x01");
  Inflater inflater(std::string_view(stream).substr(2));
  EXPECT_EQ(inflater.Block(), bytes);
  EXPECT_EQ(inflater.used() + 6, stream.size());
  EXPECT_LT(ZlibRuns(std::string(100000, '\0')).size(), 1000u);
  const std::string nothing = ZlibRuns("");
  EXPECT_EQ(Inflater(std::string_view(nothing).substr(2)).Block(), "");
}

TEST(Png, PixelsComeBack) {
  Canvas canvas(70, 30, {255, 255, 255});
  canvas.Fill(3, 4, 20, 10, {10, 200, 30});
  canvas.Text(5, 6, 2, {0, 0, 0}, "Ag,1");
  const std::string png = canvas.Png();
  ASSERT_EQ(png.substr(0, 8), "\x89PNG\r\n\x1a\n");
  EXPECT_EQ(png.substr(16, 8), std::string("\0\0\0\x46\0\0\0\x1e", 8));
  const size_t data = png.find("IDAT") + 4;
  const std::string rows = Inflater(std::string_view(png).substr(data + 2)).Block();
  ASSERT_EQ(rows.size(), 30u * (1 + 70 * 3));
  std::string above(70 * 3, '\0');
  for (size_t y = 0; y < 30; ++y) {
    EXPECT_EQ(rows[y * 211], 2);
    for (size_t i = 0; i < 210; ++i) above[i] = static_cast<char>(above[i] + rows[y * 211 + 1 + i]);
    for (size_t x = 0; x < 70; ++x)
      ASSERT_EQ((Colour{static_cast<uint8_t>(above[3 * x]), static_cast<uint8_t>(above[3 * x + 1]),
                        static_cast<uint8_t>(above[3 * x + 2])}),
                canvas.At(x, y));
  }
}

TEST(Canvas, LettersDifferAndStayInside) {
  std::set<std::string> seen;
  for (char letter = '!'; letter <= '~'; ++letter) {
    Canvas canvas(5, 9, {});
    canvas.Text(0, 0, 1, {255, 0, 0}, std::string(1, letter));
    std::string dots;
    for (size_t y = 0; y < 9; ++y)
      for (size_t x = 0; x < 5; ++x) dots += canvas.At(x, y).red > 0 ? '#' : '.';
    EXPECT_NE(dots.find('#'), std::string::npos) << letter;
    EXPECT_TRUE(seen.insert(dots).second) << letter << " looks like another";
  }
  EXPECT_EQ(TextWidth("ab", 2), 22u);
  Canvas small(4, 4, {});
  small.Text(2, 2, 3, {1, 1, 1}, "W\xc3\xa9");  // cut off, and no letter of the font: no crash
  small.Fill(9, 9, 5, 5, {1, 1, 1});
}

TEST(Heatmap, ColoursGrowLighter) {
  double last = -1;
  for (int i = 0; i <= 100; ++i) {
    const Colour colour = HeatColour(i / 100.0);
    const double light = 0.3 * colour.red + 0.59 * colour.green + 0.11 * colour.blue;
    EXPECT_GT(light, last) << i;
    last = light;
  }
  EXPECT_EQ(HeatColour(-1), HeatColour(0));
  EXPECT_EQ(HeatColour(2), HeatColour(1));
  EXPECT_EQ(ShortLength(8192), "8K");
  EXPECT_EQ(ShortLength(1536), "1.5K");
  EXPECT_EQ(ShortLength(300), "300");
}

size_t Pixels(const Canvas& canvas, Colour colour) {
  size_t count = 0;
  for (size_t y = 0; y < canvas.height(); ++y)
    for (size_t x = 0; x < canvas.width(); ++x) count += canvas.At(x, y) == colour ? 1 : 0;
  return count;
}

TEST(Heatmap, HasAPanelForEachFamilyAndMethod) {
  const NeedlePlan plan{
      .lengths = {512, 1024}, .facts = {}, .n = 4, .families = {NeedleFamily::kSingle, NeedleFamily::kWords}};
  NeedleResult good, bad;
  for (const NeedleFamily family : plan.families)
    for (const int64_t length : plan.lengths) {
      NeedleCell cell{.family = family, .length = length, .facts = DefaultFacts(family)};
      cell.bins.resize(family == NeedleFamily::kWords ? 1 : 4, {.n = 1, .found = 1});
      cell.score = {{4, 4}, 4.0};
      good.cells.push_back(cell);
      for (NeedleCell::Count& bin : cell.bins) bin = {.n = 1, .found = 0};
      cell.score = {{4, 0}, 0.0};
      if (length == 1024) cell.bins.back() = {};  // no case
      bad.cells.push_back(cell);
    }
  const Heatmap map = HeatmapOf(plan, {"full", "other"}, {&good, &bad});
  EXPECT_EQ(map.rows, (std::vector<std::string>{"single", "words"}));
  EXPECT_EQ(map.lengths, (std::vector<std::string>{"512", "1K"}));
  ASSERT_EQ(map.panels[0].size(), 2u);
  EXPECT_EQ(map.panels[0][0].accuracy, 1);
  EXPECT_EQ(map.panels[1][1].accuracy, 0);
  const Canvas canvas = DrawHeatmap(map);
  // As many cells found as not found, but for those without a case and the text on them.
  const size_t found = Pixels(canvas, HeatColour(1)), missed = Pixels(canvas, HeatColour(0));
  EXPECT_GT(missed, 20000u);
  EXPECT_GT(found, missed);
  EXPECT_LT(found, 2 * missed);
  for (size_t x = 0; x < canvas.width(); ++x) {  // nothing runs over the edge
    EXPECT_EQ(canvas.At(x, 0), (Colour{255, 255, 255}));
    EXPECT_EQ(canvas.At(x, canvas.height() - 1), (Colour{255, 255, 255}));
  }
  for (size_t y = 0; y < canvas.height(); ++y) EXPECT_EQ(canvas.At(canvas.width() - 1, y), (Colour{255, 255, 255}));
}

}  // namespace
}  // namespace infinigen
