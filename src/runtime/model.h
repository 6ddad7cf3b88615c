// A model, opened: configuration, mapped weights, tokenizer. Opening reads the config, maps the weights (from then on
// sizes are confirmed by the files) and reads the tokenizer; memory is planned next (runtime/plan.h), and only then is
// anything large allocated. Immutable once open; any thread may read it.
//
// This header is also where clients of runtime get the types of a model's parts: ModelConfig, Weights, Tokenizer.
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

  bool is_random() const { return directory.empty(); }
};

// The directory that `name` stands for; where it is empty, that of the built-in model. The only function that knows
// where models are looked up.
Result<std::string> FindModel(const std::string& name);

// Where the built-in model may be, in the order of the search: beside an installed `binary` or library (PREFIX/bin,
// PREFIX/lib), in the tree that it was built in (up to two levels up, build/NAME), in the tree it was built from, then
// in the user's and the system's shared data, so that a binary that was only copied finds it too. `data_home` is
// XDG_DATA_HOME; where it is empty, .local/share below `home` takes its place. Any of the three may be empty.
std::vector<std::string> BuiltInPlaces(const std::string& binary, const std::string& data_home,
                                       const std::string& home);
// The first of them that is a directory; the error names all.
Result<std::string> FindBuiltIn(const std::vector<std::string>& places);

// The file that the directory's tokenizer is made of ("tokenizer.json"), empty when it has none.
std::string TokenizerFile(const std::string& directory);

Result<std::unique_ptr<Model>> OpenModel(const std::string& directory);
Result<std::unique_ptr<Model>> RandomModel(const std::string& shape, DType type, int threads);

// Rows that a sequence may have: `asked` unless it is 0, else what the model was made for. Refused beyond learned
// positions; rotary positions have no end, so beyond the trained length the caller gets a warning, not a refusal.
Result<int64_t> ChooseContext(const ModelConfig& config, int64_t asked);

// Ids outside the vocabulary are refused: tokenizer and weights do not belong together.
Status CheckIds(const ModelConfig& config, const std::vector<int32_t>& ids);

// The ids that the tokenizer puts before every text: BOS, or none.
Result<std::vector<int32_t>> OpeningIds(const Tokenizer& tokenizer);

}  // namespace infinigen
