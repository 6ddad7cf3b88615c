#include "cli/png.h"

#include <algorithm>
#include <array>

#include "base/check.h"

namespace infinigen {
namespace {

// Lengths of matches, RFC 1951: code 257 + i stands for kLengthBase[i] and more, the rest in kLengthExtra[i] bits.
constexpr std::array<uint16_t, 29> kLengthBase = {3,  4,  5,  6,  7,  8,  9,  10, 11,  13,  15,  17,  19,  23, 27,
                                                  31, 35, 43, 51, 59, 67, 83, 99, 115, 131, 163, 195, 227, 258};
constexpr std::array<uint8_t, 29> kLengthExtra = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2,
                                                  2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0};
constexpr size_t kLeastMatch = 3, kLongestMatch = 258;
constexpr size_t kPixelBytes = 3;
constexpr uint32_t kEndOfBlock = 256, kFirstLength = 257;

class BitWriter {
 public:
  // The lowest bit first.
  void Bits(uint32_t value, int count) {
    pending_ |= static_cast<uint64_t>(value) << filled_;
    for (filled_ += count; filled_ >= 8; filled_ -= 8, pending_ >>= 8) bytes_ += static_cast<char>(pending_ & 0xFF);
  }
  // A code of the fixed table, its highest bit first.
  void Symbol(uint32_t symbol) {
    if (symbol < 144) return Code(0x30 + symbol, 8);
    if (symbol < 256) return Code(0x190 + symbol - 144, 9);
    if (symbol < 280) return Code(symbol - 256, 7);
    Code(0xC0 + symbol - 280, 8);
  }
  // Distances up to 4 are codes of their own.
  void Distance(uint32_t code) { Code(code, 5); }
  std::string Finish() {
    Bits(0, 7);
    return std::move(bytes_);
  }

 private:
  void Code(uint32_t code, int count) {
    for (int bit = count - 1; bit >= 0; --bit) Bits((code >> bit) & 1, 1);
  }

  std::string bytes_;
  uint64_t pending_ = 0;
  int filled_ = 0;
};

std::string BigEndian(uint32_t value) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>((value >> shift) & 0xFF);
  return bytes;
}

uint32_t Adler32(std::string_view bytes) {
  uint32_t a = 1, b = 0;
  for (const char c : bytes) {
    a = (a + static_cast<unsigned char>(c)) % 65521;
    b = (b + a) % 65521;
  }
  return b << 16 | a;
}

std::string Chunk(std::string_view type, std::string_view data) {
  const std::string body = std::string(type) + std::string(data);
  return BigEndian(static_cast<uint32_t>(data.size())) + body + BigEndian(Crc32(body));
}

}  // namespace

uint32_t Crc32(std::string_view bytes) {
  uint32_t crc = 0xFFFFFFFF;
  for (const char c : bytes) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0xEDB88320 : 0);
  }
  return ~crc;
}

std::string ZlibRuns(std::string_view bytes) {
  BitWriter writer;
  writer.Bits(0b011, 3);  // the last block, with the fixed codes
  for (size_t i = 0; i < bytes.size();) {
    size_t length = 0, distance = 0;
    for (const size_t back : {size_t{1}, kPixelBytes}) {
      if (back > i) continue;
      size_t same = 0;
      while (same < kLongestMatch && i + same < bytes.size() && bytes[i + same] == bytes[i + same - back]) ++same;
      if (same > length) length = same, distance = back;
    }
    if (length < kLeastMatch) {
      writer.Symbol(static_cast<unsigned char>(bytes[i++]));
      continue;
    }
    const size_t code =
        static_cast<size_t>(std::upper_bound(kLengthBase.begin(), kLengthBase.end(), length) - kLengthBase.begin() - 1);
    writer.Symbol(kFirstLength + static_cast<uint32_t>(code));
    writer.Bits(static_cast<uint32_t>(length - kLengthBase[code]), kLengthExtra[code]);
    writer.Distance(static_cast<uint32_t>(distance - 1));
    i += length;
  }
  writer.Symbol(kEndOfBlock);
  return "\x78\x01" + writer.Finish() + BigEndian(Adler32(bytes));
}

std::string EncodePng(size_t width, size_t height, std::span<const uint8_t> rgb) {
  CHECK(width > 0 && height > 0 && rgb.size() == width * height * kPixelBytes);
  constexpr char kUp = 2;  // the filter: what a row differs by from the one above
  std::string rows;
  rows.reserve(height * (width * kPixelBytes + 1));
  for (size_t y = 0; y < height; ++y) {
    rows += kUp;
    const std::span<const uint8_t> row = rgb.subspan(y * width * kPixelBytes, width * kPixelBytes);
    for (size_t i = 0; i < row.size(); ++i)
      rows += static_cast<char>(row[i] - (y > 0 ? rgb[(y - 1) * width * kPixelBytes + i] : 0));
  }
  const std::string head =
      BigEndian(static_cast<uint32_t>(width)) + BigEndian(static_cast<uint32_t>(height)) +
      std::string("\x08\x02\x00\x00\x00", 5);  // 8 bits, RGB, deflate, filters by row, not interlaced
  return std::string("\x89PNG\r\n\x1a\n") + Chunk("IHDR", head) + Chunk("IDAT", ZlibRuns(rows)) + Chunk("IEND", "");
}

}  // namespace infinigen
