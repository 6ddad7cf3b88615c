// The small files beside a tokenizer: tokenizer_config.json, special_tokens_map.json, added_tokens.json, and from
// config.json the model type. They name special tokens, add tokens, and say whether a BOS is put before a text.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "text/class_rules.h"
#include "text/tokenizer_spec.h"

namespace infinigen {

struct TokenizerConfig {
  std::string path;  // for messages
  ClassRules rules;
  // Role ("bos_token") to token; in the order in which transformers adds them.
  std::vector<std::pair<std::string, AddedToken>> roles;
  std::vector<AddedToken> extra_special;
  std::map<int64_t, AddedToken> added_tokens_decoder;  // by the id the file names
  std::optional<bool> add_bos_token;
  std::optional<bool> add_eos_token;
  std::string chat_template;

  const AddedToken* Role(const std::string& role) const;
  // Used where no file names the role.
  void SetDefaultRole(const std::string& role, const std::string& token);
};

// Files that are not there say nothing.
Result<TokenizerConfig> ReadTokenizerConfig(const std::string& directory);

// Adds the tokens that the configuration names to the spec, in the order transformers does. With `add_bos_eos` the
// flags of the configuration decide what is put around a text (a tokenizer.json decides for itself).
Status ApplyTokenizerConfig(const TokenizerConfig& config, bool add_bos_eos, TokenizerSpec& spec);

}  // namespace infinigen
