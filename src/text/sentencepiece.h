// Reads a SentencePiece model of type BPE: Llama 2's tokenizer.model. The file is a protocol buffer, read here by hand:
// only a handful of its fields matter.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "text/tokenizer_spec.h"

namespace infinigen {

enum class SentencePieceRules {
  kOwn,             // SentencePiece's: dummy prefix and white space as the file says, merges by score
  kLlamaTokenizer,  // transformers' LlamaTokenizer: merges by id; the caller sets its pre-tokenizer and decoder
};

struct SentencePieceModel {
  TokenizerSpec spec;  // control and user-defined pieces are its added tokens
  std::string unk_piece;
  std::string bos_piece;  // empty: none
  std::string eos_piece;
};

// `name` begins every message.
Result<SentencePieceModel> ReadSentencePiece(std::string_view bytes, const std::string& name, SentencePieceRules rules);

}  // namespace infinigen
