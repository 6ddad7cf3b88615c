// The readers of a tokenizer's files. A model directory holds its tokenizer in one of four formats, with small
// configuration files beside it. Each reader takes the bytes of a file and fills a TokenizerSpec, or fails with an
// error that names the part it does not support. `name` is the path, with which every message begins. Used while
// loading, by one thread.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "text/tokenizer_spec.h"

namespace infinigen {

// ---- tokenizer_config.json, special_tokens_map.json, added_tokens.json, config.json (tokenizer_config.cc) ----

// In transformers, LlamaTokenizer and GPT2Tokenizer replace the normalizer, pre-tokenizer and decoder of the files by
// their own. Every other class uses tokenizer.json unchanged. vocab.json and merges.txt have no such parts; they are
// read by the rules of Qwen2Tokenizer if that is the class, else by GPT2Tokenizer's.
enum class TokenizerClass { kGeneric, kLlama, kGpt2, kQwen2 };

struct ClassRules {
  TokenizerClass tokenizer_class = TokenizerClass::kGeneric;
  bool add_prefix_space = false;  // when the files do not say: true for kLlama, false for kGpt2
  bool legacy = false;            // kLlama: add the prefix space to every piece of text, not only to the first
};

// `declared`: tokenizer_class of tokenizer_config.json, or else of config.json. `model_type`: from config.json. Both
// may be empty.
TokenizerClass ClassOf(std::string declared, const std::string& model_type);

void ApplyClassRules(const ClassRules& rules, TokenizerSpec& spec);
// Sets the parts that vocab.json and merges.txt leave to the class.
void ApplyVocabRules(const ClassRules& rules, TokenizerSpec& spec);

struct TokenizerConfig {
  std::string path;  // of tokenizer_config.json, for messages
  ClassRules rules;
  // Pairs of role ("bos_token") and token, in the order in which transformers adds them.
  std::vector<std::pair<std::string, AddedToken>> roles;
  std::vector<AddedToken> extra_special;
  std::map<int64_t, AddedToken> added_tokens_decoder;  // by the file's id
  std::optional<bool> add_bos_token;
  std::optional<bool> add_eos_token;
  std::string chat_template;                 // the one named default; empty when there is none
  std::string chat_template_path;            // the file that contains it
  std::vector<std::string> other_templates;  // names of the templates that are not used, sorted

  const AddedToken* Role(const std::string& role) const;  // null when no token has the role
  // Sets the token of a role unless a file has set it.
  void SetDefaultRole(const std::string& role, const std::string& token);
};

// Any of the files may be absent.
Result<TokenizerConfig> ReadTokenizerConfig(const std::string& directory);

// Adds the tokens of the configuration to the spec, in transformers' order. With `add_bos_eos`, for directories without
// tokenizer.json, add_bos_token and add_eos_token decide about the tokens around a text.
Status ApplyTokenizerConfig(const TokenizerConfig& config, bool add_bos_eos, TokenizerSpec& spec);

// The decoder for SentencePiece vocabularies: restores spaces and bytes. With `prefix_space` it removes one leading
// space, which encoding has added.
std::vector<DecoderStep> MetaspaceDecoders(bool prefix_space);

// ---- a whole directory (tokenizer.cc) ----

struct LoadedTokenizer {
  TokenizerSpec spec;
  TokenizerConfig config;
  std::string path;  // the file from which the spec was read
};

// Reads the files of a directory in the order that Tokenizer::Load states.
Result<LoadedTokenizer> LoadTokenizerSpec(const std::string& directory);

// ---- tokenizer.json, the format of Hugging Face's tokenizers library (tokenizer_json.cc) ----

// Reads vocabulary and merges directly into their tables, without a JSON tree of the file. `rules` may replace parts of
// the file. LlamaTokenizer's rules are not applied to a byte-level file.
Result<TokenizerSpec> ReadTokenizerJson(std::string_view text, const std::string& name, const ClassRules& rules);

// The parts of the file (tokenizer_parts.cc). Error messages do not contain the file's name.
Result<std::vector<NormalizerStep>> ParseNormalizer(const nlohmann::json& json);
Result<std::vector<PreTokenizerStep>> ParsePreTokenizer(const nlohmann::json& json);
Result<std::vector<DecoderStep>> ParseDecoder(const nlohmann::json& json);
// Sets spec.prefix and spec.suffix.
Status ParsePostProcessor(const nlohmann::json& json, TokenizerSpec& spec);
// Parses an entry of "added_tokens"; the id is -1 when absent.
Result<AddedToken> ParseAddedToken(const nlohmann::json& json);

// ---- tokenizer.model of SentencePiece, type BPE: Llama 2 (sentencepiece.cc) ----

enum class SentencePieceRules {
  kOwn,             // SentencePiece: dummy prefix and white space as the file says, merges in order of score
  kLlamaTokenizer,  // transformers' LlamaTokenizer: merges in order of id; the caller sets pre-tokenizer and decoder
};

struct SentencePieceModel {
  TokenizerSpec spec;  // its added tokens are the control and user-defined pieces
  std::string unk_piece;
  std::string bos_piece;  // empty: none
  std::string eos_piece;
};

Result<SentencePieceModel> ReadSentencePiece(std::string_view bytes, const std::string& name, SentencePieceRules rules);

// ---- tokenizer.model of tiktoken: Llama 3; and vocab.json with merges.txt: GPT-2, OPT, Qwen2 (vocab_files.cc) ----

// True when the first line is a token in base64 and its rank. Never true for a SentencePiece model.
bool LooksLikeTiktoken(std::string_view bytes);

// Each line is a token in base64, a space, and its rank, which is also its id. The file has no special tokens.
Result<TokenizerSpec> ReadTiktoken(std::string_view bytes, const std::string& name);

// Llama 3's 256 special tokens (names of version 3.1), which follow the 128,000 ranks, in order of id.
std::vector<std::string> Llama3SpecialTokens();

// vocab.json maps tokens to ids; merges.txt has one merge per line. The caller applies ApplyVocabRules.
Result<TokenizerSpec> ReadVocabAndMerges(std::string_view vocab, const std::string& vocab_name, std::string_view merges,
                                         const std::string& merges_name);

}  // namespace infinigen
