// The small files beside a tokenizer (tokenizer_config.json, special_tokens_map.json, added_tokens.json, and the model
// type of config.json), and the rules of the tokenizer class that they declare. They name special tokens, add tokens,
// and say whether a BOS is put before a text. Used while loading, by one thread.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "text/tokenizer_spec.h"

namespace infinigen {

// transformers lets LlamaTokenizer and GPT2Tokenizer replace the normalizer, pre-tokenizer and decoder of the files by
// their own; every other class leaves the files as they are.
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

struct TokenizerConfig {
  std::string path;  // for messages
  ClassRules rules;
  // Role ("bos_token") and token, in the order in which transformers adds them.
  std::vector<std::pair<std::string, AddedToken>> roles;
  std::vector<AddedToken> extra_special;
  std::map<int64_t, AddedToken> added_tokens_decoder;  // by the id in the file
  std::optional<bool> add_bos_token;
  std::optional<bool> add_eos_token;
  std::string chat_template;

  const AddedToken* Role(const std::string& role) const;
  // Sets the token of a role that no file names.
  void SetDefaultRole(const std::string& role, const std::string& token);
};

// Each of the files may be absent.
Result<TokenizerConfig> ReadTokenizerConfig(const std::string& directory);

// Adds the tokens of the configuration to the spec, in the order of transformers. With `add_bos_eos`, which is for
// directories without tokenizer.json, its flags set the tokens around a text.
Status ApplyTokenizerConfig(const TokenizerConfig& config, bool add_bos_eos, TokenizerSpec& spec);

}  // namespace infinigen
