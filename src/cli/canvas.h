// A picture in memory, for charts: filled rectangles and text in a small font of its own (5 x 7 dots, printable ASCII).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace infinigen {

struct Colour {
  uint8_t red = 0, green = 0, blue = 0;

  friend bool operator==(const Colour&, const Colour&) = default;
};

class Canvas {
 public:
  Canvas(size_t width, size_t height, Colour background);

  size_t width() const { return width_; }
  size_t height() const { return height_; }
  Colour At(size_t x, size_t y) const;

  // What lies outside is cut off.
  void Fill(size_t x, size_t y, size_t width, size_t height, Colour colour);
  // The upper left corner of the first letter is at (x, y); a dot of the font has `scale` pixels on each side. Bytes
  // that the font lacks become question marks.
  void Text(size_t x, size_t y, size_t scale, Colour colour, std::string_view text);

  std::string Png() const;

 private:
  size_t width_, height_;
  std::vector<uint8_t> rgb_;  // [height][width][3]
};

// Of letters, without the gap after the last one; and of capitals. Descenders go two dots below.
size_t TextWidth(std::string_view text, size_t scale);
inline size_t TextHeight(size_t scale) { return 7 * scale; }

}  // namespace infinigen
