// The tokenizer in the metadata of a GGUF file: hands the keys to text/gguf_tokenizer.h, which does not know the file
// format. Called while a model is opened, from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/result.h"
#include "loader/gguf.h"
#include "text/tokenizer.h"

namespace infinigen {

struct GgufTokenizer {
  std::unique_ptr<Tokenizer> tokenizer;  // null if the file has none
  std::vector<int64_t> end_ids;          // tokens that end a turn, known by their text; ascending
};

Result<GgufTokenizer> ReadGgufTokenizer(const GgufMetadata& metadata);

}  // namespace infinigen
