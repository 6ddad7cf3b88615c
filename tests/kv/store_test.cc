// Stored keys and values: cases worked out by hand, random rows within the error bound of kv/view.h, and the addresses
// of entries.
#include "kv/store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <set>
#include <vector>

#include "kv/view.h"

namespace infinigen {
namespace {

using Bytes = std::vector<uint8_t>;

Bytes Stored(StoreType type, const std::vector<float>& row) {
  Bytes bytes(StoredBytes(type, std::ssize(row)) + 1, 0xee);
  StoreRow(type, row, reinterpret_cast<std::byte*>(bytes.data()));
  EXPECT_EQ(bytes.back(), 0xee) << "written past the row";
  bytes.pop_back();
  return bytes;
}
std::vector<float> Loaded(StoreType type, const Bytes& bytes, size_t dim) {
  std::vector<float> row(dim);
  LoadRow(type, reinterpret_cast<const std::byte*>(bytes.data()), row);
  return row;
}
std::vector<float> ThereAndBack(StoreType type, const std::vector<float>& row) {
  return Loaded(type, Stored(type, row), row.size());
}
GroupHeader HeaderOf(const Bytes& bytes, size_t group) {
  GroupHeader header;
  std::memcpy(&header, bytes.data() + group * sizeof(header), sizeof(header));
  return header;
}

TEST(Store, Sizes) {
  EXPECT_EQ(StoredBytes(StoreType::kF32, 64), 256u);
  EXPECT_EQ(StoredBytes(StoreType::kF16, 64), 128u);
  EXPECT_EQ(StoredBytes(StoreType::kBF16, 64), 128u);
  EXPECT_EQ(StoredBytes(StoreType::kInt8, 64), 68u);
  EXPECT_EQ(StoredBytes(StoreType::kInt4, 64), 36u);
  EXPECT_EQ(StoredBytes(StoreType::kInt8, 128), 136u);
  EXPECT_EQ(StoredBytes(StoreType::kInt4, 128), 72u);
  EXPECT_EQ(StoredBytes(StoreType::kInt8, 75), 8u + 75u) << "two groups";
  EXPECT_EQ(StoredBytes(StoreType::kInt4, 75), 8u + 38u) << "a whole byte for the last code";
  EXPECT_EQ(StoredBytes(StoreType::kInt6, 64), 36u + 16u);
  EXPECT_EQ(StoredBytes(StoreType::kInt6, 128), 72u + 32u);
  EXPECT_EQ(StoredBytes(StoreType::kInt6, 75), 8u + 38u + 24u) << "eight bytes of high bits for 32 codes";
}

TEST(Store, EntriesOfInt4HaveKeysOfInt6) {
  const EntryLayout layout{.type = StoreType::kInt4, .kv_heads = 3, .head_dim = 75};
  EXPECT_EQ(layout.key_bytes(), 70u);
  EXPECT_EQ(layout.value_bytes(), 46u);
  EXPECT_EQ(layout.entry_bytes(), 116u);
  EXPECT_EQ(layout.row_bytes(), 348u);
  EXPECT_EQ(layout.extent_bytes(), 256u * 348u);
  for (const StoreType type : kStoreTypes) {
    const EntryLayout any{.type = type, .kv_heads = 1, .head_dim = 64};
    EXPECT_EQ(any.value_type(), type);
    EXPECT_EQ(any.key_type(), type == StoreType::kInt4 ? StoreType::kInt6 : type);
    EXPECT_EQ(any.turned(), type == StoreType::kInt4);
    EXPECT_EQ(any.entry_bytes() % 8, 0u) << "GPUs copy entries in pieces of 8 bytes";
  }
}

TEST(Store, NamesAndTypes) {
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    EXPECT_EQ(Name(StoreTypeOf(type)), Name(type));
    EXPECT_EQ(StoredBytes(StoreTypeOf(type), 7), 7 * SizeOf(type));
    EXPECT_FALSE(IsQuantised(StoreTypeOf(type)));
  }
  EXPECT_EQ(Name(StoreType::kInt8), "int8");
  EXPECT_EQ(Name(StoreType::kInt4), "int4");
  EXPECT_EQ(Name(StoreType::kInt6), "int6");
}

TEST(Store, FloatsRoundAsTheirTypeDoes) {
  const std::vector<float> row = {0.1f, -3.0f, 1e-7f, 65519.0f, -0.0f};
  for (size_t i = 0; i < row.size(); ++i) {
    EXPECT_EQ(ThereAndBack(StoreType::kF32, row)[i], row[i]);
    EXPECT_EQ(ThereAndBack(StoreType::kF16, row)[i], ToFloat(ToF16(row[i])));
    EXPECT_EQ(ThereAndBack(StoreType::kBF16, row)[i], ToFloat(ToBF16(row[i])));
  }
}

// ---- Worked out by hand. As f16, 1.0 is 0x3c00, 0.5 is 0x3800, -8 is 0xc800.

TEST(Store, Int4CodesLieLowHalfFirst) {
  const std::vector<float> row = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const Bytes expected = {0x00, 0x3c, 0x00, 0x00, 0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe};
  EXPECT_EQ(Stored(StoreType::kInt4, row), expected) << "scale 1, minimum 0";
  EXPECT_EQ(ThereAndBack(StoreType::kInt4, row), row);
  const Bytes odd = {0x00, 0x3c, 0x00, 0x00, 0xf0, 0x03};
  EXPECT_EQ(Stored(StoreType::kInt4, {0, 15, 3}), odd) << "the last high half is zero";
}

// Codes 0 to 15 and their high bits: four codes in a byte, the bytes in the order 0, 2, 1, 3.
TEST(Store, Int6HighBitsFollowTheLowBits) {
  std::vector<float> row(18, 0.0f);
  for (size_t i = 0; i < 16; ++i) row[i] = static_cast<float>(i + (i / 4) * 16);  // high bits: the number of the four
  row[16] = 63;
  row[17] = 33;
  Bytes expected = {0x00, 0x3c, 0x00, 0x00, 0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe, 0x1f};
  for (const uint8_t high : {0x00, 0xaa, 0x55, 0xff, 0x0b, 0x00, 0x00, 0x00}) expected.push_back(high);
  EXPECT_EQ(Stored(StoreType::kInt6, row), expected) << "scale 1, minimum 0";
  EXPECT_EQ(ThereAndBack(StoreType::kInt6, row), row);
}

TEST(Store, Int8RoundsHalvesToEven) {
  // [-8, 247] in 255 steps: scale 1.
  const std::vector<float> row = {-8, 247, 3, 3.4f, 3.5f, 4.5f, 3.6f};
  const Bytes expected = {0x00, 0x3c, 0x00, 0xc8, 0, 255, 11, 11, 12, 12, 12};
  EXPECT_EQ(Stored(StoreType::kInt8, row), expected);
  EXPECT_EQ(ThereAndBack(StoreType::kInt8, row), (std::vector<float>{-8, 247, 3, 3, 4, 4, 4}));
}

TEST(Store, GroupsAreIndependent) {
  std::vector<float> row(64, 100.0f);
  row[7] = -155.0f;
  row.push_back(0.25f);
  row.push_back(7.75f);
  const Bytes int4 = Stored(StoreType::kInt4, row);
  EXPECT_EQ(int4.size(), 8u + 33u);
  EXPECT_EQ(ToFloat(HeaderOf(int4, 0).scale), 17.0f);
  EXPECT_EQ(ToFloat(HeaderOf(int4, 0).minimum), -155.0f);
  EXPECT_EQ(ToFloat(HeaderOf(int4, 1).scale), 0.5f);
  EXPECT_EQ(ToFloat(HeaderOf(int4, 1).minimum), 0.25f);
  EXPECT_EQ(int4[8 + 3], 0x0f) << "code 7 is the minimum, its neighbour the maximum";
  EXPECT_EQ(int4.back(), 0xf0);
  EXPECT_EQ(ThereAndBack(StoreType::kInt4, row), row);
  EXPECT_EQ(ThereAndBack(StoreType::kInt8, {row.begin(), row.begin() + 64}),
            (std::vector<float>(row.begin(), row.begin() + 64)));
}

TEST(Store, ConstantGroups) {
  for (const StoreType type : {StoreType::kInt8, StoreType::kInt4, StoreType::kInt6}) {
    for (const float x : {0.0f, 1.5f, -1.5f, 65504.0f, -65504.0f, 0x1p-24f}) {  // exact in f16
      const Bytes bytes = Stored(type, std::vector<float>(5, x));
      EXPECT_EQ(HeaderOf(bytes, 0).scale.bits, 0);
      EXPECT_TRUE(std::all_of(bytes.begin() + 4, bytes.end(), [](uint8_t code) { return code == 0; }));
      EXPECT_EQ(Loaded(type, bytes, 5), std::vector<float>(5, x));
    }
    for (const float x : {0.1f, -0.1f, 1000.3f, -1e-6f})
      for (const float back : ThereAndBack(type, std::vector<float>(3, x)))
        EXPECT_NEAR(back, x, std::fabs(x) * 0x1p-10f + 0x1p-24f) << "as good as f16";
  }
}

TEST(Store, ZerosHaveNoSign) {
  for (const StoreType type : {StoreType::kInt8, StoreType::kInt4, StoreType::kInt6}) {
    const Bytes nothing(StoredBytes(type, 2), 0);
    EXPECT_EQ(Stored(type, {-0.0f, 0.0f}), nothing);
    EXPECT_EQ(Stored(type, {0.0f, -0.0f}), nothing);
    EXPECT_EQ(Stored(type, {-0.0f, -0.0f}), nothing);
  }
}

TEST(Store, NaNAndNumbersBeyondF16) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (const StoreType type : {StoreType::kInt8, StoreType::kInt4, StoreType::kInt6}) {
    const std::vector<float> wide = {inf, -inf, nan, 1e38f, -1e38f, 1000.0f, 0.0f};
    const std::vector<float> clamped = {65504, -65504, 0, 65504, -65504, 1000, 0};
    EXPECT_EQ(Stored(type, wide), Stored(type, clamped));
    const float half = ToFloat(HeaderOf(Stored(type, wide), 0).scale) / 2;
    EXPECT_LE(half, type == StoreType::kInt8 ? 257.0f : type == StoreType::kInt6 ? 1040.0f : 4368.0f);
    for (size_t i = 0; i < wide.size(); ++i) EXPECT_NEAR(ThereAndBack(type, wide)[i], clamped[i], half * 1.0001f);
    EXPECT_EQ(ThereAndBack(type, {nan, nan}), (std::vector<float>{0, 0}));
    // Tiny numbers: half of the smallest scale.
    for (const float tiny : {1e-45f, -1e-45f, 1e-30f, -1e-30f, 3e-8f, -3e-8f})
      EXPECT_NEAR(ThereAndBack(type, {tiny, 0.0f})[0], tiny, 0x1p-25f);
  }
}

// ---- Random rows: error at most half a scale plus f32 rounding. The scale is the range / largest code, rounded up.

TEST(Store, RandomRowsComeBackWithinHalfAScale) {
  std::mt19937 engine(7);
  std::normal_distribution<float> normal;
  for (const StoreType type : {StoreType::kInt8, StoreType::kInt4, StoreType::kInt6}) {
    for (const size_t dim : {1u, 2u, 7u, 63u, 64u, 65u, 75u, 128u, 200u}) {
      for (const float scale : {1e-7f, 1e-3f, 1.0f, 300.0f}) {
        for (const float offset : {0.0f, 3.0f, -10.0f}) {
          std::vector<float> row(dim);
          for (float& x : row) x = normal(engine) * scale + offset * scale;
          const Bytes bytes = Stored(type, row);
          const std::vector<float> back = Loaded(type, bytes, dim);
          for (size_t first = 0; first < dim; first += 64) {
            const auto begin = row.begin() + static_cast<ptrdiff_t>(first);
            const auto [low, high] =
                std::minmax_element(begin, begin + static_cast<ptrdiff_t>(std::min<size_t>(64, dim - first)));
            const GroupHeader header = HeaderOf(bytes, first / 64);
            const float step = ToFloat(header.scale), minimum = ToFloat(header.minimum);
            ASSERT_LE(minimum, *low);
            ASSERT_NEAR(minimum, *low, std::fabs(*low) * 0x1p-10f + 0x1p-24f);
            ASSERT_LE(step, (*high - minimum) / static_cast<float>(LargestCode(type)) * (1 + 0x1p-10f) + 0x1p-24f);
            for (size_t i = first; i < std::min(dim, first + 64); ++i)
              ASSERT_NEAR(back[i], row[i], step * 0.50001f + std::fabs(row[i]) * 0x1p-22f)
                  << Name(type) << " dim " << dim << " scale " << scale << " offset " << offset << " at " << i;
          }
        }
      }
    }
  }
}

TEST(Store, RowsNeedNoAlignment) {
  std::vector<float> row(130);
  for (size_t i = 0; i < row.size(); ++i) row[i] = std::sin(static_cast<float>(i * i));
  for (const StoreType type :
       {StoreType::kF32, StoreType::kF16, StoreType::kBF16, StoreType::kInt8, StoreType::kInt4, StoreType::kInt6}) {
    const Bytes aligned = Stored(type, row);
    Bytes shifted(aligned.size() + 1);
    StoreRow(type, row, reinterpret_cast<std::byte*>(shifted.data() + 1));
    EXPECT_TRUE(std::equal(aligned.begin(), aligned.end(), shifted.begin() + 1));
    std::vector<float> back(row.size());
    LoadRow(type, reinterpret_cast<const std::byte*>(shifted.data() + 1), back);
    EXPECT_EQ(back, Loaded(type, aligned, row.size()));
  }
}

// ---- addresses of entries ----

TEST(LayerEntries, AddressesAreDistinctAndRowsAscend) {
  const EntryLayout layout{.type = StoreType::kBF16, .kv_heads = 3, .head_dim = 8};
  EXPECT_EQ(layout.entry_bytes(), 32u);
  EXPECT_EQ(layout.row_bytes(), 96u);
  EXPECT_EQ(layout.extent_bytes(), 256u * 96u);

  std::vector<std::byte> memory(4 * layout.extent_bytes());
  // Two sequences whose extents are out of order; the quota of the second ends inside its second extent.
  const std::vector<std::byte*> table = {&memory[2 * layout.extent_bytes()], &memory[0],
                                         &memory[3 * layout.extent_bytes()], &memory[layout.extent_bytes()]};
  const std::vector<int32_t> quotas = {512, 300};
  const LayerEntries entries{.layout = layout, .extents = table.data(), .extents_per_slot = 2, .quotas = quotas.data()};

  std::set<std::byte*> seen;
  for (int64_t slot = 0; slot < 2; ++slot) {
    for (int64_t head = 0; head < 3; ++head) {
      for (int64_t row = 0; row < quotas[static_cast<size_t>(slot)]; ++row) {
        std::byte* entry = entries.Entry(slot, head, row);
        EXPECT_TRUE(seen.insert(entry).second);
        ASSERT_GE(entry, memory.data());
        ASSERT_LE(entry + layout.entry_bytes(), memory.data() + memory.size());
        if (row % kExtentTokens != 0) {
          EXPECT_EQ(entry, entries.Entry(slot, head, row - 1) + layout.entry_bytes());
        }
      }
    }
  }
  EXPECT_EQ(seen.size(), 3u * (512u + 300u));
  // The short extent has no gaps: 44 rows of three heads.
  EXPECT_EQ(entries.Entry(1, 2, 299) + layout.entry_bytes(), table[3] + 44 * layout.row_bytes());
}

}  // namespace
}  // namespace infinigen
