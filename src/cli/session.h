// A model opened for a command. The order is always the same: find the directory, read the config, map the weights
// (from here on the sizes are the file's, not a claim), read the tokenizer, then plan memory (cli/memory_plan.h); only
// then is anything big allocated.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/config.h"
#include "model/weights.h"
#include "text/tokenizer.h"

namespace infinigen {

// Rows are numbered by 32-bit integers, and prompts too long for any memory end here.
inline constexpr int64_t kMaxContext = int64_t{1} << 30;

struct Model {
  std::string directory;  // empty: random weights
  ModelConfig config;
  Weights weights;
  DType dtype = DType::kF32;             // of most bytes of the matrices
  std::unique_ptr<Tokenizer> tokenizer;  // null when the directory has none
  double load_s = 0;
};

// The directory that --model names; without one, that of the built-in model. The only place that knows where models are
// looked up.
Result<std::string> FindModel(const std::string& flag);

// Where the built-in model may be, in the order in which it is looked for: beside an installed `binary` (PREFIX/bin),
// in the tree that it was built in (up to two levels up, build/NAME), in the tree it was built from, then where a
// user's and a system's shared data lie, so that a binary that was only copied finds it too. `data_home`:
// XDG_DATA_HOME, and `home`, below which that is .local/share when not set; any of the three may be empty.
std::vector<std::string> BuiltInPlaces(const std::string& binary, const std::string& data_home,
                                       const std::string& home);
// The first of them that is a directory; the error names all.
Result<std::string> FindBuiltIn(const std::vector<std::string>& places);

// The file that the directory's tokenizer is made of ("tokenizer.json"), empty when it has none.
std::string TokenizerFile(const std::string& directory);

Result<std::unique_ptr<Model>> OpenModel(const std::string& directory);
Result<std::unique_ptr<Model>> RandomModel(const std::string& shape, DType type, int threads);

// Rows a sequence may have: `flag` unless it is 0, else what the model was made for. Refused beyond learned positions;
// rotary ones have no end, whoever goes beyond what was trained says so (cli/generate.cc).
Result<int64_t> ChooseContext(const ModelConfig& config, int64_t flag);

}  // namespace infinigen
