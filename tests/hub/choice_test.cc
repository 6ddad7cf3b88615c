// Which files make a model.
#include "hub/choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace infinigen {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Paths = std::vector<std::string>;

std::string Gguf(const Paths& paths, const std::string& wanted) {
  const Result<HubChoice> choice = ChooseFiles(paths, wanted, "w");
  return choice.ok() ? choice->gguf : "error: " + choice.error().message;
}

TEST(HubChoice, SafetensorsComeWithTheirSmallFilesFirst) {
  const Paths paths = {"README.md",
                       "config.json",
                       "m-Q4_K_M.gguf",
                       "merges.txt",
                       "model.safetensors",
                       "onnx/model.onnx",
                       "original/tokenizer.model",
                       "tokenizer.json",
                       "training_args.bin"};
  const HubChoice choice = ChooseFiles(paths, "", "w").value();
  EXPECT_EQ(choice.gguf, "");
  EXPECT_EQ(choice.index, "");
  EXPECT_THAT(choice.files, ElementsAre("config.json", "tokenizer.json", "merges.txt", "model.safetensors"));
}

TEST(HubChoice, ShardsComeFromTheIndex) {
  const HubChoice choice =
      ChooseFiles({"config.json", "consolidated.safetensors", "model.safetensors.index.json"}, "", "w").value();
  EXPECT_EQ(choice.index, "model.safetensors.index.json");
  EXPECT_THAT(choice.files, ElementsAre("config.json", "model.safetensors.index.json"));
}

TEST(HubChoice, TheDefaultOfGgufFiles) {
  EXPECT_EQ(Gguf({"a-Q2_K.gguf", "a.q4_k_m.gguf", "a-Q4_K_S.gguf"}, ""), "a.q4_k_m.gguf");
  EXPECT_EQ(Gguf({"a-Q2_K.gguf", "README.md", "mmproj-a.gguf", "a.imatrix.gguf"}, ""), "a-Q2_K.gguf");
  EXPECT_THAT(Gguf({"a-Q2_K.gguf", "a-Q3_K.gguf"}, ""), HasSubstr("a-Q2_K.gguf, a-Q3_K.gguf"));
  EXPECT_THAT(Gguf({"a-Q4_K_M.gguf", "b-Q4_K_M.gguf"}, ""), HasSubstr("choose one"));
  EXPECT_THAT(Gguf({"config.json", "pytorch_model.bin"}, ""), HasSubstr("pytorch_model.bin"));
  EXPECT_THAT(Gguf({"model.safetensors"}, ""), HasSubstr("error"));  // without config.json
}

TEST(HubChoice, AQuantisationIsAWholeWord) {
  const Paths paths = {"a-BF16.gguf", "a-Q4_0.gguf", "a-Q4_0_4_4.gguf", "a-Q4_K_M.gguf", "a-UD-IQ2_XS.gguf"};
  EXPECT_EQ(Gguf(paths, "q4_0"), "a-Q4_0.gguf");
  EXPECT_EQ(Gguf(paths, "Q4_0_4_4"), "a-Q4_0_4_4.gguf");
  EXPECT_EQ(Gguf(paths, "bf16"), "a-BF16.gguf");
  EXPECT_EQ(Gguf(paths, "UD-IQ2_XS"), "a-UD-IQ2_XS.gguf");
  for (const char* wanted : {"F16", "Q4_K", "Q4", "IQ2"})
    EXPECT_THAT(Gguf(paths, wanted), HasSubstr("no GGUF")) << wanted;
}

TEST(HubChoice, PartsBelongTogether) {
  const Paths paths = {"q/m-Q8_0-00001-of-00002.gguf", "q/m-Q8_0-00002-of-00002.gguf", "m-Q6_K-00002-of-00002.gguf"};
  for (const char* wanted : {"Q8_0", "q/m-Q8_0-00002-of-00002.gguf"}) {
    const HubChoice choice = ChooseFiles(paths, wanted, "w").value();
    EXPECT_EQ(choice.gguf, paths[0]);
    EXPECT_THAT(choice.files, ElementsAre(paths[0], paths[1]));
  }
  EXPECT_THAT(Gguf(paths, "Q6_K"), HasSubstr("parts of the split model"));
  const std::vector<GgufGroup> groups =
      GroupGgufFiles({"m-00001-of-00001.gguf", "m-1-of-2.gguf", "x.gguf", "-00001-of-00000.gguf"});
  EXPECT_EQ(groups.size(), 4u);
  for (const GgufGroup& group : groups) EXPECT_TRUE(group.complete) << group.parts[0];
}

TEST(HubChoice, TheQuantisationOfAName) {
  EXPECT_EQ(QuantisationOf("d/SmolLM2-135M-Instruct.Q4_1.gguf"), "Q4_1");
  EXPECT_EQ(QuantisationOf("Qwen2.5-7B-iq4_xs-00001-of-00002.gguf"), "IQ4_XS");
  EXPECT_EQ(QuantisationOf("m-bf16.gguf"), "BF16");
  EXPECT_EQ(QuantisationOf("m-MXFP4.gguf"), "MXFP4");
  for (const char* name : {"Qwen2.gguf", "m.gguf", "quiet-i.gguf"}) EXPECT_EQ(QuantisationOf(name), "") << name;
}

}  // namespace
}  // namespace infinigen
