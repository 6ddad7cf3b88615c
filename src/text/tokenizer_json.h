// Reads tokenizer.json, the format of Hugging Face's tokenizers library.
#pragma once

#include <istream>
#include <string>

#include "base/result.h"
#include "text/class_rules.h"
#include "text/tokenizer_spec.h"

namespace infinigen {

// The file as events, vocabulary and merges straight into their tables. `rules` may replace parts of the file (a
// byte-level file is never LlamaTokenizer's). `name` begins every message; `bytes` is the file's length.
Result<TokenizerSpec> ReadTokenizerJson(std::istream& in, const std::string& name, uint64_t bytes,
                                        const ClassRules& rules);

}  // namespace infinigen
