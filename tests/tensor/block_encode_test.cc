// EncodeRow against the quantisers of the Python package `gguf` (golden/encode.json) and, for the K types, of GGML,
// whose errors on the same numbers are written below.
#include "tensor/block_encode.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "tensor/finite.h"
#include "tensor/golden_json.h"

namespace infinigen {
namespace {

std::vector<std::byte> Encode(WeightType type, const std::vector<float>& numbers) {
  const WeightFormat& format = FormatOf(type);
  std::vector<std::byte> blocks(numbers.size() / static_cast<size_t>(format.block_numbers) *
                                static_cast<size_t>(format.block_bytes));
  EncodeRow(type, numbers, blocks.data());
  return blocks;
}

std::vector<float> RoundTrip(WeightType type, const std::vector<float>& numbers) {
  const std::vector<std::byte> blocks = Encode(type, numbers);
  std::vector<float> decoded(numbers.size());
  DecodeRow(WeightView(blocks.data(), type, 1, std::ssize(numbers)), 0, decoded);
  return decoded;
}

// Root mean square error over the root mean square of the numbers.
double RelativeError(const std::vector<float>& got, const std::vector<float>& numbers) {
  double errors = 0, squares = 0;
  for (size_t i = 0; i < numbers.size(); ++i) {
    errors += std::pow(static_cast<double>(got[i]) - numbers[i], 2);
    squares += std::pow(numbers[i], 2);
  }
  return std::sqrt(errors / squares);
}

std::vector<WeightType> Encoded() {
  std::vector<WeightType> types;
  for (size_t t = 0; t < kWeightFormats.size(); ++t)
    if (CanEncode(static_cast<WeightType>(t))) types.push_back(static_cast<WeightType>(t));
  return types;
}

TEST(BlockEncode, ErrorsAreThoseOfTheFieldsQuantisers) {
  const nlohmann::json golden = GoldenJson("encode.json");
  const std::vector<float> numbers = FloatsFromHex(golden.at("numbers"));
  ASSERT_EQ(numbers.size(), 2048u);
  std::map<std::string, double> errors = golden.at("errors");
  errors["q4_k"] = 0.08314;  // of quantize_row_q4_K_ref, and so on
  errors["q5_k"] = 0.04162;
  errors["q6_k"] = 0.02507;
  ASSERT_EQ(Encoded().size(), errors.size());
  for (const WeightType type : Encoded()) {
    const double error = RelativeError(RoundTrip(type, numbers), numbers);
    EXPECT_LT(error, 1.01 * errors.at(std::string(Name(type)))) << Name(type);
    EXPECT_GT(error, 0.8 * errors.at(std::string(Name(type)))) << Name(type) << ": better than the format allows";
  }
}

TEST(BlockEncode, Q8_0HasTheBytesOfThePackageGguf) {
  const nlohmann::json golden = GoldenJson("encode.json");
  EXPECT_EQ(Encode(WeightType::kQ8_0, FloatsFromHex(golden.at("numbers"))), BytesFromHex(golden.at("q8_0")));
}

// Numbers that a format can hold exactly come back exactly, and quantising twice changes nothing more.
TEST(BlockEncode, EdgeCasesComeBack) {
  for (const WeightType type : Encoded()) {
    SCOPED_TRACE(Name(type));
    const std::vector<float> zeros(512, 0.0f), same(512, 0.5f), negative(512, -0.5f);
    EXPECT_EQ(RoundTrip(type, zeros), zeros);
    EXPECT_LT(RelativeError(RoundTrip(type, same), same), 1e-3);
    EXPECT_LT(RelativeError(RoundTrip(type, negative), negative), 1e-3);
    std::vector<float> spike(512, 0.0f);
    spike[100] = -3.0f;
    spike[400] = 2.0f;
    EXPECT_LT(RelativeError(RoundTrip(type, spike), spike), 1e-2);
    const std::vector<float> tiny(512, 1e-9f);  // below the smallest f16 scale
    for (const float number : RoundTrip(type, tiny)) EXPECT_LT(std::fabs(number), 1e-4f);
    for (const float least : {1e-30f, 1e-38f, 1e-40f, 1e-45f})  // the last two have no finite inverse
      EXPECT_EQ(RoundTrip(type, std::vector<float>(512, least)), zeros) << least;
  }
}

// Numbers that no scale of the type can hold are never lost: the block's scale says so.
TEST(BlockEncode, TooLargeNumbersMakeTheScaleInfinite) {
  for (const WeightType type : Encoded()) {
    SCOPED_TRACE(Name(type));
    for (const float magnitude : {1e9f, 1.1e9f, 1e12f, 1e13f, 1e20f, 3e38f}) {
      for (const float number : {magnitude, -magnitude}) {
        std::vector<float> numbers(512, 0.25f);
        numbers[300] = number;
        const std::optional<int64_t> found = FirstNotFinite(type, Encode(type, numbers));
        ASSERT_TRUE(found.has_value()) << number;
        const int64_t block = FormatOf(type).block_numbers;
        EXPECT_EQ(*found, 300 / block * block) << number;
      }
    }
    std::vector<float> fits(512, 0.0f);
    fits[300] = -60000.0f;
    EXPECT_LT(RelativeError(RoundTrip(type, fits), fits), 0.02);
  }
}

}  // namespace
}  // namespace infinigen
