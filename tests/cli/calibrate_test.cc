// `infinigen calibrate`: the file it writes and what it says.
#include "model/calibrate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/commands.h"
#include "kv/skew.h"
#include "loader/model_files.h"
#include "model/calibrate.h"
#include "runtime/launch.h"

namespace infinigen {
namespace {

using test::MessageOf;
using test::TempDir;
using testing::AllOf;
using testing::HasSubstr;

TEST(Calibrate, WritesWhereItIsToldAndSaysWhatItIsWorth) {
  const TempDir home;
  const std::string directory = home.File("model"), beside = directory + "/infinigen.skew";
  std::filesystem::copy(std::string(INFINIGEN_TEST_DATA) + "/golden/models/llama_gqa_tied", directory);
  std::filesystem::remove(beside);
  const Result<std::unique_ptr<Model>> model = OpenModel(directory);
  ASSERT_TRUE(model.ok()) << MessageOf(model);
  const ModelIdentity identity = IdentifyModel((*model)->config, (*model)->weights);
  std::string out, said;
  const auto run = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"-m", directory, "-t", "1"});
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    const int exit_code = RunCalibrate(arguments);
    out = testing::internal::GetCapturedStdout();
    said = testing::internal::GetCapturedStderr();
    return exit_code;
  };
  const std::string path = home.File("made.skew");
  ASSERT_EQ(run({"-o", path, "--json", "-c", "1000"}), 0) << said;
  EXPECT_FALSE(std::filesystem::exists(beside));
  const nlohmann::json json = nlohmann::json::parse(out);
  EXPECT_EQ(json["file"], path);
  EXPECT_EQ(json["identity"], identity.Hex());
  EXPECT_EQ(json["tokens"], 8192);  // in sequences of the model's context, 512
  EXPECT_EQ(json["positions"], 1000);
  ASSERT_EQ(json["energy"].size(), 2u);
  EXPECT_GT(json["energy"][1]["pair"], 0.99);  // all 8 columns
  const Result<Skew> written = ReadSkew(path, identity, ShapeOf((*model)->config));
  ASSERT_TRUE(written.ok()) << MessageOf(written);
  EXPECT_EQ(written->origin().positions, 1000);

  ASSERT_EQ(run({"--tokens", "700"}), 0) << said;
  EXPECT_THAT(out, AllOf(HasSubstr("700 tokens"), HasSubstr("written to " + beside)));
  EXPECT_THAT(said, HasSubstr("random token ids"));
  EXPECT_TRUE(ReadSkew(beside, identity, ShapeOf((*model)->config)).ok());

  EXPECT_EQ(run({"-o", home.File("no/such/place")}), 1);
  EXPECT_THAT(said, HasSubstr("no/such/place"));
  EXPECT_EQ(run({"-f", home.File("none.txt")}), 1);
  EXPECT_EQ(run({"stray"}), 2);
}

}  // namespace
}  // namespace infinigen
