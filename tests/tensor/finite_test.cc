#include "tensor/finite.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "tensor/random_blocks.h"

namespace infinigen {
namespace {

// Three rows of 512 numbers with random codes and finite scales.
std::vector<std::byte> RandomRows(WeightType type, uint32_t seed) {
  const WeightFormat& format = FormatOf(type);
  std::mt19937 random(seed);
  std::vector<std::byte> bytes(static_cast<size_t>(3 * 512 / format.block_numbers * format.block_bytes));
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random() & (IsPlain(type) ? 0x3F : 0xFF));
  for (size_t at = 0; !IsPlain(type) && at < bytes.size(); at += static_cast<size_t>(format.block_bytes))
    SetBlockScales(type, 0.1f, bytes.data() + at);
  return bytes;
}

// Every pair of bytes is overwritten in turn: the answer is that of the decoded numbers.
TEST(FirstNotFinite, FindsWhatDecodesToNanOrInfinity) {
  for (size_t i = 0; i < kWeightFormats.size(); ++i) {
    const auto type = static_cast<WeightType>(i);
    if (type == WeightType::kMxfp4) continue;  // decodes its NaN to a large number
    const WeightFormat& format = FormatOf(type);
    const std::vector<std::byte> whole = RandomRows(type, static_cast<uint32_t>(i));
    EXPECT_EQ(FirstNotFinite(type, whole), std::nullopt) << format.name;
    int found = 0;
    for (size_t at = 0; at + 1 < 2 * static_cast<size_t>(format.block_bytes); ++at) {
      std::vector<std::byte> bytes = whole;
      const uint16_t infinity = type == WeightType::kBF16 || type == WeightType::kF32 ? 0x7F80 : 0x7C00;
      std::memcpy(bytes.data() + at, &infinity, sizeof(infinity));
      std::vector<float> numbers(512);
      DecodeRow(WeightView(bytes.data(), type, 3, 512), 0, numbers);
      const auto broken = std::ranges::find_if(numbers, [](float x) { return !std::isfinite(x); });
      const std::optional<int64_t> first = FirstNotFinite(type, bytes);
      if (broken == numbers.end()) continue;  // its factor may be zero, or the bytes are codes
      ++found;
      ASSERT_TRUE(first.has_value()) << format.name << " " << at;
      EXPECT_EQ(*first / format.block_numbers, (broken - numbers.begin()) / format.block_numbers) << format.name;
    }
    EXPECT_GT(found, 0) << format.name;
  }
}

TEST(FirstNotFinite, CodesAreNeverTakenForScales) {
  for (size_t i = 3; i < kWeightFormats.size(); ++i)
    for (uint32_t seed = 0; seed < 50; ++seed)
      EXPECT_EQ(FirstNotFinite(static_cast<WeightType>(i), RandomRows(static_cast<WeightType>(i), seed)), std::nullopt);
}

TEST(FirstNotFinite, KnowsTheNanOfMxfp4) {
  std::vector<std::byte> bytes = RandomRows(WeightType::kMxfp4, 1);
  bytes[17] = std::byte{0xFF};
  EXPECT_EQ(FirstNotFinite(WeightType::kMxfp4, bytes), 32);
}

TEST(AllFinite, LooksAtEveryNumber) {
  std::vector<float> numbers(10'000, 3e38f);
  EXPECT_TRUE(AllFinite(numbers));
  for (const size_t at : {0u, 4095u, 4096u, 9999u})
    for (const float broken : {NAN, INFINITY, -INFINITY}) {
      numbers[at] = broken;
      EXPECT_FALSE(AllFinite(numbers)) << at;
      numbers[at] = -1;
    }
}

}  // namespace
}  // namespace infinigen
