// DecodeRow of block types against golden/blocks.json, which tools/make_block_golden.py makes with the Python package
// `gguf`: equal bit for bit.
#include "tensor/block_formats.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace infinigen {
namespace {

std::vector<std::byte> FromHex(const std::string& hex) {
  std::vector<std::byte> bytes(hex.size() / 2);
  for (size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::byte>(std::stoi(hex.substr(2 * i, 2), nullptr, 16));
  return bytes;
}

nlohmann::json Golden() {
  std::ifstream file(INFINIGEN_TEST_DATA "/tensor/golden/blocks.json");
  return nlohmann::json::parse(file);
}

TEST(BlockFormats, EqualThePackageGguf) {
  const nlohmann::json golden = Golden();
  for (size_t t = 0; t < kWeightFormats.size(); ++t) {
    const auto type = static_cast<WeightType>(t);
    if (IsPlain(type)) continue;
    const WeightFormat& format = FormatOf(type);
    SCOPED_TRACE(format.name);
    const nlohmann::json& entry = golden.at(std::string(format.name));
    const std::vector<std::byte> stored = FromHex(entry.at("blocks")), bytes = FromHex(entry.at("numbers"));
    std::vector<float> want(bytes.size() / sizeof(float));
    std::memcpy(want.data(), bytes.data(), bytes.size());
    const auto blocks = static_cast<int64_t>(stored.size()) / format.block_bytes;
    ASSERT_GE(blocks, 4);
    ASSERT_EQ(std::ssize(want), blocks * format.block_numbers);
    // Two rows, at an odd address.
    std::vector<std::byte> shifted(stored.size() + 1);
    std::memcpy(shifted.data() + 1, stored.data(), stored.size());
    const WeightView weight(shifted.data() + 1, type, 2, blocks / 2 * format.block_numbers);
    std::vector<float> row(static_cast<size_t>(weight.cols));
    for (int64_t r = 0; r < 2; ++r) {
      DecodeRow(weight, r, row);
      for (size_t i = 0; i < row.size(); ++i)
        ASSERT_EQ(std::bit_cast<uint32_t>(row[i]),
                  std::bit_cast<uint32_t>(want[static_cast<size_t>(r) * row.size() + i]))
            << "row " << r << " number " << i;
    }
  }
}

TEST(BlockFormats, EveryNameIsFound) {
  for (size_t t = 0; t < kWeightFormats.size(); ++t)
    EXPECT_EQ(WeightTypeNamed(kWeightFormats[t].name), static_cast<WeightType>(t));
  EXPECT_EQ(WeightTypeNamed("q4_2"), std::nullopt);
}

TEST(BlockFormats, OffsetsBelongToTheFormatsWithMinima) {
  std::vector<std::byte> block(256, std::byte{0xff});
  for (size_t t = 0; t < kWeightFormats.size(); ++t) {
    const auto type = static_cast<WeightType>(t);
    if (IsPlain(type)) continue;
    UnpackedBlock unpacked;
    unpacked.offset.fill(7.0f);
    UnpackBlock(type, block.data(), unpacked);
    EXPECT_EQ(unpacked.offset[0] != 7.0f, HasOffsets(type)) << Name(type);
  }
}

}  // namespace
}  // namespace infinigen
