// Where the caches are, and what is found in them.
#include "hub/cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>

namespace infinigen {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

ReadVariable Variables(std::map<std::string, std::string> values) {
  return [values = std::move(values)](const char* name) {
    const auto found = values.find(name);
    return found == values.end() ? "" : found->second;
  };
}

TEST(CacheDirectories, FollowTheVariables) {
  EXPECT_EQ(OwnCacheDirectory(Variables({{"HOME", "/h"}})), "/h/.cache/infinigen");
  EXPECT_EQ(OwnCacheDirectory(Variables({{"HOME", "/h"}, {"XDG_CACHE_HOME", "/x"}})), "/x/infinigen");
  EXPECT_EQ(OwnCacheDirectory(Variables({{"HOME", "/h"}, {"XDG_CACHE_HOME", "relative"}})), "/h/.cache/infinigen");
  EXPECT_EQ(OwnCacheDirectory(Variables({{"XDG_CACHE_HOME", "/x"}, {"INFINIGEN_CACHE", "/i"}})), "/i");
  EXPECT_EQ(OwnCacheDirectory(Variables({})), "");
  EXPECT_EQ(ForeignCacheDirectory(Variables({{"HOME", "/h"}})), "/h/.cache/huggingface/hub");
  EXPECT_EQ(ForeignCacheDirectory(Variables({{"HOME", "/h"}, {"XDG_CACHE_HOME", "/x"}})), "/x/huggingface/hub");
  EXPECT_EQ(ForeignCacheDirectory(Variables({{"XDG_CACHE_HOME", "/x"}, {"HF_HOME", "/f"}})), "/f/hub");
  EXPECT_EQ(ForeignCacheDirectory(Variables({{"HF_HOME", "/f"}, {"HF_HUB_CACHE", "/c"}})), "/c");
  EXPECT_EQ(ForeignCacheDirectory(Variables({})), "");
}

class CacheTest : public testing::Test {
 protected:
  CacheTest() : root_(testing::TempDir() + "hub_cache_" + std::to_string(::getpid())), cache_(root_) {
    fs::remove_all(root_);
  }
  ~CacheTest() override { fs::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    fs::create_directories(fs::path(path).parent_path());
    std::ofstream(path, std::ios::binary) << text;
  }
  // A file of the snapshot `commit`, with its blob.
  void Add(const std::string& commit, const std::string& path, const std::string& text) {
    const std::string blob = cache_.Blob(name_, std::to_string(std::hash<std::string>()(path + text)));
    Write(blob, text);
    ASSERT_TRUE(cache_.Link(name_, commit, path, blob).ok());
  }
  std::string Missing(const HubName& name, bool guess = false, bool tokenizer = false) {
    const Result<std::string> found = cache_.Find(name, guess, tokenizer);
    return found.ok() ? "found " + *found : found.error().message;
  }

  const std::string root_, old_ = std::string(40, 'a'), new_ = std::string(40, 'b');
  const HubCache cache_;
  HubName name_{.org = "o", .name = "n"};
};

TEST_F(CacheTest, FindsACompleteDirectory) {
  EXPECT_THAT(Missing(name_), HasSubstr("revision main is missing"));
  Add(old_, "config.json", "{}");
  Add(old_, "model.safetensors.index.json", R"({"weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"}})");
  Add(old_, "m-1.safetensors", "x");
  ASSERT_TRUE(cache_.SetCommit(name_, old_).ok());
  EXPECT_THAT(Missing(name_), HasSubstr("'m-2.safetensors' is missing"));
  Add(old_, "m-2.safetensors", "y");
  const std::string snapshot = cache_.Snapshot(name_, old_);
  EXPECT_EQ(cache_.Find(name_, false, false).value(), snapshot);
  EXPECT_THAT(Missing(name_, false, true), HasSubstr("tokenizer is missing"));
  Add(old_, "tokenizer.json", "{}");
  EXPECT_EQ(cache_.Find(name_, false, true).value(), snapshot);
  name_.revision = old_;
  EXPECT_EQ(cache_.Find(name_, false, true).value(), snapshot);
  name_.revision = "v1";
  EXPECT_FALSE(cache_.Find(name_, false, true).ok());
  EXPECT_EQ(NameOfSnapshot(snapshot), "n");
  EXPECT_EQ(NameOfSnapshot(snapshot + "/"), "n");
  EXPECT_EQ(NameOfSnapshot(root_), "");
  EXPECT_TRUE(IsInSnapshot(snapshot + "/config.json"));
  EXPECT_FALSE(IsInSnapshot(root_ + "/models--o--n/x"));
}

TEST_F(CacheTest, FindsGgufFilesByName) {
  Add(old_, "d/m-Q8_0.gguf", "x");
  ASSERT_TRUE(cache_.SetCommit(name_, old_).ok());
  EXPECT_THAT(Missing(name_), HasSubstr("the server may have another file"));
  EXPECT_EQ(cache_.Find(name_, /*accept_guess=*/true, false).value(), cache_.Snapshot(name_, old_) + "/d/m-Q8_0.gguf");
  name_.wanted = "q8_0";
  EXPECT_TRUE(cache_.Find(name_, false, true).ok());
  name_.wanted = "Q4_0";
  EXPECT_THAT(Missing(name_), HasSubstr("m-Q8_0.gguf"));
}

TEST_F(CacheTest, ADamagedReferenceLeadsNowhere) {
  Write(cache_.Repository(name_) + "/refs/main", "../../../../etc");
  EXPECT_EQ(cache_.Commit(name_), "");
  Write(cache_.Repository(name_) + "/refs/main", old_ + "\n");
  EXPECT_EQ(cache_.Commit(name_), old_);
}

TEST_F(CacheTest, LinksAreReplacedAndTheCacheMayMove) {
  Add(old_, "d/config.json", "one");
  Add(old_, "d/config.json", "two");
  const std::string moved = root_ + "_moved";
  fs::rename(root_, moved);
  std::ifstream file(HubCache(moved).Snapshot(name_, old_) + "/d/config.json");
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), "two");
  fs::remove_all(moved);
}

TEST_F(CacheTest, ListsModelsAndPartialDownloads) {
  EXPECT_TRUE(ListModels(cache_).empty());
  EXPECT_TRUE(ListModels(HubCache("")).empty());
  Add(old_, "config.json", "{}");
  Add(old_, "model.safetensors", "12345");
  Add(old_, "README.md", "not counted");
  Add(new_, "m-00001-of-00002.gguf", "12");
  Add(new_, "m-00002-of-00002.gguf", "3");
  ASSERT_TRUE(cache_.SetCommit(name_, new_).ok());
  const std::string blob = cache_.Blob(name_, std::string(64, 'f'));
  ASSERT_TRUE(cache_.Link(name_, new_, "x-Q8_0.gguf", blob).ok());
  Write(blob + ".incomplete", "1234567");
  Write(root_ + "/models--p--q/blobs/" + std::string(64, 'e') + ".incomplete", "12");
  Write(root_ + "/datasets--a--b/refs/main", old_);
  const std::vector<CachedModel> models = ListModels(cache_);
  std::vector<std::string> shown;
  for (const CachedModel& model : models)
    shown.push_back(fmt::format("{} {} {} {}", model.name, model.form, model.bytes, model.complete));
  EXPECT_THAT(shown, testing::ElementsAre("hf:o/n:m-00001-of-00002.gguf GGUF 3 true", "hf:o/n:x-Q8_0.gguf  7 false",
                                          "hf:o/n@" + old_ + " safetensors 7 true", "hf:p/q  2 false"));
  // Each complete name opens what it lists.
  for (const CachedModel& model : models)
    if (model.complete) {
      EXPECT_EQ(cache_.Find(ParseHubName(model.name).value(), false, false).value(), model.path);
    }
}

}  // namespace
}  // namespace infinigen
