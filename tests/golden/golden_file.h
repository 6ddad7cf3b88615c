// GoldenModel: results of transformers for one of the models in tests/golden/models, made by tools/make_golden.py.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace infinigen {

struct GoldenPrompt {
  std::string name;  // "single", "short", "medium", "long"
  std::vector<int32_t> ids;
  std::vector<int64_t> logit_positions;           // ascending positions in `ids`
  std::vector<std::vector<float>> logits;         // [logit_positions][vocab], float32 arithmetic on the stored weights
  std::vector<std::vector<float>> native_logits;  // computed in the stored type; empty for f32 models
  std::vector<int32_t> greedy;                    // greedy continuation; end-of-text ids are ignored
  std::vector<float> gaps;                        // [greedy], best logit minus second best
  std::vector<int32_t> native_greedy;             // empty for f32 models
};

struct GoldenModel {
  std::string directory;
  std::string name;
  std::string covers;  // the features that the model tests
  std::string stored;  // "float32", "float16", "bfloat16"
  std::vector<GoldenPrompt> prompts;
};

Result<GoldenModel> LoadGolden(const std::string& directory);

// Every subdirectory of `root` that has a golden.json, sorted by name.
Result<std::vector<std::string>> ListGolden(const std::string& root);

}  // namespace infinigen
