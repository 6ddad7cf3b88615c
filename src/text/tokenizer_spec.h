// TokenizerSpec: a tokenizer as plain data. Every reader fills one, whatever its file format; Pipeline runs it. The
// names are those of tokenizer.json.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "text/bpe.h"
#include "text/vocabulary.h"

namespace infinigen {

// A token that is found in the text before the text is split.
struct AddedToken {
  std::string content;
  TokenId id = -1;
  bool single_word = false;  // only where no word character touches it
  bool lstrip = false;       // swallows the white space before it
  bool rstrip = false;       // and after it
  bool normalized = true;    // searched for in the normalized text, else in the input
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
  size_t start = 0;          // kStrip: most characters to take from the start
  size_t stop = 0;           // kStrip: and from the end
  bool strip_first = false;  // kMetaspace: the first token loses its leading space
};

struct TokenizerSpec {
  TokenVocabulary vocabulary;  // added tokens included
  int32_t model_tokens = -1;   // number of tokens before the first added one; -1 until there is one
  MergeTable merges;
  BpeOptions bpe;
  std::vector<AddedToken> added_tokens;
  std::unordered_map<TokenId, size_t> added_index;  // id -> position in added_tokens
  TokenId next_added = 0;                           // one more than the largest id in added_tokens
  std::vector<NormalizerStep> normalizers;
  std::vector<PreTokenizerStep> pre_tokenizers;
  std::vector<DecoderStep> decoders;
  // Tokens that the post-processor puts around a text.
  std::vector<TokenId> prefix;
  std::vector<TokenId> suffix;
};

// The pattern of GPT-2, which ByteLevel applies when use_regex is set.
inline constexpr const char* kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// The decoder of SentencePiece's vocabularies: spaces and bytes are restored. With `prefix_space`, one leading space is
// dropped, which encoding had put there.
std::vector<DecoderStep> MetaspaceDecoders(bool prefix_space);

inline constexpr size_t kMaxAddedTokens = 1 << 16;  // real files have at most a few thousand

// Adds a token as Hugging Face's library does. Its id is that of the vocabulary's token of the same text, else the
// number of the model's tokens, or the id after the largest added one. A token that is already there only becomes
// special, when the new one is. An id that the token states must be the id that it gets.
Status AddToken(AddedToken token, TokenizerSpec& spec);

}  // namespace infinigen
