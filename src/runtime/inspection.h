// What is in a model directory, read without its weights: the description, the headers of the weight files, the
// tokenizer. For `infinigen inspect`. Any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "runtime/model.h"

namespace infinigen {

struct InspectedTensor {
  std::string name;
  std::string dtype;  // as the file spells it
  std::vector<int64_t> shape;
  uint64_t bytes = 0;
};

struct InspectedFile {
  std::string path;
  std::vector<InspectedTensor> tensors;  // ascending by name
};

struct Inspection {
  std::string directory;
  ModelConfig config;
  std::vector<InspectedFile> files;      // ascending by path
  std::unique_ptr<Tokenizer> tokenizer;  // null when the directory has none
};

// Refuses what loading the model would refuse for the same files.
Result<Inspection> InspectModel(const std::string& directory);

}  // namespace infinigen
