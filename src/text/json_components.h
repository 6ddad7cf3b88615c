// The components of tokenizer.json (normalizer, pre_tokenizer, post_processor, decoder, added tokens) from their JSON
// to the steps of a TokenizerSpec. Types and options that are not known are refused by name: ignoring one would give
// other ids than the file means. Messages are without file name.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "base/result.h"
#include "text/tokenizer_spec.h"

namespace infinigen {

Result<std::vector<NormalizerStep>> ParseNormalizer(const nlohmann::json& json);
Result<std::vector<PreTokenizerStep>> ParsePreTokenizer(const nlohmann::json& json);
Result<std::vector<DecoderStep>> ParseDecoder(const nlohmann::json& json);
// Sets prefix and suffix.
Status ParsePostProcessor(const nlohmann::json& json, TokenizerSpec& spec);
// An entry of "added_tokens"; its id is -1 when it has none.
Result<AddedToken> ParseAddedToken(const nlohmann::json& json);

}  // namespace infinigen
