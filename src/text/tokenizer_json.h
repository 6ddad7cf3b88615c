// Reads tokenizer.json, the format of Hugging Face's tokenizers library.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "text/class_rules.h"
#include "text/tokenizer_spec.h"

namespace infinigen {

// The file as events, vocabulary and merges straight into their tables. `rules` may replace parts of the file (a
// byte-level file is never LlamaTokenizer's). `name` begins every message.
Result<TokenizerSpec> ReadTokenizerJson(std::string_view text, const std::string& name, const ClassRules& rules);

}  // namespace infinigen
