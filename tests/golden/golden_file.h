// GoldenModel: what transformers computed for one of the models in tests/golden/models (made by tools/make_golden.py).
// For tests only.
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
  std::vector<std::vector<float>> native_logits;  // the same computed in the stored type; empty for f32 models
  std::vector<int32_t> greedy;                    // the continuation, end ids ignored
  std::vector<float> gaps;                        // [greedy], best logit minus second best
  std::vector<int32_t> native_greedy;             // empty for f32 models
};

struct GoldenModel {
  std::string directory;
  std::string name;
  std::string covers;  // what the model is there to show
  std::string stored;  // "float32", "float16", "bfloat16"
  std::vector<GoldenPrompt> prompts;
};

Result<GoldenModel> LoadGolden(const std::string& directory);

// Every subdirectory of `root` that holds a golden.json, in order of name.
Result<std::vector<std::string>> ListGolden(const std::string& root);

}  // namespace infinigen
