// Reads vocab.json (token -> id) and merges.txt (one merge per line): GPT-2's and OPT's files.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "text/tokenizer_spec.h"

namespace infinigen {

// Fills vocabulary, merges, pre-tokenizer and decoder as GPT2Tokenizer sets them. The names begin the messages.
Result<TokenizerSpec> ReadVocabAndMerges(std::string_view vocab, const std::string& vocab_name, std::string_view merges,
                                         const std::string& merges_name);

}  // namespace infinigen
