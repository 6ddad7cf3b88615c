// The predictions of full, kept on disk: the same bits without reading a window again; damage, limits and keys.
#include "eval/full_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>

#include "eval/perplexity.h"
#include "golden/golden_run.h"

namespace infinigen {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::IsEmpty;

class FullCacheTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "full_cache_test_" + testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    const std::string directory = INFINIGEN_TEST_DATA "/golden/models/llama_gqa_tied";
    for (const GoldenPrompt& prompt : LoadGolden(directory).value().prompts)
      if (prompt.ids.size() > text_.ids.size()) text_.ids = prompt.ids;
    text_.ids.resize(80);  // 32, 32 and 16 tokens
    text_.opening = {3};
    // Entries of bf16 are a method that differs from full.
    method_ = LoadModel(directory, {.threads = 1, .max_tokens = 32, .max_batch = 2, .kv_type = StoreType::kBF16});
    full_ = LoadModel(directory, {.threads = 1, .max_tokens = 32, .max_batch = 2, .kv_type = StoreType::kF32});
    full_->executor->instruments().ObservePrefill(
        [this](LayerId layer, const PrefillRows& unit) { read_ += layer.value() == 0 && unit.first_row == 0 ? 1 : 0; });
  }
  void TearDown() override { fs::remove_all(folder_); }

  FullCache Cache(int64_t from, uint64_t limit_bytes = 1 << 20, const std::string& key = "key") {
    const auto warn = [this](std::string_view message) { warnings_.emplace_back(message); };
    return {folder_, key, *full_->executor, from, limit_bytes, {.on_warning = warn}};
  }
  // Scores the text; read_ is then the number of windows that full began.
  PplResult Score(WindowSource* kept, int64_t from, PplMode mode = PplMode::kBatched) {
    read_ = 0;
    return ScoreText({method_->executor.get(), full_->executor.get(), kept}, text_,
                     {.context = 32, .from = from, .mode = mode}, {}, [](const PplResult&) {})
        .value();
  }
  std::vector<fs::path> Files() const {
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(folder_)) files.push_back(entry.path());
    return files;
  }

  std::string folder_;
  PplText text_;
  std::unique_ptr<LoadedModel> method_, full_;
  int64_t read_ = 0;
  std::vector<std::string> warnings_;
};

void ExpectSame(const PplResult& a, const PplResult& b) {
  EXPECT_EQ(a.window_nll, b.window_nll);
  EXPECT_EQ(a.window_other_nll, b.window_other_nll);
  EXPECT_EQ(a.window_kld, b.window_kld);
  EXPECT_EQ(a.same_top, b.same_top);
}

TEST_F(FullCacheTest, WindowsAreReadOnceAndTheBitsStay) {
  for (const int64_t from : {0, 10}) {
    const PplResult alone = Score(nullptr, from);
    ASSERT_EQ(read_, 3);
    EXPECT_GT(alone.kld, 0);
    for (const int64_t expected : {0, 3, 3}) {
      FullCache cache = Cache(from);
      ExpectSame(Score(&cache, from), alone);
      EXPECT_EQ(cache.hits(), expected);
      EXPECT_EQ(read_, 3 - expected);
    }
    FullCache cache = Cache(from);
    ExpectSame(Score(&cache, from, PplMode::kStep), alone);
    EXPECT_EQ(cache.hits(), 3);
    EXPECT_EQ(read_, 0) << "steps of several windows at once use it too";
  }
  EXPECT_THAT(warnings_, IsEmpty());
  EXPECT_EQ(Files().size(), 6u) << "another prompt is another prediction";
  EXPECT_EQ(full_->executor->instruments().pool_bytes(), 0u);
}

TEST_F(FullCacheTest, AnotherKeyIsAnotherPrediction) {
  FullCache one = Cache(0), other = Cache(0, 1 << 20, "another model");
  Score(&one, 0);
  Score(&other, 0);
  EXPECT_EQ(other.hits(), 0);
  EXPECT_EQ(read_, 3);
}

TEST_F(FullCacheTest, DamagedFilesAreMadeAgain) {
  const PplResult alone = Score(nullptr, 0);
  FullCache first = Cache(0);
  Score(&first, 0);
  const std::vector<fs::path> files = Files();
  ASSERT_EQ(files.size(), 3u);
  fs::resize_file(files[0], 100);
  std::fstream(files[1], std::ios::in | std::ios::out | std::ios::binary).seekp(500).put('x');
  std::fstream(files[2], std::ios::in | std::ios::out | std::ios::binary).put('x');  // not this kind of file
  FullCache second = Cache(0);
  ExpectSame(Score(&second, 0), alone);
  EXPECT_EQ(second.hits(), 0);
  EXPECT_EQ(warnings_.size(), 3u);
  for (const std::string& warning : warnings_) EXPECT_THAT(warning, HasSubstr("; it is made again"));
  FullCache third = Cache(0);
  ExpectSame(Score(&third, 0), alone);
  EXPECT_EQ(third.hits(), 3);
}

TEST_F(FullCacheTest, TheOldestFilesGoWhenTheLimitIsReached) {
  FullCache all = Cache(0);
  Score(&all, 0);
  uint64_t largest = 0;
  for (const fs::path& file : Files()) {
    largest = std::max<uint64_t>(largest, fs::file_size(file));
    fs::last_write_time(file, fs::file_time_type::clock::now() - std::chrono::hours(1));
  }
  std::ofstream(folder_ + "/other.txt") << "not ours";
  FullCache small = Cache(10, largest);  // room for one window of the first kind
  Score(&small, 10);
  uint64_t bytes = 0;
  for (const fs::path& file : Files())
    if (file.extension() == ".hidden") bytes += fs::file_size(file);
  EXPECT_GT(bytes, 0u);
  EXPECT_LE(bytes, largest);
  EXPECT_TRUE(fs::exists(folder_ + "/other.txt"));
  FullCache again = Cache(0);
  Score(&again, 0);
  EXPECT_EQ(again.hits(), 0) << "the older kind went first";
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(FullCacheTest, AFailedWriteIsAWarning) {
  const PplResult alone = Score(nullptr, 0);
  FullCache cache = Cache(0);
  fs::remove_all(folder_);
  ExpectSame(Score(&cache, 0), alone);
  ASSERT_EQ(warnings_.size(), 3u);
  EXPECT_THAT(warnings_[0], HasSubstr("the predictions of full are not kept"));
}

}  // namespace
}  // namespace infinigen
