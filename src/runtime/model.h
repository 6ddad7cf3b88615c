// A model on disk, as a directory in Hugging Face layout or a GGUF file: finding it (by path, or by name: hf:ORG/NAME),
// opening it (configuration, mapped weights, tokenizer), and inspecting it without its weights. Opening allocates
// nothing large: memory is planned next (runtime/plan.h) and allocated by Launch. A Model never changes after it is
// opened; any thread may read it.
//
// Clients of runtime also get ModelConfig, Weights and Tokenizer from this header.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/config.h"
#include "model/weights.h"
#include "runtime/callbacks.h"
#include "text/tokenizer.h"

namespace infinigen {

// The longest context that any command accepts. Rows are 32-bit integers.
inline constexpr int64_t kMaxContext = int64_t{1} << 30;

struct Model {
  std::string path;  // the directory or the GGUF file; empty: random weights
  ModelConfig config;
  Weights weights;
  WeightType weight_type = WeightType::kF32;  // of most matrix bytes
  DType dtype = DType::kF32;                  // PlainTypeOf(weight_type): of KV entries and a GPU's activations
  std::unique_ptr<Tokenizer> tokenizer;       // null if the model has none
  double load_s = 0;

  bool is_random() const { return path.empty(); }
};

// Resolves `name` to the path of a model: a directory with config.json, or a GGUF file, also one in a directory that
// holds no other model. An empty name is the built-in model. "hf:ORG/NAME" is a model of a hub, which is downloaded if
// no cache has it (docs/hub.md); `callbacks` show and cancel that. No other function searches for models.
Result<std::string> FindModel(const std::string& name, const Callbacks& callbacks = {});

// Directories in which the built-in model may be, in search order: relative to an installed `binary` or library
// (PREFIX/bin, PREFIX/lib), in the build tree (up to two levels above build/NAME), in the source tree, then in the
// shared data directories of the user and the system, for a binary that was copied elsewhere. `data_home` is
// XDG_DATA_HOME; if it is empty, .local/share below `home` replaces it. Any of the three may be empty.
std::vector<std::string> BuiltInDirectories(const std::string& binary, const std::string& data_home,
                                            const std::string& home);
// Returns the first of `directories` that is a directory; the error lists all of them.
Result<std::string> FindBuiltIn(const std::vector<std::string>& directories);

// Name of the file that holds the tokenizer ("tokenizer.json", or the GGUF file); empty if there is none.
std::string TokenizerFile(const std::string& path);
// "PATH: the model has no tokenizer, but `what` needs one; …".
Error NoTokenizer(const std::string& path, std::string_view what);
// Opens only the tokenizer; an error if the model has none.
Result<std::unique_ptr<Tokenizer>> OpenTokenizer(const std::string& path);

// `path` as FindModel returns it.
Result<std::unique_ptr<Model>> OpenModel(const std::string& path);
Result<std::unique_ptr<Model>> RandomModel(const std::string& shape, WeightType type, int threads);

// Rows that a sequence may have: `asked`, or the model's context if that is 0. More than the model's learned positions
// is an error. Rotary positions have no upper limit; callers warn beyond the trained length.
Result<int64_t> ChooseContext(const ModelConfig& config, int64_t asked);

// Refuses ids outside the vocabulary: the tokenizer does not belong to these weights.
Status CheckIds(const ModelConfig& config, const std::vector<int32_t>& ids);

// The ids that the tokenizer puts before every text: BOS, or none.
Result<std::vector<int32_t>> OpeningIds(const Tokenizer& tokenizer);

// ---- what is there ----

struct InstalledModel {
  std::string name;  // to pass to -m
  std::string form;  // "safetensors", "GGUF Q4_K_M"; empty: a download that is not complete
  uint64_t bytes = 0;
  std::string path;
  std::string cache;  // "hub" (the hub's own), "infinigen", or "built-in"
  bool complete = true;
};
// The built-in model, then what is in the caches, ascending by name in each.
std::vector<InstalledModel> InstalledModels();
// Where InstalledModels looks, and FindModel downloads to; ascending by importance. Some may not exist.
std::vector<std::string> ModelCaches();

// ---- inspection: config, headers of the weight files, tokenizer; weights are not read ----

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

// An entry of a GGUF file's metadata.
struct InspectedEntry {
  std::string key;
  std::string type;   // "uint32", "array of string"
  std::string value;  // one line; long values are shortened
};

struct Inspection {
  std::string path;
  ModelConfig config;
  std::vector<InspectedFile> files;      // ascending by path
  std::vector<InspectedEntry> metadata;  // in the order of the file; empty for a directory
  std::unique_ptr<Tokenizer> tokenizer;  // null if the model has none
  std::string misfit;                    // how the tensors do not fit the config, so that no run is possible; or empty
};

// Refuses damaged files.
Result<Inspection> InspectModel(const std::string& path);

}  // namespace infinigen
