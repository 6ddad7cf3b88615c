#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "kv/skew.h"
#include "loader/model_files.h"
#include "model/calibrate.h"
#include "runtime/launch.h"
#include "text/calibration_text.h"

namespace infinigen {
namespace {

using test::MessageOf;
using test::ReadAll;
using test::TempDir;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

// A copy of a golden model, and a separate cache directory.
class SkewStore : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::copy(std::string(INFINIGEN_TEST_DATA) + "/golden/models/llama_gqa_tied", home_.File("model"));
    directory_ = home_.File("model");
    std::filesystem::remove(directory_ + "/infinigen.skew");  // left by an earlier run of the model in the source tree
    ASSERT_EQ(::unsetenv("INFINIGEN_CACHE"), 0);
    ASSERT_EQ(::setenv("XDG_CACHE_HOME", home_.File("cache").c_str(), 1), 0);
    Result<std::unique_ptr<Model>> model = OpenModel(directory_);
    ASSERT_TRUE(model.ok()) << MessageOf(model);
    model_ = std::move(model).value();
    identity_ = IdentifyModel(model_->config, model_->weights);
    beside_ = directory_ + "/infinigen.skew";
    cached_ = home_.File("cache") + "/infinigen/" + identity_.Hex() + ".skew";
  }

  Result<Skew> Find(const std::string& directory, const std::string& file = "") {
    said_.clear();
    const Callbacks callbacks{
        .on_warning = [this](std::string_view message) { said_ += "warning: " + std::string(message) + "\n"; },
        .on_notice = [this](std::string_view message) { said_ += std::string(message) + "\n"; }};
    model_->path = directory;
    testing::internal::CaptureStderr();
    Result<Skew> skew = FindOrMakeSkew(*model_, file, {.device = Device::kCpu, .threads = 1}, callbacks);
    EXPECT_EQ(testing::internal::GetCapturedStderr(), "") << "a library has no terminal";
    return skew;
  }

  const TempDir home_;
  std::string directory_, beside_, cached_, out_, said_;
  std::unique_ptr<Model> model_;
  ModelIdentity identity_;
};

// A directory in which not even root can create a file.
constexpr const char* kReadOnly = "/proc";

TEST_F(SkewStore, IsMadeOnceAndKeptBesideTheModel) {
  const Result<Skew> made = Find(directory_);
  ASSERT_TRUE(made.ok()) << MessageOf(made);
  EXPECT_THAT(said_, AllOf(HasSubstr("calibrating"), HasSubstr("random token ids"), HasSubstr("once per model")));
  EXPECT_EQ(std::count(said_.begin(), said_.end(), '\n'), 1);
  ASSERT_TRUE(std::filesystem::exists(beside_));
  EXPECT_FALSE(std::filesystem::exists(cached_));
  const Result<Skew> found = Find(directory_);
  ASSERT_TRUE(found.ok()) << MessageOf(found);
  EXPECT_THAT(said_, IsEmpty());
  EXPECT_EQ(SerialiseSkew(*found), SerialiseSkew(*made));
}

TEST_F(SkewStore, GoesToTheCacheWhereTheModelCannotBeWritten) {
  const Result<Skew> made = Find(kReadOnly);
  ASSERT_TRUE(made.ok()) << MessageOf(made);
  EXPECT_THAT(said_, AllOf(HasSubstr("calibrating"), testing::Not(HasSubstr("warning"))));
  ASSERT_TRUE(std::filesystem::exists(cached_));
  const Result<Skew> found = Find(kReadOnly);
  ASSERT_TRUE(found.ok());
  EXPECT_THAT(said_, IsEmpty());
  EXPECT_EQ(SerialiseSkew(*found), SerialiseSkew(*made));
}

TEST_F(SkewStore, StaysInMemoryWithOneWarningWhereNothingCanBeWritten) {
  ASSERT_EQ(::setenv("XDG_CACHE_HOME", kReadOnly, 1), 0);
  ASSERT_TRUE(Find(kReadOnly).ok());
  EXPECT_THAT(said_, AllOf(HasSubstr("warning"), HasSubstr("for this run only"), HasSubstr("/proc/infinigen.skew")));
  EXPECT_EQ(std::count(said_.begin(), said_.end(), '\n'), 2);
}

TEST_F(SkewStore, RandomWeightsAreNeverWritten) {
  ASSERT_TRUE(Find("").ok());
  EXPECT_THAT(said_, AllOf(HasSubstr("calibrating"), testing::Not(HasSubstr("once per model"))));
  EXPECT_FALSE(std::filesystem::exists(beside_));
  EXPECT_FALSE(std::filesystem::exists(home_.File("cache")));
}

TEST_F(SkewStore, AForeignFileBesideTheModelIsRefusedByName) {
  Skew foreign(ShapeOf(model_->config), {.model = {1, 2}, .tokens = 1, .text = "x"});
  ASSERT_TRUE(WriteSkew(foreign, beside_).ok());
  const std::string bytes = ReadAll(beside_);
  EXPECT_THAT(MessageOf(Find(directory_)),
              AllOf(HasSubstr(beside_), HasSubstr("another model"), HasSubstr("infinigen calibrate -m")));
  EXPECT_EQ(ReadAll(beside_), bytes);
}

TEST_F(SkewStore, AFileThatIsNamedMustFit) {
  const std::string path = home_.File("mine.skew");
  EXPECT_THAT(MessageOf(Find(directory_, path)), AllOf(HasSubstr(path), HasSubstr("infinigen calibrate")));
  Skew mine(ShapeOf(model_->config), {.model = identity_, .tokens = 7, .text = "mine"});
  ASSERT_TRUE(WriteSkew(mine, path).ok());
  const Result<Skew> found = Find(directory_, path);
  ASSERT_TRUE(found.ok()) << MessageOf(found);
  EXPECT_EQ(found->origin().text, "mine");
  Skew foreign(ShapeOf(model_->config), {.model = {1, 2}, .tokens = 1, .text = "x"});
  ASSERT_TRUE(WriteSkew(foreign, path).ok());
  EXPECT_THAT(MessageOf(Find(directory_, path)), AllOf(HasSubstr(path), HasSubstr("another model")));
  EXPECT_FALSE(std::filesystem::exists(beside_));
}

TEST_F(SkewStore, ABrokenFileInTheCacheIsMadeAnew) {
  std::filesystem::create_directories(std::filesystem::path(cached_).parent_path());
  home_.Write("cache/infinigen/" + identity_.Hex() + ".skew", "broken");
  ASSERT_TRUE(Find(kReadOnly).ok());
  EXPECT_THAT(said_, AllOf(HasSubstr("warning"), HasSubstr(cached_), HasSubstr("calibrating again")));
  ASSERT_TRUE(Find(kReadOnly).ok());
  EXPECT_THAT(said_, IsEmpty());
}

TEST_F(SkewStore, TheCacheIsBelowHomeByDefault) {
  ASSERT_EQ(::setenv("XDG_CACHE_HOME", "relative", 1), 0);
  const char* home = std::getenv("HOME");
  const std::string before = home == nullptr ? "" : home;
  ASSERT_EQ(::setenv("HOME", "/home/x", 1), 0);
  EXPECT_EQ(CachedSkewPath({1, 2}), "/home/x/.cache/infinigen/00000000000000010000000000000002.skew");
  ASSERT_EQ(::unsetenv("HOME"), 0);
  EXPECT_EQ(CachedSkewPath({1, 2}), "");
  ASSERT_EQ(::setenv("HOME", before.c_str(), 1), 0);
}

TEST_F(SkewStore, ACalibrationCanBeCancelled) {
  model_->path = directory_;
  int64_t asked = 0;
  const Callbacks callbacks{.cancelled = [&] { return ++asked == 1; }};
  EXPECT_THAT(MessageOf(FindOrMakeSkew(*model_, "", {.device = Device::kCpu, .threads = 1}, callbacks)),
              HasSubstr("interrupted"));
  EXPECT_EQ(asked, 1);
  EXPECT_FALSE(std::filesystem::exists(beside_));
}

TEST_F(SkewStore, ATextNeedsATokenizer) {
  EXPECT_THAT(MessageOf(MakeCalibrationText(*model_, NamedText{"some.txt", "words"})),
              AllOf(HasSubstr("some.txt"), HasSubstr("no tokenizer")));
}

TEST(ShippedSkew, BelongsToTheShippedModel) {
  const std::string directory = std::string(INFINIGEN_TEST_DATA) + "/../models/infinigen-mini";
  const Result<std::unique_ptr<Model>> model = OpenModel(directory);
  ASSERT_TRUE(model.ok()) << MessageOf(model);
  const Result<Skew> skew = ReadSkew(directory + "/infinigen.skew", IdentifyModel((*model)->config, (*model)->weights),
                                     ShapeOf((*model)->config));
  ASSERT_TRUE(skew.ok()) << MessageOf(skew);
  EXPECT_EQ(skew->origin().tokens, kCalibrationTokens);
  EXPECT_LT(std::filesystem::file_size(directory + "/infinigen.skew"), 1200u << 10);
  uintmax_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) bytes += entry.file_size();
  EXPECT_LE(bytes, uintmax_t{36} << 20);
}

TEST(ShippedSkew, TheBuiltInTextIsLongEnough) {
  const std::string directory = std::string(INFINIGEN_TEST_DATA) + "/../models/infinigen-mini";
  const Result<std::unique_ptr<Model>> model = OpenModel(directory);
  ASSERT_TRUE(model.ok()) << MessageOf(model);
  const Result<CalibrationText> text = MakeCalibrationText(**model, std::nullopt);
  ASSERT_TRUE(text.ok()) << MessageOf(text);
  EXPECT_GE(text->tokens.size(), 2048u);
  EXPECT_EQ(text->name, "built-in text");
}

}  // namespace
}  // namespace infinigen
