#include "runtime/gguf_tokenizer.h"

#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "text/gguf_tokenizer.h"

namespace infinigen {
namespace {

// Moves the value of a key into `out`; a missing key leaves it unchanged.
template <class T>
Status Assign(Result<std::optional<T>> value, T& out) {
  if (!value.ok()) return value.error();
  if (*value) out = std::move(**value);
  return Ok();
}

}  // namespace

Result<GgufTokenizer> ReadGgufTokenizer(const GgufMetadata& metadata) {
  GgufTokenizer result;
  GgufVocabulary from;
  from.path = metadata.path();
  RETURN_IF_ERROR(Assign(metadata.String("tokenizer.ggml.model"), from.model));
  if (from.model.empty() || from.model == "none" || from.model == "no_vocab") return result;
  RETURN_IF_ERROR(Assign(metadata.String("general.name"), from.model_name));
  RETURN_IF_ERROR(Assign(metadata.String("tokenizer.ggml.pre"), from.pre));
  RETURN_IF_ERROR(Assign(metadata.Strings("tokenizer.ggml.tokens"), from.tokens));
  RETURN_IF_ERROR(Assign(metadata.Floats("tokenizer.ggml.scores"), from.scores));
  RETURN_IF_ERROR(Assign(metadata.Integers("tokenizer.ggml.token_type"), from.types));
  RETURN_IF_ERROR(Assign(metadata.Strings("tokenizer.ggml.merges"), from.merges));
  RETURN_IF_ERROR(Assign(metadata.String("tokenizer.chat_template"), from.chat_template));
  ASSIGN_OR_RETURN(from.bos, metadata.TokenId("tokenizer.ggml.bos_token_id"));
  ASSIGN_OR_RETURN(from.eos, metadata.TokenId("tokenizer.ggml.eos_token_id"));
  ASSIGN_OR_RETURN(from.unk, metadata.TokenId("tokenizer.ggml.unknown_token_id"));
  ASSIGN_OR_RETURN(from.add_bos, metadata.Bool("tokenizer.ggml.add_bos_token"));
  ASSIGN_OR_RETURN(from.add_eos, metadata.Bool("tokenizer.ggml.add_eos_token"));
  ASSIGN_OR_RETURN(from.add_space_prefix, metadata.Bool("tokenizer.ggml.add_space_prefix"));
  ASSIGN_OR_RETURN(result.tokenizer, Tokenizer::FromGguf(from));
  for (size_t id = 0; id < from.tokens.size(); ++id)
    if (IsGgufEndToken(from.tokens[id])) result.end_ids.push_back(static_cast<int64_t>(id));
  return result;
}

}  // namespace infinigen
