// DecodeRow of block types against golden/blocks.json, which tools/make_block_golden.py makes with the Python package
// `gguf`: equal bit for bit.
#include "tensor/block_formats.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <string>
#include <vector>

#include "tensor/golden_json.h"

namespace infinigen {
namespace {

TEST(BlockFormats, EqualThePackageGguf) {
  const nlohmann::json golden = GoldenJson("blocks.json");
  for (size_t t = 0; t < kWeightFormats.size(); ++t) {
    const auto type = static_cast<WeightType>(t);
    if (IsPlain(type)) continue;
    const WeightFormat& format = FormatOf(type);
    SCOPED_TRACE(format.name);
    const nlohmann::json& entry = golden.at(std::string(format.name));
    const std::vector<std::byte> stored = BytesFromHex(entry.at("blocks"));
    const std::vector<float> want = FloatsFromHex(entry.at("numbers"));
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
