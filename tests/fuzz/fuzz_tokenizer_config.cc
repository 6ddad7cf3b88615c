// Reads the input as tokenizer_config.json, special_tokens_map.json and added_tokens.json, and runs the tokenizer.
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "fuzz_tokenizer.h"
#include "text/tokenizer_files.h"

namespace {

struct Directory {
  Directory() {
    std::string name = (std::filesystem::temp_directory_path() / "infinigen_fuzz_XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) std::abort();
    path = name;
  }
  ~Directory() { std::filesystem::remove_all(path); }
  std::filesystem::path path;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Directory directory;
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"}) {
    std::filesystem::remove(directory.path / "tokenizer_config.json");
    std::ofstream(directory.path / name, std::ios::binary) << bytes;
    const auto config = infinigen::ReadTokenizerConfig(directory.path.string());
    if (!config.ok()) continue;
    infinigen::TokenizerSpec spec;
    for (const char* token : {"a", "b", "<s>"}) static_cast<void>(spec.vocabulary.Add(token, spec.vocabulary.size()));
    if (infinigen::ApplyTokenizerConfig(*config, true, spec).ok()) infinigen::RunSpec(std::move(spec));
  }
  return 0;
}
