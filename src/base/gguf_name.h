// Names of GGUF files: their suffix, and the names of the parts of a split model. Pure functions, any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace infinigen {

// ".gguf", in small or capital letters.
bool HasGgufSuffix(std::string_view path);

// The name of a part: "DIRECTORY/STEM-00002-of-00003.gguf".
struct GgufPartName {
  std::string stem;    // with directory, up to "-00002-of-"
  uint64_t part = 0;   // from 1
  uint64_t parts = 0;  // 0: not the name of a part
  std::string suffix;  // ".gguf" as the name spells it
};
GgufPartName ParseGgufPartName(std::string_view path);
std::string FormatGgufPartName(const GgufPartName& name);

}  // namespace infinigen
