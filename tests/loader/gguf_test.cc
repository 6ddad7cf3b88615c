// GGUF files: what is read, and that every wrong number is refused with file, place and reason.
#include "loader/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>

#include "loader/gguf_files.h"
#include "loader/gguf_source.h"
#include "loader/model_files.h"

namespace infinigen {
namespace {

using test::GgufBytes;
using test::GgufKey;
using test::GgufRow;
using test::MessageOf;
using test::Raw;
using test::TempDir;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

Result<GgufHeader> Parse(std::string_view file) {
  return ParseGguf({reinterpret_cast<const std::byte*>(file.data()), file.size()}, "m.gguf");
}

std::string Floats(int count) {
  std::string bytes;
  for (int i = 0; i < count; ++i) bytes += Raw(static_cast<float>(i));
  return bytes;
}

TEST(Gguf, ReadsMetadataOfEveryKind) {
  const std::string file = GgufBytes({{"u8", GgufValueType::kUint8, Raw(uint8_t{200})},
                                      {"i8", GgufValueType::kInt8, Raw(int8_t{-3})},
                                      {"u16", GgufValueType::kUint16, Raw(uint16_t{60000})},
                                      {"i16", GgufValueType::kInt16, Raw(int16_t{-300})},
                                      test::U32("u32", 4'000'000'000u),
                                      {"i32", GgufValueType::kInt32, Raw(int32_t{-5})},
                                      test::F32("f32", 0.5f),
                                      test::Bool("bool", true),
                                      test::Text("text", "a\nb"),
                                      test::Texts("texts", {"x", "", "yz"}),
                                      {"u64", GgufValueType::kUint64, Raw(UINT64_MAX)},
                                      {"i64", GgufValueType::kInt64, Raw(INT64_MIN)},
                                      {"f64", GgufValueType::kFloat64, Raw(0.25)},
                                      test::I32s("ints", {1, -2})},
                                     {}, "");
  const Result<GgufHeader> header = Parse(file);
  ASSERT_TRUE(header.ok()) << MessageOf(header);
  const GgufMetadata& metadata = header->metadata;
  EXPECT_EQ(metadata.entries().size(), 14u);
  EXPECT_EQ(metadata.Unsigned("u8").value(), 200u);
  EXPECT_EQ(metadata.Find("i8")->AsSigned(), -3);
  EXPECT_EQ(metadata.Unsigned("u16").value(), 60000u);
  EXPECT_EQ(metadata.Find("i16")->AsSigned(), -300);
  EXPECT_EQ(metadata.Unsigned("u32").value(), 4'000'000'000u);
  EXPECT_EQ(metadata.Number("f32").value(), 0.5);
  EXPECT_EQ(metadata.Number("f64").value(), 0.25);
  EXPECT_EQ(metadata.Bool("bool").value(), true);
  EXPECT_EQ(metadata.String("text").value(), "a\nb");
  EXPECT_THAT(metadata.Strings("texts").value().value(), ElementsAre("x", "", "yz"));
  EXPECT_THAT(metadata.Integers("ints").value().value(), ElementsAre(1, -2));
  EXPECT_EQ(metadata.Find("i64")->AsSigned(), INT64_MIN);
  EXPECT_EQ(metadata.Unsigned("none").value(), std::nullopt);
  EXPECT_THAT(MessageOf(metadata.Unsigned("i32")), AllOf(HasSubstr("m.gguf"), HasSubstr("'i32' is -5")));
  EXPECT_THAT(MessageOf(metadata.Unsigned("u64")), HasSubstr("'u64' is 18446744073709551615"));
  EXPECT_THAT(MessageOf(metadata.String("ints")), HasSubstr("is [1, -2], expected a string"));
  EXPECT_EQ(metadata.Find("text")->Shown(), "'a\\x0ab'") << "one line";
}

TEST(Gguf, ShapesAreOutermostFirst) {
  const std::string file = GgufBytes({}, {{"b", {2, 3}, 0, 32}, {"a", {4}, 0, 0}}, Floats(14), 2);
  const Result<GgufHeader> header = Parse(file);
  ASSERT_TRUE(header.ok()) << MessageOf(header);
  EXPECT_EQ(header->version, 2u);
  ASSERT_EQ(header->tensors.size(), 2u);
  EXPECT_EQ(header->tensors[0].name, "a");
  EXPECT_THAT(header->tensors[1].shape(), ElementsAre(3, 2));
  EXPECT_EQ(header->tensors[1].bytes, 24u);
  EXPECT_EQ(header->data_begin % 32, 0u);
}

TEST(Gguf, EveryTruncationIsRefused) {
  const std::string file = GgufBytes({test::Text("k", "v"), test::Texts("a", {"x", "y"})}, {{"t", {4}}}, Floats(4));
  ASSERT_TRUE(Parse(file).ok());
  for (size_t length = 0; length < file.size(); ++length) {
    const std::string message = MessageOf(Parse(std::string_view(file).substr(0, length)));
    EXPECT_THAT(message, HasSubstr("m.gguf: ")) << length;
    EXPECT_EQ(message.find('\n'), std::string::npos);
  }
}

struct Refusal {
  std::string file;
  const char* reason;
};

TEST(Gguf, RefusesWrongHeaders) {
  const std::string good = GgufBytes({}, {}, "");
  const auto with = [&](size_t at, const std::string& bytes) {
    return std::string(good).replace(at, bytes.size(), bytes);
  };
  const Refusal refusals[] = {
      {"", "does not start with 'GGUF'"},
      {with(0, "GGML"), "does not start with 'GGUF'"},
      {with(4, Raw(uint32_t{1})), "version 1"},
      {with(4, Raw(uint32_t{4})), "version 4"},
      {with(4, Raw(uint32_t{0x03000000})), "big-endian"},
      {with(8, Raw(uint64_t{1} << 60)), "at most 65536"},
      {with(16, Raw(UINT64_MAX)), "at most 65536"},
      {with(16, Raw(uint64_t{60000})), "is empty"},
  };
  for (const Refusal& refusal : refusals) EXPECT_THAT(MessageOf(Parse(refusal.file)), HasSubstr(refusal.reason));
}

TEST(Gguf, RefusesWrongMetadata) {
  std::string nested = Raw(uint8_t{1});
  for (int depth = 0; depth < 6; ++depth)
    nested = test::ArrayHead(depth == 0 ? GgufValueType::kUint8 : GgufValueType::kArray, 1) + nested;
  const struct {
    std::vector<GgufKey> keys;
    const char* reason;
  } refusals[] = {
      {{test::U32("k", 1), test::U32("k", 2)}, "key 'k' occurs twice"},
      {{test::U32("", 1)}, "is empty"},
      {{test::U32(std::string(2000, 'k'), 1)}, "at most 1024"},
      {{{"k", static_cast<GgufValueType>(13), Raw(uint64_t{0})}}, "unknown value type 13"},
      {{{"k", GgufValueType::kBool, Raw(uint8_t{2})}}, "must be 0 or 1"},
      {{{"k", GgufValueType::kString, Raw(UINT64_MAX)}}, "needs 18446744073709551615 bytes"},
      {{{"k", GgufValueType::kArray, test::ArrayHead(GgufValueType::kFloat64, uint64_t{1} << 61)}}, "elements of type"},
      {{{"k", GgufValueType::kArray, test::ArrayHead(GgufValueType::kString, uint64_t{1} << 61)}}, "truncated"},
      {{{"k", GgufValueType::kArray, test::ArrayHead(static_cast<GgufValueType>(99), 1)}}, "unknown value type 99"},
      {{{"k", GgufValueType::kArray, nested}}, "nested more than 4 deep"},
      {{test::U32("general.alignment", 0)}, "'general.alignment' is 0"},
      {{test::U32("general.alignment", 48)}, "a power of two"},
      {{test::Text("general.alignment", "x")}, "'general.alignment' is 'x'"},
      {{{"bad\nkey\xff", static_cast<GgufValueType>(77), ""}}, "'bad\\x0akey\\xff'"},
  };
  for (const auto& refusal : refusals) {
    const std::string message = MessageOf(Parse(GgufBytes(refusal.keys, {}, "")));
    EXPECT_THAT(message, HasSubstr(refusal.reason));
    EXPECT_EQ(message.find('\n'), std::string::npos);
  }
}

TEST(Gguf, RefusesWrongTensors) {
  const struct {
    std::vector<GgufRow> tensors;
    const char* reason;
  } refusals[] = {
      {{{"t", {4}}, {"t", {4}, 0, 32}}, "'t' occurs twice"},
      {{{"", {4}}}, "is empty"},
      {{{std::string(300, 't'), {4}}}, "at most 256"},
      {{{"t", {}}}, "0 dimensions"},
      {{{"t", {1, 1, 1, 1, 1}}}, "5 dimensions"},
      {{{"t", {4, 0}}}, "dimension 1 is 0"},
      {{{"t", {uint64_t{1} << 63}}}, "dimension 0 is"},
      {{{"t", {uint64_t{1} << 40, uint64_t{1} << 40}}}, "overflows"},
      {{{"t", {4}, 4}}, "the type Q4_2 (4) was withdrawn"},
      {{{"t", {4}, 31}}, "the type Q4_0_4_4 (31) was withdrawn"},
      {{{"t", {4}, 38}}, "the type IQ4_NL_8_8 (38) was withdrawn"},
      {{{"t", {4}, 9999}}, "unknown tensor type 9999"},
      {{{"t", {48}, 8}}, "a row of 48 numbers is not a whole number of Q8_0 blocks"},
      {{{"t", {4}, 0, 4}}, "not a multiple of the alignment 32"},
      {{{"t", {4}, 0, uint64_t{1} << 40}}, "exceed the data section of 64 bytes"},
      {{{"t", {4}, 0, UINT64_MAX - 31}}, "exceed the data section"},
      {{{"t", {20}, 0, UINT64_MAX - 31}}, "80 bytes at the offset 18446744073709551584 end beyond 64 bits"},
      {{{"t", {20}}}, "exceed the data section of 64 bytes"},
      {{{"t", {9}}, {"u", {4}, 0, 32}}, "inside tensor 't', which ends at 36"},
  };
  for (const auto& refusal : refusals)
    EXPECT_THAT(MessageOf(Parse(GgufBytes({}, refusal.tensors, Floats(16)))),
                AllOf(HasSubstr("m.gguf: "), HasSubstr(refusal.reason)));
}

TEST(Gguf, TypesOfTheEngineAreFoundByName) {
  for (size_t i = 0; i < kWeightFormats.size(); ++i) {
    const auto type = static_cast<WeightType>(i);
    EXPECT_EQ(WeightTypeOf(GgufTensorTypeOf(type)), type) << Name(type);
  }
  EXPECT_EQ(WeightTypeOf(*FindGgufTensorType(17)), std::nullopt) << "IQ2_XS";
}

// ---- several files ----

std::vector<GgufKey> SplitKeys(uint16_t part, uint16_t parts, int32_t tensors) {
  return {{"split.no", GgufValueType::kUint16, Raw(part)},
          {"split.count", GgufValueType::kUint16, Raw(parts)},
          {"split.tensors.count", GgufValueType::kInt32, Raw(tensors)}};
}

struct SplitModel {
  TempDir dir;
  std::string first = dir.File("m-00001-of-00002.gguf");
  std::string second = dir.File("m-00002-of-00002.gguf");

  void Write(const std::vector<GgufKey>& one, const std::vector<GgufKey>& two, const char* name = "b") const {
    dir.Write("m-00001-of-00002.gguf", GgufBytes(one, {{"a", {4}}}, Floats(4)));
    dir.Write("m-00002-of-00002.gguf", GgufBytes(two, {{name, {2, 3}}}, Floats(6)));
  }
};

TEST(GgufSource, ReadsAllPartsFromAnyOfThem) {
  const SplitModel model;
  std::vector<GgufKey> keys = SplitKeys(0, 2, 2);
  keys.push_back(test::Text("general.name", "whole"));
  model.Write(keys, SplitKeys(1, 2, 2));
  for (const std::string& path : {model.first, model.second}) {
    const Result<GgufSource> source = GgufSource::Open(path);
    ASSERT_TRUE(source.ok()) << MessageOf(source);
    ASSERT_EQ(source->tensors().size(), 2u);
    EXPECT_EQ(source->Find("b")->path, model.second);
    EXPECT_THAT(source->Find("b")->shape, ElementsAre(3, 2));
    EXPECT_EQ(source->Find("b")->type, WeightType::kF32);
    EXPECT_EQ(source->metadata().String("general.name").value(), "whole");
    EXPECT_EQ(source->naming(), TensorNaming::kGguf);
  }
}

TEST(GgufSource, RefusesPartsThatDoNotBelongTogether) {
  const SplitModel model;
  model.Write(SplitKeys(0, 2, 2), SplitKeys(0, 2, 2));
  EXPECT_THAT(MessageOf(GgufSource::Open(model.first)), AllOf(HasSubstr(model.second), HasSubstr("'split.no' is 0")));
  model.Write(SplitKeys(0, 2, 2), SplitKeys(1, 3, 2));
  EXPECT_THAT(MessageOf(GgufSource::Open(model.first)), HasSubstr("'split.count' is 3"));
  model.Write(SplitKeys(0, 2, 7), SplitKeys(1, 2, 7));
  EXPECT_THAT(MessageOf(GgufSource::Open(model.first)), HasSubstr("'split.tensors.count' is 7"));
  model.Write(SplitKeys(0, 2, 2), SplitKeys(1, 2, 2), "a");
  EXPECT_THAT(MessageOf(GgufSource::Open(model.first)), HasSubstr("'a' is also in"));
  model.Write(SplitKeys(0, 3, 2), SplitKeys(1, 3, 2));
  EXPECT_THAT(MessageOf(GgufSource::Open(model.first)), HasSubstr("one of 3 parts"));
  std::filesystem::remove(model.second);
  model.dir.Write("m-00001-of-00002.gguf", GgufBytes(SplitKeys(0, 2, 2), {{"a", {4}}}, Floats(4)));
  EXPECT_THAT(MessageOf(GgufSource::Open(model.first)), HasSubstr(model.second));
}

TEST(GgufSource, NamesOfParts) {
  EXPECT_EQ(ParseGgufPartName("d/m-00002-of-00012.gguf").parts, 12u);
  for (const char* name : {"d/m-00002-of-00012.gguf", "d/M-00002-of-00012.GGUF"})
    EXPECT_EQ(FormatGgufPartName(ParseGgufPartName(name)), name);
  for (const char* name :
       {"m.gguf", "m-00002-of-00012.bin", "m-0002-of-00012.gguf", "m-00000-of-00012.gguf", "-of-.gguf"})
    EXPECT_EQ(ParseGgufPartName(name).parts, 0u) << name;
}

}  // namespace
}  // namespace infinigen
