#include "tensor/weight_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace infinigen {
namespace {

using testing::HasSubstr;

std::string Refusal(WeightType type, int64_t rows, int64_t cols) {
  const Result<WeightView> view = WeightView::Make(nullptr, type, rows, cols);
  return view.ok() ? "" : view.error().message;
}

TEST(WeightView, SizesFollowFromBlocks) {
  const std::byte byte{};
  const WeightView f32(&byte, WeightType::kF32, 3, 5), bf16(&byte, WeightType::kBF16, 3, 5);
  EXPECT_EQ(f32.row_bytes, 20);
  EXPECT_EQ(f32.bytes(), 60);
  EXPECT_EQ(bf16.bytes(), 30);
  EXPECT_EQ(bf16.row(2) - bf16.data, 20);
  const WeightView blocks(&byte, WeightType::kQ8_0, 3, 96);
  EXPECT_EQ(blocks.row_bytes, 3 * 34);
  EXPECT_EQ(blocks.bytes(), 9 * 34);
  EXPECT_TRUE(blocks.is_packed());
  EXPECT_EQ(WeightView().bytes(), 0);
}

TEST(WeightView, OfATensorKeepsItsGaps) {
  std::vector<float> numbers(12);
  const Tensor tensor{reinterpret_cast<std::byte*>(numbers.data()), DType::kF32, 3, 3, 4};
  const WeightView view{ConstTensor(tensor)};
  EXPECT_EQ(view.row_bytes, 16);
  EXPECT_EQ(view.as<float>(2), numbers.data() + 8);
  EXPECT_FALSE(view.is_packed());
}

TEST(WeightView, RefusesExtentsWithoutASize) {
  EXPECT_EQ(Refusal(WeightType::kF16, 3, 5), "");
  EXPECT_EQ(Refusal(WeightType::kF16, 0, 0), "");
  EXPECT_THAT(Refusal(WeightType::kQ8_0, 3, 33),
              HasSubstr("33 numbers is not a whole number of q8_0 blocks (of 32 numbers each)"));
  EXPECT_THAT(Refusal(WeightType::kF32, -1, 5), HasSubstr("-1 x 5"));
  EXPECT_THAT(Refusal(WeightType::kF32, 1, INT64_MAX), HasSubstr("overflow"));
  EXPECT_THAT(Refusal(WeightType::kF32, int64_t{1} << 31, int64_t{1} << 31), HasSubstr("overflow"));
  EXPECT_THAT(Refusal(WeightType::kQ8_0, int64_t{1} << 40, int64_t{1} << 40), HasSubstr("overflow"));
}

TEST(WeightView, TypesHaveNamesAndAlignments) {
  EXPECT_EQ(Name(WeightType::kF32), "f32");
  EXPECT_EQ(Name(WeightType::kQ8_0), "q8_0");
  EXPECT_EQ(AlignmentOf(WeightType::kF32), 4u);
  EXPECT_EQ(AlignmentOf(WeightType::kBF16), 2u);
  EXPECT_EQ(AlignmentOf(WeightType::kQ8_0), 2u);
  EXPECT_FALSE(IsPlain(WeightType::kQ8_0));
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    EXPECT_EQ(Name(WeightTypeOf(type)), Name(type));
    EXPECT_EQ(FormatOf(WeightTypeOf(type)).block_bytes, static_cast<int64_t>(SizeOf(type)));
    EXPECT_EQ(PlainTypeOf(WeightTypeOf(type)), type);
  }
}

template <class T>
std::vector<std::byte> BytesOf(const std::vector<T>& values, size_t offset) {
  std::vector<std::byte> bytes(offset + values.size() * sizeof(T));
  std::memcpy(bytes.data() + offset, values.data(), values.size() * sizeof(T));
  return bytes;
}

// Matrices [2][3], also with unaligned bytes.
TEST(DecodeRow, ReadsPlainTypes) {
  const std::vector<float> numbers = {1, -2, 0.5f, 3, 65504, -0.25f};
  for (const size_t offset : {0, 1}) {
    std::vector<F16> halves;
    std::vector<BF16> brains;
    for (const float number : numbers) {
      halves.push_back(ToF16(number));
      brains.push_back(ToBF16(number));
    }
    const std::vector<std::byte> f32 = BytesOf(numbers, offset), f16 = BytesOf(halves, offset),
                                 bf16 = BytesOf(brains, offset);
    std::vector<float> row(3);
    DecodeRow(WeightView(f32.data() + offset, WeightType::kF32, 2, 3), 1, row);
    EXPECT_EQ(row, std::vector<float>({3, 65504, -0.25f}));
    DecodeRow(WeightView(f16.data() + offset, WeightType::kF16, 2, 3), 1, row);
    EXPECT_EQ(row, std::vector<float>({3, 65504, -0.25f}));
    DecodeRow(WeightView(bf16.data() + offset, WeightType::kBF16, 2, 3), 0, row);
    EXPECT_EQ(row, std::vector<float>({1, -2, 0.5f}));
  }
}

TEST(DecodeRow, Q8_0IsScaleTimesCode) {
  constexpr size_t kOffset = 1, kBlock = 34;
  std::vector<std::byte> bytes(kOffset + 4 * kBlock);  // [2][64]
  const float scales[] = {0.5f, -2.0f, 0x1p-24f, 0.0f};
  for (size_t block = 0; block < 4; ++block) {
    const F16 scale = ToF16(scales[block]);
    std::memcpy(bytes.data() + kOffset + block * kBlock, &scale, 2);
    for (size_t i = 0; i < 32; ++i)
      bytes[kOffset + block * kBlock + 2 + i] = static_cast<std::byte>(static_cast<int8_t>(i == 0 ? -128 : i * 4 - 1));
  }
  const WeightView weight(bytes.data() + kOffset, WeightType::kQ8_0, 2, 64);
  std::vector<float> row(64);
  for (int64_t r = 0; r < 2; ++r) {
    DecodeRow(weight, r, row);
    for (size_t i = 0; i < 64; ++i) {
      const float code = i % 32 == 0 ? -128.0f : static_cast<float>(i % 32) * 4 - 1;
      EXPECT_EQ(row[i], scales[static_cast<size_t>(r) * 2 + i / 32] * code) << r << " " << i;
    }
  }
}

}  // namespace
}  // namespace infinigen
