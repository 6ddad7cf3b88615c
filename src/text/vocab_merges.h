// Reads vocab.json (token -> id) and merges.txt (one merge per line): GPT-2's and OPT's files.
#pragma once

#include <istream>
#include <string>

#include "base/result.h"
#include "text/tokenizer_spec.h"

namespace infinigen {

// Fills vocabulary, merges, pre-tokenizer and decoder as GPT2Tokenizer sets them. The names begin the messages; the
// sizes are the files' lengths.
Result<TokenizerSpec> ReadVocabAndMerges(std::istream& vocab, const std::string& vocab_name, uint64_t vocab_bytes,
                                         std::istream& merges, const std::string& merges_name, uint64_t merges_bytes);

}  // namespace infinigen
