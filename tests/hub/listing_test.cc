// The server's listing and a model's shard index.
#include "hub/listing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace infinigen {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const std::string kCommit(40, 'c');
const std::string kSha1(40, '1');
const std::string kSha256(64, '2');

std::string Small(const std::string& path, const std::string& size = "5") {
  return R"({"rfilename": ")" + path + R"(", "size": )" + size + R"(, "blobId": ")" + kSha1 + R"("})";
}

std::string Large(const std::string& path, const std::string& size, const std::string& lfs_size) {
  return R"({"rfilename": ")" + path + R"(", "size": )" + size + R"(, "blobId": ")" + kSha1 +
         R"(", "lfs": {"sha256": ")" + kSha256 + R"(", "size": )" + lfs_size + R"(, "pointerSize": 9}})";
}

Result<HubListing> Parse(const std::string& siblings, const std::string& rest = "") {
  return ParseListing(R"({"id": "a/b", "sha": ")" + kCommit + R"(", "siblings": [)" + siblings + "]" + rest + "}",
                      "a/b");
}

void ExpectRefused(const Result<HubListing>& listing, const char* part) {
  ASSERT_FALSE(listing.ok()) << part;
  EXPECT_THAT(listing.error().message, HasSubstr("a/b"));
  EXPECT_THAT(listing.error().message, HasSubstr(part));
}

TEST(HubListing, HasPathsSizesAndHashes) {
  const Result<HubListing> listing =
      Parse(Large("b/m.gguf", "7", "7") + "," + Small("a.json"),
            R"(, "cardData": {"siblings": [{"rfilename": "../x"}], "sha": "x"}, "tags": [[], {}, null, 1.5, true])");
  ASSERT_TRUE(listing.ok()) << listing.error().message;
  EXPECT_EQ(listing->commit, kCommit);
  ASSERT_EQ(listing->files.size(), 2u);
  EXPECT_EQ(listing->files[0].path, "a.json");
  EXPECT_EQ(listing->files[0].hash, kSha1);
  EXPECT_FALSE(listing->files[0].is_sha256());
  EXPECT_EQ(listing->Find("b/m.gguf")->bytes, 7u);
  EXPECT_EQ(listing->Find("b/m.gguf")->hash, kSha256);
  EXPECT_EQ(listing->Find("b"), nullptr);
  EXPECT_TRUE(Parse("").value().files.empty());
}

TEST(HubListing, RefusesWhatIsWrong) {
  ExpectRefused(Parse(Small("../x")), "file name");
  ExpectRefused(Parse(Small("a") + "," + Small("a")), "twice");
  ExpectRefused(Parse(Small("a", "-1")), "size");
  ExpectRefused(Parse(Small("a", "null")), "no size");
  ExpectRefused(Parse(Small("a", "2e30")), "size");
  ExpectRefused(Parse(Large("a", "7", "null")), "no size");
  ExpectRefused(Parse(R"({"rfilename": "a", "size": 1, "blobId": "../../x"})"), "hash");
  ExpectRefused(Parse(R"({"rfilename": "a", "size": 1})"), "blobId");
  ExpectRefused(Parse(R"({"size": 1})"), "rfilename");
  ExpectRefused(Parse("1"), "unexpected");
  ExpectRefused(Parse("[]"), "unexpected");
  ExpectRefused(Parse(R"({"x": [)" + std::string(2000, '1') + "]}"), "");
  ExpectRefused(Parse("", R"(, "siblings": [])"), "siblings");
  ExpectRefused(ParseListing(R"({"siblings": []})", "a/b"), "commit");
  ExpectRefused(ParseListing(R"({"sha": "../x", "siblings": []})", "a/b"), "commit");
  ExpectRefused(ParseListing(R"({"sha": ")" + kCommit + R"("})", "a/b"), "no list of files");
  for (const char* text : {"", "[]", "1", "\"x\"", "{", "<html>"}) ExpectRefused(ParseListing(text, "a/b"), "");
}

TEST(HubListing, EntriesAreBounded) {
  std::string many;
  for (int i = 0; i < 300; ++i) many += (i == 0 ? "" : ",") + std::string("1");
  ExpectRefused(Parse(R"({"rfilename": "a", "x": [)" + many + "]}"), "too large");
}

TEST(ShardNames, AreThoseOfTheWeightMap) {
  const Result<std::vector<std::string>> shards = ParseShardNames(
      R"({"metadata": {"total_size": 5, "weight_map": {"x": "no"}},
          "weight_map": {"a": "m-2.safetensors", "b": "m-1.safetensors", "c": "m-2.safetensors"}})",
      "i");
  ASSERT_TRUE(shards.ok()) << shards.error().message;
  EXPECT_THAT(*shards, ElementsAre("m-1.safetensors", "m-2.safetensors"));
}

TEST(ShardNames, StayInTheirDirectory) {
  for (const char* text : {R"({"weight_map": {"a": "../m.safetensors"}})",
                           R"({"weight_map": {"a": "d/m.safetensors"}})", R"({"weight_map": {"a": "m.bin"}})",
                           R"({"weight_map": {"a": 1}})", R"({"weight_map": {"a": ["m.safetensors"]}})",
                           R"({"weight_map": []})", R"({"weight_map": {}, "weight_map": {}})", "{}", "[]", "", "\"x\""})
    EXPECT_FALSE(ParseShardNames(text, "i").ok()) << text;
}

}  // namespace
}  // namespace infinigen
