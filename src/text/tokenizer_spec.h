// TokenizerSpec: what a tokenizer is, as plain data. Every reader fills one, whatever its file format; Pipeline runs
// it. The words are those of tokenizer.json, so that a component there and its step here have one name.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "text/bpe.h"
#include "text/vocabulary.h"

namespace infinigen {

// A token that is found in the text before anything else happens to it.
struct AddedToken {
  std::string content;
  TokenId id = -1;
  bool single_word = false;  // only where no word character touches it
  bool lstrip = false;       // takes the whitespace before it along
  bool rstrip = false;       // and after it
  bool normalized = true;    // sought in the normalized text, else in the text as it came
  bool special = false;      // not part of the text when decoding, not parsed from untrusted text
};

struct NormalizerStep {
  enum class Kind { kNfc, kNfd, kNfkc, kNfkd, kLowercase, kPrepend, kReplace, kStrip, kCollapseSpaces };
  Kind kind = Kind::kNfc;
  std::string pattern;  // kReplace
  std::string content;  // kReplace, kPrepend
  bool strip_left = false;
  bool strip_right = false;
};

enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };
enum class PrependScheme { kFirst, kNever, kAlways };

struct PreTokenizerStep {
  enum class Kind { kByteLevel, kSplitRegex, kSplitString, kDigits, kMetaspace };
  Kind kind = Kind::kByteLevel;
  std::string pattern;                                // kSplitRegex, kSplitString, and kByteLevel with its own pattern
  SplitBehavior behavior = SplitBehavior::kIsolated;  // kSplitRegex, kSplitString, kDigits
  bool invert = false;                                // kSplitRegex, kSplitString
  bool add_prefix_space = false;                      // kByteLevel
  std::string replacement;                            // kMetaspace: stands for the space
  PrependScheme prepend_scheme = PrependScheme::kAlways;  // kMetaspace
  bool split = true;                                      // kMetaspace
};

struct DecoderStep {
  enum class Kind { kByteLevel, kByteFallback, kFuse, kReplace, kStrip, kMetaspace, kJoinWithSpaces };
  Kind kind = Kind::kByteLevel;
  std::string pattern;       // kReplace, kMetaspace
  std::string content;       // kReplace; kStrip: the one character
  size_t start = 0;          // kStrip: at most so many at the start
  size_t stop = 0;           // kStrip: and at the end
  bool strip_first = false;  // kMetaspace: the first token loses its leading space
};

struct TokenizerSpec {
  TokenVocabulary vocabulary;  // added tokens included
  int32_t model_tokens = -1;   // how many of them are the model's; -1 until the first added token
  MergeTable merges;
  BpeOptions bpe;
  std::vector<AddedToken> added_tokens;
  std::unordered_map<TokenId, size_t> added_index;  // id -> position in added_tokens
  TokenId next_added = 0;                           // one more than the largest id in added_tokens
  std::vector<NormalizerStep> normalizers;
  std::vector<PreTokenizerStep> pre_tokenizers;
  std::vector<DecoderStep> decoders;
  // What the post-processor puts around a text.
  std::vector<TokenId> prefix;
  std::vector<TokenId> suffix;
};

// The pattern of GPT-2, which ByteLevel applies when use_regex is set.
inline constexpr const char* kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// How SentencePiece's vocabularies are decoded: spaces and bytes come back, and one leading space goes where encoding
// had put one before the text.
std::vector<DecoderStep> MetaspaceDecoders(bool prefix_space);

inline constexpr size_t kMaxAddedTokens = 1 << 16;  // real files have at most a few thousand

// Adds a token as Hugging Face's library does: it takes the id of the vocabulary's token of that text, else the number
// of the model's tokens, or the id after the largest added one. One that is already there is left alone, but becomes
// special if asked to be. An id that the token brings along must be the one it gets.
Status AddToken(AddedToken token, TokenizerSpec& spec);

}  // namespace infinigen
