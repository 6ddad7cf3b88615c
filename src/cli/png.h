// PNG, as much of it as a chart needs: eight bits a channel, red green blue, no library behind it.
//
// Charts are flat areas. Every row is stored as its difference from the row above, which makes most bytes 0, and runs
// of equal bytes or pixels become matches at distance 1 or 3 in a deflate block with the fixed codes: a chart of a
// million pixels takes a few ten kilobytes, without a search for matches or codes of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace infinigen {

// `rgb`: [height][width][3]. The file's bytes.
std::string EncodePng(size_t width, size_t height, std::span<const uint8_t> rgb);

// The parts, for tests: a zlib stream of `bytes`, and the checksum of a chunk.
std::string ZlibRuns(std::string_view bytes);
uint32_t Crc32(std::string_view bytes);

}  // namespace infinigen
