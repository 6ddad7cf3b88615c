// Which files of a repository make the model that a name asks for. The input is a list of paths, from a server's
// listing or from a snapshot in a cache. Pure functions, any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace infinigen {

struct HubChoice {
  // The GGUF file to open (of a split model, its first part); empty: the directory, in safetensors.
  std::string gguf;
  // In the order of download: weights last, so that complete weights imply that the other files are there.
  std::vector<std::string> files;
  // Set if the weights are in shards: the index among `files` that names them. The shards are not in `files`.
  std::string index;
};

// `wanted` is a file that ends in .gguf, a quantisation, or empty (docs/hub.md). `where` begins the messages, which
// list what there is to choose from.
Result<HubChoice> ChooseFiles(const std::vector<std::string>& paths, const std::string& wanted,
                              const std::string& where);

// A GGUF model: a file, or all parts of a split one.
struct GgufGroup {
  std::vector<std::string> parts;  // ascending; the first is the one to open
  bool complete = false;           // no part is missing
};
// Ascending by path. Files that are no model by themselves (projectors of images, importance matrices) are left out.
std::vector<GgufGroup> GroupGgufFiles(const std::vector<std::string>& paths);

// The quantisation in a file's name, in upper case: "Q4_K_M", "IQ4_XS", "F16"; empty if it names none.
std::string QuantisationOf(std::string_view path);

// The configuration of a model in safetensors.
inline constexpr const char* kConfigFile = "config.json";
// Names of which each model has at least one, unless it has no tokenizer.
inline constexpr const char* kTokenizerFiles[] = {"tokenizer.json", "tokenizer.model", "vocab.json"};

}  // namespace infinigen
