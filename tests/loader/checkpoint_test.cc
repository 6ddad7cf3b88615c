#include "loader/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "loader/model_files.h"

namespace infinigen {
namespace {

using test::MessageOf;
using test::SafetensorsOf;
using test::TempDir;
using testing::AllOf;
using testing::HasSubstr;

constexpr char kIndexName[] = "model.safetensors.index.json";

std::string IndexRefusal(std::string_view text) { return MessageOf(ParseShardIndex(text, "i.json")); }

TEST(ShardIndex, ReadsNamesAndShards) {
  const Result<ShardIndex> index = ParseShardIndex(
      R"({"metadata":{"total_size":12,"nested":[{"weight_map":1},null,true,-1,2.5]},
          "weight_map":{"b":"two.safetensors","a":"one.safetensors","c":"two.safetensors"}})",
      "i.json");
  ASSERT_TRUE(index.ok()) << MessageOf(index);
  EXPECT_THAT(index->shards, testing::ElementsAre("two.safetensors", "one.safetensors"));
  ASSERT_EQ(index->entries.size(), 3u);
  EXPECT_EQ(index->entries[0].tensor, "a");
  EXPECT_EQ(index->entries[0].shard, 1u);
  EXPECT_EQ(index->entries[2].shard, 0u);
}

TEST(ShardIndex, RefusesBadIndices) {
  EXPECT_THAT(IndexRefusal(""), HasSubstr("i.json: invalid JSON"));
  EXPECT_THAT(IndexRefusal("[]"), HasSubstr("unexpected array"));
  EXPECT_THAT(IndexRefusal("{}"), HasSubstr("field 'weight_map' is missing"));
  EXPECT_THAT(IndexRefusal(R"({"weight_map":{}})"), HasSubstr("is empty"));
  EXPECT_THAT(IndexRefusal(R"({"weight_map":[]})"), HasSubstr("weight_map: unexpected array"));
  EXPECT_THAT(IndexRefusal(R"({"weight_map":{"a":3}})"), HasSubstr("tensor 'a': unexpected number"));
  EXPECT_THAT(IndexRefusal(R"({"weights":{}})"), HasSubstr("unknown field 'weights'"));
  EXPECT_THAT(IndexRefusal(R"({"metadata":3})"), HasSubstr("metadata: unexpected number"));
  EXPECT_THAT(IndexRefusal(R"({"weight_map":{"a":"x.safetensors"},"weight_map":{}})"), HasSubstr("occurs twice"));
  EXPECT_THAT(IndexRefusal(R"({"weight_map":{"a":"x.safetensors","a":"y.safetensors"}})"),
              HasSubstr("tensor 'a' occurs twice"));
}

TEST(ShardIndex, KeepsShardsInTheDirectory) {
  for (const char* name : {"../x.safetensors", "/etc/x.safetensors", "a/b.safetensors", "..", ".", "", "x.bin",
                           ".safetensors", "a\\\\b.safetensors", "..safetensors", "a\\u0001.safetensors"}) {
    EXPECT_THAT(IndexRefusal(fmt::format(R"({{"weight_map":{{"a":"{}"}}}})", name)),
                AllOf(HasSubstr("tensor 'a'"), HasSubstr("not a file name")))
        << name;
  }
}

TEST(Checkpoint, FindsTensorsAcrossShards) {
  const TempDir dir;
  dir.Write("one.safetensors", SafetensorsOf({{"a", {2}}}));
  dir.Write("two.safetensors", SafetensorsOf({{"b", {3}}, {"c", {4}}}));
  dir.Write(kIndexName,
            R"({"weight_map":{"a":"one.safetensors","b":"two.safetensors","c":"two.safetensors"},"metadata":{}})");
  Result<Checkpoint> checkpoint = Checkpoint::Open(dir.path());
  ASSERT_TRUE(checkpoint.ok()) << MessageOf(checkpoint);
  ASSERT_NE(checkpoint->Find("a"), nullptr);
  EXPECT_EQ(checkpoint->Find("a")->bytes.size(), 8u);
  EXPECT_EQ(checkpoint->Find("d"), nullptr);
  EXPECT_EQ(checkpoint->Find(""), nullptr);
  EXPECT_EQ(checkpoint->where(), dir.path());
  const Checkpoint moved = std::move(*checkpoint);
  const StoredTensor* c = moved.Find("c");
  ASSERT_NE(c, nullptr);
  EXPECT_EQ(c->bytes.size(), 16u);
  EXPECT_EQ(c->path, dir.File("two.safetensors"));
  EXPECT_EQ(c->type_name, "F32");
  EXPECT_EQ(c->type, WeightType::kF32);
  EXPECT_THAT(c->shape, testing::ElementsAre(4));
  EXPECT_EQ(moved.tensors().size(), 3u);
}

TEST(Checkpoint, NamesMissingShardsAndTensors) {
  const TempDir dir;
  dir.Write(kIndexName, R"({"weight_map":{"a":"one.safetensors","b":"two.safetensors"}})");
  dir.Write("one.safetensors", SafetensorsOf({{"a", {2}}}));
  EXPECT_THAT(MessageOf(Checkpoint::Open(dir.path())), AllOf(HasSubstr("two.safetensors"), HasSubstr("is missing")));
  dir.Write("two.safetensors", SafetensorsOf({{"c", {2}}}));
  EXPECT_THAT(MessageOf(Checkpoint::Open(dir.path())),
              AllOf(HasSubstr("two.safetensors"), HasSubstr("tensor 'b' is missing")));
  dir.Write("two.safetensors", SafetensorsOf({{"b", {2}}, {"a", {2}}}));
  EXPECT_THAT(MessageOf(Checkpoint::Open(dir.path())), HasSubstr("tensor 'a' is also in"));
  dir.Write("two.safetensors", "garbage in a shard");
  EXPECT_THAT(MessageOf(Checkpoint::Open(dir.path())), HasSubstr("two.safetensors: header length is"));
}

TEST(Checkpoint, RefusesOtherFormatsByName) {
  const TempDir dir;
  EXPECT_THAT(MessageOf(Checkpoint::Open(dir.path())), HasSubstr("no weights"));
  dir.Write("weights.safetensors", SafetensorsOf({{"a", {2}}}));
  EXPECT_THAT(MessageOf(Checkpoint::Open(dir.path())), HasSubstr("weights.safetensors"));
  dir.Write("pytorch_model.bin", "x");
  EXPECT_THAT(MessageOf(Checkpoint::Open(dir.path())),
              AllOf(HasSubstr("pytorch_model.bin"), HasSubstr("save_pretrained")));
  dir.Write("model-q4.gguf", "x");
  EXPECT_THAT(MessageOf(Checkpoint::Open(dir.path())), AllOf(HasSubstr("model-q4.gguf"), HasSubstr("GGUF")));
  EXPECT_THAT(MessageOf(Checkpoint::Open(dir.File("nowhere"))), HasSubstr("not a directory"));
  dir.Write("a.safetensors.index.json", "{}");
  dir.Write("b.safetensors.index.json", "{}");
  EXPECT_THAT(MessageOf(Checkpoint::Open(dir.path())), HasSubstr("two index files"));
}

}  // namespace
}  // namespace infinigen
