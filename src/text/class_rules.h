// What transformers does to a tokenizer because of its class. LlamaTokenizer and GPT2Tokenizer bring their own
// normalizer, pre-tokenizer and decoder, whatever the files say; every other class leaves the files as they are.
#pragma once

#include <string>

#include "text/tokenizer_spec.h"

namespace infinigen {

enum class TokenizerClass { kGeneric, kLlama, kGpt2 };

struct ClassRules {
  TokenizerClass tokenizer_class = TokenizerClass::kGeneric;
  bool add_prefix_space = false;  // kLlama: default true, kGpt2: default false
  bool legacy = false;            // kLlama: a prefix before every piece of text, not only the first
};

// `declared`: tokenizer_class of tokenizer_config.json, else of config.json; `model_type` of config.json. Either may be
// empty.
TokenizerClass ClassOf(std::string declared, const std::string& model_type);

void ApplyClassRules(const ClassRules& rules, TokenizerSpec& spec);

}  // namespace infinigen
