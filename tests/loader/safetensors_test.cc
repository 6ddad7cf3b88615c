#include "loader/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "loader/model_files.h"
#include "loader/tensor_source.h"

namespace infinigen {
namespace {

using test::MessageOf;
using test::Safetensors;
using test::TempDir;
using testing::AllOf;
using testing::HasSubstr;

std::string HeaderRefusal(const std::string& bytes) {
  const TempDir dir;
  dir.Write("m.safetensors", bytes);
  const Result<SafetensorsFile> file = SafetensorsFile::Open(dir.File("m.safetensors"));
  if (file.ok()) return "";
  EXPECT_THAT(file.error().message, HasSubstr("m.safetensors")) << "names the file";
  EXPECT_EQ(file.error().message.find('\n'), std::string::npos) << "one line";
  return file.error().message;
}

TEST(Safetensors, ShowsTensorsOfEveryUsedType) {
  const TempDir dir;
  dir.Write("m.safetensors", test::SafetensorsOf({{"b", {2, 3}, "F32"}, {"a", {4}, "BF16"}, {"c", {1, 1, 5}, "F16"}}));
  const Result<SafetensorsFile> file = SafetensorsFile::Open(dir.File("m.safetensors"));
  ASSERT_TRUE(file.ok()) << MessageOf(file);
  ASSERT_EQ(file->tensors().size(), 3u);
  EXPECT_EQ(file->tensors()[0].name, "a") << "sorted by name";
  const TensorEntry* b = file->Find("b");
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(b->type(), WeightType::kF32);
  EXPECT_EQ(FormatShape(b->shape()), "[2,3]");
  ASSERT_EQ(file->Data(*b).size(), 24u);
  float second = 0;
  std::memcpy(&second, file->Data(*b).data() + 4, 4);
  EXPECT_EQ(second, 2.0f / 16.0f);
  EXPECT_EQ(file->Find("a")->type(), WeightType::kBF16);
  EXPECT_EQ(file->Find("c")->type(), WeightType::kF16);
  EXPECT_EQ(file->Find("d"), nullptr);
}

TEST(Safetensors, ListsOtherTypesWithoutAComputeType) {
  const TempDir dir;
  dir.Write("m.safetensors", Safetensors(R"({"i":{"dtype":"I64","shape":[1],"data_offsets":[0,8]},
    "f4":{"dtype":"F4","shape":[2],"data_offsets":[8,9]},"s":{"dtype":"BOOL","shape":[],"data_offsets":[9,10]}})",
                                         std::string(10, 'x')));
  const Result<SafetensorsFile> file = SafetensorsFile::Open(dir.File("m.safetensors"));
  ASSERT_TRUE(file.ok()) << MessageOf(file);
  EXPECT_EQ(file->Find("i")->type(), std::nullopt);
  EXPECT_EQ(file->Find("i")->dtype, "I64");
  EXPECT_EQ(file->Find("s")->rank, 0u);
}

TEST(Safetensors, AcceptsEmptyTensorsAndPadding) {
  EXPECT_EQ(HeaderRefusal(Safetensors("{\"a\":{\"dtype\":\"F32\",\"shape\":[0,3],\"data_offsets\":[0,0]}}   ", "")),
            "");
  EXPECT_EQ(HeaderRefusal(Safetensors("{}", "")), "");
}

TEST(Safetensors, RefusesBadHeaderSizes) {
  EXPECT_THAT(HeaderRefusal(""), HasSubstr("0 bytes is too short"));
  EXPECT_THAT(HeaderRefusal("1234567"), HasSubstr("7 bytes is too short"));
  EXPECT_THAT(HeaderRefusal(std::string("\x10\0\0\0\0\0\0\0{}", 10)),
              HasSubstr("header length is 16 bytes, but only 2 bytes follow"));
  EXPECT_THAT(HeaderRefusal(std::string(16, '\xff')),
              HasSubstr("header length is 18446744073709551615 bytes, more than the allowed 100000000"));
  EXPECT_THAT(HeaderRefusal(Safetensors("", "")), HasSubstr("does not start with '{'"));
  EXPECT_THAT(HeaderRefusal(Safetensors(" {}", "")), HasSubstr("does not start with '{'"));
}

TEST(Safetensors, RefusesBadJson) {
  EXPECT_THAT(HeaderRefusal(Safetensors("{\"a\":", "")), HasSubstr("invalid JSON"));
  EXPECT_THAT(HeaderRefusal(Safetensors("{} {}", "")), HasSubstr("invalid JSON"));
  EXPECT_THAT(HeaderRefusal(Safetensors(std::string("{}\0{}", 5), "")), HasSubstr("zero byte at byte 10"));
  EXPECT_THAT(HeaderRefusal(Safetensors("{\"a\xff\":1}", "")), HasSubstr("invalid JSON"));
  EXPECT_THAT(HeaderRefusal(Safetensors("{\"a\":[]}", "")), HasSubstr("tensor 'a': unexpected array"));
  EXPECT_THAT(HeaderRefusal(Safetensors("{\"a\":" + std::string(40, '['), "")), HasSubstr("nested deeper than"));
  EXPECT_THAT(HeaderRefusal(Safetensors("{\"\\n\\u001b[31m\":3}", "")), HasSubstr("tensor '\\x0a\\x1b[31m'"));
}

TEST(Safetensors, RefusesBadMetadata) {
  EXPECT_THAT(HeaderRefusal(Safetensors(R"({"__metadata__":{"a":1}})", "")),
              HasSubstr("__metadata__: unexpected number"));
  EXPECT_THAT(HeaderRefusal(Safetensors(R"({"__metadata__":"x"})", "")), HasSubstr("__metadata__: unexpected string"));
  EXPECT_THAT(HeaderRefusal(Safetensors(R"({"__metadata__":{},"__metadata__":{}})", "")), HasSubstr("occurs twice"));
}

// The error for one tensor 't' with the given fields and 24 bytes of data; empty when accepted.
std::string RefusalOf(const std::string& fields) {
  return HeaderRefusal(Safetensors("{\"t\":{" + fields + "}}", std::string(24, 'x')));
}

TEST(Safetensors, RefusesBadFields) {
  EXPECT_EQ(RefusalOf(R"("dtype":"F32","shape":[2,3],"data_offsets":[0,24])"), "") << "a correct header";
  EXPECT_THAT(RefusalOf(R"("shape":[6],"data_offsets":[0,24])"), HasSubstr("tensor 't': field 'dtype' is missing"));
  EXPECT_THAT(RefusalOf(R"("dtype":"F32","data_offsets":[0,24])"), HasSubstr("field 'shape' is missing"));
  EXPECT_THAT(RefusalOf(R"("dtype":"F32","shape":[6])"), HasSubstr("field 'data_offsets' is missing"));
  EXPECT_THAT(RefusalOf(R"("dtype":"F32","dtype":"F16","shape":[6],"data_offsets":[0,24])"),
              HasSubstr("field 'dtype' occurs twice"));
  EXPECT_THAT(RefusalOf(R"("dtype":"Q4_K","shape":[6],"data_offsets":[0,24])"), HasSubstr("unknown dtype 'Q4_K'"));
  EXPECT_THAT(RefusalOf(R"("strides":[1])"), HasSubstr("tensor 't': unknown field 'strides'"));
  EXPECT_THAT(RefusalOf(R"("dtype":3)"), HasSubstr("field 'dtype': unexpected number"));
  EXPECT_THAT(RefusalOf(R"("dtype":"F32","shape":[-6],"data_offsets":[0,24])"),
              HasSubstr("field 'shape': unexpected negative number"));
  EXPECT_THAT(RefusalOf(R"("dtype":"F32","shape":[6.0],"data_offsets":[0,24])"), HasSubstr("unexpected fraction"));
  EXPECT_THAT(RefusalOf(R"("dtype":"F32","shape":[[6]],"data_offsets":[0,24])"), HasSubstr("unexpected array"));
  EXPECT_THAT(RefusalOf(R"("dtype":"F32","shape":[1,1,1,1,1,1,1,1,6],"data_offsets":[0,24])"),
              HasSubstr("more than 8 dimensions"));
  EXPECT_THAT(RefusalOf(R"("dtype":"F32","shape":[6],"data_offsets":[0])"),
              HasSubstr("1 of two numbers; expected [begin, end]"));
  EXPECT_THAT(RefusalOf(R"("dtype":"F32","shape":[6],"data_offsets":[0,24,25])"), HasSubstr("more than two numbers"));
  EXPECT_THAT(RefusalOf(R"("dtype":"F32","shape":[99999999999999999999999],"data_offsets":[0,24])"),
              HasSubstr("unexpected fraction"));
}

TEST(Safetensors, RefusesShapesThatDoNotFitTheirBytes) {
  EXPECT_THAT(RefusalOf(R"("dtype":"F32","shape":[7],"data_offsets":[0,24])"),
              HasSubstr("span 24 bytes, but shape [7] and dtype F32 need 28"));
  EXPECT_THAT(RefusalOf(R"("dtype":"F32","shape":[6],"data_offsets":[24,0])"), HasSubstr("end is before begin"));
  EXPECT_THAT(RefusalOf(R"("dtype":"F32","shape":[7],"data_offsets":[0,28])"),
              HasSubstr("exceed the data section of 24 bytes"));
  EXPECT_THAT(RefusalOf(R"("dtype":"F32","shape":[4294967296,4294967296,6],"data_offsets":[0,24])"),
              HasSubstr("overflow"));
  EXPECT_THAT(RefusalOf(R"("dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,24])"),
              HasSubstr("overflow"));
  EXPECT_THAT(RefusalOf(R"("dtype":"F4","shape":[3],"data_offsets":[0,1])"), HasSubstr("not a whole number of bytes"));
}

TEST(Safetensors, RefusesOverlapHolesAndRemainders) {
  const std::string first = R"("a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]})";
  const auto second = [&](int begin, int end) {
    return HeaderRefusal(Safetensors(fmt::format(R"({{{},"b":{{"dtype":"U8","shape":[{}],"data_offsets":[{},{}]}}}})",
                                                 first, end - begin, begin, end),
                                     "12345678"));
  };
  EXPECT_EQ(second(4, 8), "");
  EXPECT_THAT(second(3, 8), AllOf(HasSubstr("tensor 'b'"), HasSubstr("overlap")));
  EXPECT_THAT(second(0, 8), HasSubstr("overlap"));
  EXPECT_THAT(second(5, 8), AllOf(HasSubstr("tensor 'b'"), HasSubstr("gap of 1 bytes that belong to no tensor")));
  EXPECT_THAT(second(4, 7), HasSubstr("1 bytes after the last tensor"));
  EXPECT_THAT(HeaderRefusal(Safetensors("{" + first + "," + first + "}", "1234")),
              HasSubstr("tensor 'a' occurs twice"));
}

TEST(Safetensors, BoundsNamesAndCounts) {
  EXPECT_THAT(HeaderRefusal(Safetensors("{\"" + std::string(300, 'n') + "\":{}}", "")),
              HasSubstr("300 bytes; at most 256"));
  std::string header = "{";
  for (int i = 0; i <= 65536; ++i)
    header += fmt::format("{}\"{}\":{{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}", i == 0 ? "" : ",", i);
  EXPECT_THAT(HeaderRefusal(Safetensors(header + "}", "")), HasSubstr("more than 65536 tensors"));
}

}  // namespace
}  // namespace infinigen
