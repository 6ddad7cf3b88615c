// TokenizerSpec: a tokenizer as plain data, independent of the file format. The readers (text/tokenizer_files.h) fill
// it; Pipeline runs it. The names are those of tokenizer.json.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "text/bpe.h"
#include "text/vocabulary.h"

namespace infinigen {

// A token that is searched for in the text before the text is split into words.
struct AddedToken {
  std::string content;
  TokenId id = -1;
  bool single_word = false;  // matches only where no word character is adjacent
  bool lstrip = false;       // the match includes white space before the token
  bool rstrip = false;       // the match includes white space after the token
  bool normalized = true;    // searched for in the normalized text instead of the raw input
  bool special = false;      // can be skipped in decoding; not recognised in untrusted text
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
  std::string replacement;                            // kMetaspace: replaces the space
  PrependScheme prepend_scheme = PrependScheme::kAlways;  // kMetaspace
  bool split = true;                                      // kMetaspace
};

struct DecoderStep {
  enum class Kind { kByteLevel, kByteFallback, kFuse, kReplace, kStrip, kMetaspace, kJoinWithSpaces };
  Kind kind = Kind::kByteLevel;
  std::string pattern;       // kReplace, kMetaspace
  std::string content;       // kReplace; kStrip: the one character
  size_t start = 0;          // kStrip: most characters to remove from the start
  size_t stop = 0;           // kStrip: most characters to remove from the end
  bool strip_first = false;  // kMetaspace: remove the leading space of the first token
};

struct TokenizerSpec {
  TokenVocabulary vocabulary;  // including added tokens
  int32_t model_tokens = -1;   // number of tokens before the first added token; -1 until one is added
  MergeTable merges;
  BpeOptions bpe;
  std::vector<AddedToken> added_tokens;
  std::unordered_map<TokenId, size_t> added_index;  // id -> position in added_tokens
  TokenId next_added = 0;                           // largest id in added_tokens + 1
  std::vector<NormalizerStep> normalizers;
  std::vector<PreTokenizerStep> pre_tokenizers;
  std::vector<DecoderStep> decoders;
  // Tokens that the post-processor adds before and after a text.
  std::vector<TokenId> prefix;
  std::vector<TokenId> suffix;
};

// GPT-2's pattern, which ByteLevel applies when use_regex is set.
inline constexpr const char* kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

}  // namespace infinigen
