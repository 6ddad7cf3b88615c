// The tokenizer of a GGUF file, whose metadata holds tokens, scores, types and merges. GgufVocabulary is that metadata
// as plain data; Tokenizer::FromGguf makes a tokenizer of it, whose ids equal llama.cpp's for the same file. Used while
// loading, by one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/tokenizer_spec.h"

namespace infinigen {

// Views of the file; the comment names the key after "tokenizer.".
struct GgufVocabulary {
  std::string path;                      // the file, for messages
  std::string_view model_name;           // general.name
  std::string_view model;                // ggml.model: "gpt2" (byte-level BPE) or "llama" (SentencePiece)
  std::string_view pre;                  // ggml.pre: how "gpt2" splits text into words
  std::vector<std::string_view> tokens;  // ggml.tokens [id]; an empty text is an id without token
  std::vector<float> scores;             // ggml.scores [id]; "llama" needs them
  std::vector<int64_t> types;            // ggml.token_type [id]; empty: all normal
  std::vector<std::string_view> merges;  // ggml.merges, "left right" in order of rank; "gpt2" needs them
  std::optional<int64_t> bos, eos, unk;  // ggml.bos_token_id …
  std::optional<bool> add_bos, add_eos;  // ggml.add_bos_token, ggml.add_eos_token; absent: by model and pre
  std::optional<bool> add_space_prefix;  // ggml.add_space_prefix; absent: true for "llama"
  std::string_view chat_template;        // chat_template; empty: none
};

// Values of GgufVocabulary::types.
enum class GgufTokenKind : int64_t {
  kUndefined = 0,
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

// Error messages contain the file's name.
Result<TokenizerSpec> ReadGgufVocabulary(const GgufVocabulary& vocabulary);

// True for tokens that end a turn or a text in some family. Files may mark them as normal tokens and name only one of
// them as EOS; llama.cpp treats them as control tokens and stops at any of them.
bool IsGgufEndToken(std::string_view text);

// ---- writing ----

// The metadata of a tokenizer, for a file that is to be written. Members as in GgufVocabulary.
struct GgufTokenizerText {
  std::string model;
  std::string pre;                  // empty for "llama"
  std::vector<std::string> tokens;  // [vocab]; ids without token have a placeholder
  std::vector<float> scores;        // [vocab] for "llama", otherwise empty
  std::vector<int32_t> types;       // [vocab]
  std::vector<std::string> merges;  // for "gpt2"
  std::optional<int32_t> bos, eos, unk, pad;
  bool add_bos = false;
  bool add_eos = false;
  bool add_space_prefix = false;
  std::string chat_template;
};

// Translates the tokenizer of a model directory. `vocab`: rows of the model's embedding. Refuses by name what the
// format cannot express, such as a pattern without pre-type.
Result<GgufTokenizerText> ExportGgufTokenizer(const std::string& directory, int64_t vocab);

// The pre-type that splits text like `steps`; empty if there is none.
std::string_view GgufPreType(const std::vector<PreTokenizerStep>& steps, bool ignore_merges);

}  // namespace infinigen
