// The readers of the four formats in which a model directory may hold its tokenizer. Each takes the bytes of a file and
// fills a TokenizerSpec, or refuses an unknown part by its name. `name` (the path) begins every message. Used while
// loading, by one thread.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/tokenizer_config.h"
#include "text/tokenizer_spec.h"

namespace infinigen {

// ---- tokenizer.json, the format of Hugging Face's tokenizers library (tokenizer_json.cc) ----

// Vocabulary and merges go straight into their tables, so the file never becomes a tree. `rules` may replace parts of
// the file (a byte-level file is never LlamaTokenizer's).
Result<TokenizerSpec> ReadTokenizerJson(std::string_view text, const std::string& name, const ClassRules& rules);

// Its parts (tokenizer_parts.cc). The messages are without file name.
Result<std::vector<NormalizerStep>> ParseNormalizer(const nlohmann::json& json);
Result<std::vector<PreTokenizerStep>> ParsePreTokenizer(const nlohmann::json& json);
Result<std::vector<DecoderStep>> ParseDecoder(const nlohmann::json& json);
// Sets prefix and suffix.
Status ParsePostProcessor(const nlohmann::json& json, TokenizerSpec& spec);
// An entry of "added_tokens"; its id is -1 when it has none.
Result<AddedToken> ParseAddedToken(const nlohmann::json& json);

// ---- tokenizer.model of SentencePiece, type BPE: Llama 2 (sentencepiece.cc) ----

enum class SentencePieceRules {
  kOwn,             // SentencePiece's own: dummy prefix and white space as in the file, merges by score
  kLlamaTokenizer,  // transformers' LlamaTokenizer: merges by id; the caller sets its pre-tokenizer and decoder
};

struct SentencePieceModel {
  TokenizerSpec spec;  // control and user-defined pieces are its added tokens
  std::string unk_piece;
  std::string bos_piece;  // empty: none
  std::string eos_piece;
};

Result<SentencePieceModel> ReadSentencePiece(std::string_view bytes, const std::string& name, SentencePieceRules rules);

// ---- tokenizer.model of tiktoken: Llama 3; and vocab.json with merges.txt: GPT-2, OPT (vocab_files.cc) ----

// True when the first line has the form of a rank; a SentencePiece model never has.
bool LooksLikeTiktoken(std::string_view bytes);

// Each line is a token in base64, a space and its rank, which is its id. Special tokens are not in the file.
Result<TokenizerSpec> ReadTiktoken(std::string_view bytes, const std::string& name);

// The 256 special tokens that Llama 3 (names of version 3.1) puts behind 128,000 ranks, in the order of their ids.
std::vector<std::string> Llama3SpecialTokens();

// vocab.json maps tokens to ids, merges.txt has a merge on each line. Pre-tokenizer and decoder are GPT2Tokenizer's.
Result<TokenizerSpec> ReadVocabAndMerges(std::string_view vocab, const std::string& vocab_name, std::string_view merges,
                                         const std::string& merges_name);

}  // namespace infinigen
