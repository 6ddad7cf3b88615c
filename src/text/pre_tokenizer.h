// PreTokenizer: cuts normalized text into the words that BPE encodes one by one. Immutable, any thread;
// PreTokenizerScratch is the working memory of one Encode.
#pragma once

#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/regex_splitter.h"
#include "text/tokenizer_spec.h"

namespace infinigen {

struct PreTokenizerScratch {
  RegexScratch regex;
};

// The place of a piece in its text.
struct PieceContext {
  bool text_start = false;  // nothing precedes it
  bool continues = false;   // it directly follows malformed bytes: no space is put before it
};

class PreTokenizer {
 public:
  using Sink = std::function<void(std::string_view word)>;

  // The message of an error is without file name.
  static Result<PreTokenizer> Create(std::vector<PreTokenizerStep> steps);

  // Hands each word of `text` (valid UTF-8) to `sink`, in order. With a ByteLevel step words are bytes, to be encoded
  // as such. Words may point into temporary text: they are valid during the call only.
  Status Run(std::string_view text, PieceContext context, PreTokenizerScratch& scratch, const Sink& sink) const;

 private:
  struct Step {
    PreTokenizerStep spec;
    std::optional<RegexSplitter> regex;
  };
  struct Range {
    size_t begin = 0;
    size_t end = 0;
    bool match = false;
  };
  using Ranges = std::vector<Range>;

  PreTokenizer() = default;

  Status Apply(size_t index, std::string_view piece, PieceContext context, PreTokenizerScratch& scratch,
               const Sink& sink) const;
  Status ApplyIsolated(size_t index, std::string_view piece, PieceContext context, PreTokenizerScratch& scratch,
                       const Sink& sink) const;
  Status ApplySplit(size_t index, std::string_view piece, PieceContext context, PreTokenizerScratch& scratch,
                    const Sink& sink) const;
  Status ApplyMetaspace(size_t index, std::string_view piece, PieceContext context, PreTokenizerScratch& scratch,
                        const Sink& sink) const;
  Status ApplyRanges(size_t index, std::string_view piece, const Ranges& ranges, PieceContext context,
                     PreTokenizerScratch& scratch, const Sink& sink) const;
  static Ranges Behave(const Ranges& ranges, SplitBehavior behavior);

  std::vector<Step> steps_;
};

}  // namespace infinigen
