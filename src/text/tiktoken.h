// Reads tiktoken ranks: a text file, each line a token in base64, a space and its rank. That is Llama 3's
// tokenizer.model. Ranks are ids.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "text/tokenizer_spec.h"

namespace infinigen {

// True when the first line has the form of a rank; a SentencePiece model never has.
bool LooksLikeTiktoken(std::string_view bytes);

// Fills vocabulary, merges, pre-tokenizer and decoder; special tokens are not in the file. `name` begins every message.
Result<TokenizerSpec> ReadTiktoken(std::string_view bytes, const std::string& name);

// The 256 special tokens that Llama 3 (names of version 3.1) puts behind 128,000 ranks, in the order of their ids.
std::vector<std::string> Llama3SpecialTokens();

}  // namespace infinigen
