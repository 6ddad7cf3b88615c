// Every golden model gives the logits and the greedy text of transformers, on every backend. For Qwen2 a forward pass
// in numpy (tools/make_numpy_golden.py) stands in for transformers.
//
// Error bounds, relative to the largest logit of the row: 1e-4 for f32 models (both sides compute in f32). This engine
// computes f16 and bf16 models in f32 from the stored weights, so with an f32 cache the bound is also 1e-4. With the
// cache in the model's own type each key and value is rounded once, which changes the logits of these models by up to
// 5e-3 (f16) and 4e-2 (bf16).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <ostream>

#include "golden/golden_run.h"

namespace infinigen {
namespace {

constexpr const char* kModels = INFINIGEN_TEST_DATA "/golden/models";

struct Case {
  std::string golden;  // directory of golden.json
  std::string model;   // directory of the weights
  Device device;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.golden; }

std::vector<Case> Cases() {
  std::vector<Case> cases;
  const std::vector<std::string> directories = ListGolden(kModels).value();
  for (const std::string& directory : directories)
    for (Device device : {Device::kReference, Device::kCpu}) cases.push_back({directory, directory, device});
  // The model in the repository; too large for the plain loops of the reference backend.
  cases.push_back(
      {INFINIGEN_TEST_DATA "/golden/embedded", INFINIGEN_TEST_DATA "/../models/infinigen-mini", Device::kCpu});
  return cases;
}

class Golden : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    Result<GoldenModel> golden = LoadGolden(GetParam().golden);
    ASSERT_TRUE(golden.ok()) << golden.error().message;
    golden_ = std::move(golden).value();
    ASSERT_GE(golden_.prompts.size(), 3u);
  }
  ExecutorOptions Options(StoreType kv_type) const {
    return {.device = GetParam().device, .threads = 2, .max_batch = 4, .kv_type = kv_type};
  }
  DType StoredType() const {
    return golden_.stored == "float32" ? DType::kF32 : golden_.stored == "float16" ? DType::kF16 : DType::kBF16;
  }

  void CompareLogits(StoreType kv_type, float bound) {
    const std::unique_ptr<LoadedModel> model = LoadModel(GetParam().model, Options(kv_type));
    ASSERT_NE(model, nullptr);
    const size_t vocab = static_cast<size_t>(model->config.vocab);
    for (const GoldenPrompt& prompt : golden_.prompts) {
      ASSERT_FALSE(prompt.logit_positions.empty());
      const int64_t first = prompt.logit_positions.front(), last = prompt.logit_positions.back();
      const std::vector<float> ours = PrefillSome(*model->executor, prompt.ids, first, last - first + 1);
      for (size_t p = 0; p < prompt.logit_positions.size(); ++p) {
        const std::vector<float>& theirs = prompt.logits[p];
        ASSERT_EQ(theirs.size(), vocab);
        const float* row = &ours[static_cast<size_t>(prompt.logit_positions[p] - first) * vocab];
        float largest = 0, worst = 0;
        for (size_t i = 0; i < vocab; ++i) {
          largest = std::max(largest, std::abs(theirs[i]));
          worst = std::max(worst, std::abs(row[i] - theirs[i]));
        }
        EXPECT_LE(worst, bound * largest) << prompt.name << " position " << prompt.logit_positions[p];
      }
    }
  }

  GoldenModel golden_;
};

TEST_P(Golden, Logits) { CompareLogits(StoreType::kF32, 1e-4f); }

TEST_P(Golden, LogitsWithTheCacheInTheModelsType) {
  const DType type = StoredType();
  CompareLogits(StoreTypeOf(type), type == DType::kF32 ? 1e-4f : type == DType::kF16 ? 5e-3f : 6e-2f);
}

TEST_P(Golden, GreedyText) {
  const std::unique_ptr<LoadedModel> model = LoadModel(GetParam().model, Options(StoreType::kF32));
  ASSERT_NE(model, nullptr);
  std::vector<std::vector<int32_t>> prompts;
  for (const GoldenPrompt& prompt : golden_.prompts) prompts.push_back(prompt.ids);
  const std::vector<std::vector<int32_t>> texts = Greedy(*model->executor, prompts, 64);
  for (size_t i = 0; i < prompts.size(); ++i) {
    const GoldenPrompt& prompt = golden_.prompts[i];
    float largest = 0;
    for (const std::vector<float>& row : prompt.logits)
      for (float logit : row) largest = std::max(largest, std::abs(logit));
    ASSERT_EQ(texts[i].size(), prompt.greedy.size()) << prompt.name;
    size_t same = 0;
    while (same < texts[i].size() && texts[i][same] == prompt.greedy[same]) ++same;
    if (same < texts[i].size()) {
      // The first difference is allowed only at a near tie; later tokens are not comparable.
      EXPECT_LE(prompt.gaps[same], 1e-3f * largest) << prompt.name << " differs at token " << same;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Golden, testing::ValuesIn(Cases()), [](const testing::TestParamInfo<Case>& test) {
  const std::string& path = test.param.golden;
  return path.substr(path.rfind('/') + 1) + (test.param.device == Device::kCpu ? "_cpu" : "_reference");
});

}  // namespace
}  // namespace infinigen
