// The tokenizer in the metadata of a GGUF file: hands the keys to text/gguf_tokenizer.h, which does not know the file
// format. Called while a model is opened, from any thread.
#pragma once

#include <memory>

#include "base/result.h"
#include "loader/gguf.h"
#include "text/tokenizer.h"

namespace infinigen {

// Null if the file has no tokenizer.
Result<std::unique_ptr<Tokenizer>> ReadGgufTokenizer(const GgufMetadata& metadata);

}  // namespace infinigen
