// Needle cases: a family's sentences planted in filler, and the question about them, as tokens.
//
// A case depends only on the seed, family, length, number of facts, index and tokenizer, so it is the same for every KV
// method and batch. The asked fact of case i of n is at a depth drawn from [i/n, (i+1)/n), so all depths occur evenly;
// the other facts are anywhere. All facts have different keys ("the north gate") and the same wording otherwise.
// docs/model.md describes the forms of prompts.
//
// The whole prompt is encoded as one string, as a user would do it, then split into `context`, which is prefilled, and
// `question`, whose tokens are decode steps. One thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/split_mix.h"
#include "eval/needle_family.h"
#include "runtime/requests.h"

namespace infinigen {

// One string that the answer should contain.
struct NeedleSought {
  std::string text;       // "483920"
  std::string statement;  // the sentence that states it; empty in the family words
  double depth = 0;       // depth drawn for that sentence, in [0, 1)
  size_t at = 0;          // byte offset of the sentence in the case's text
  int64_t token = 0;      // index of its first token in the case's context
};

struct NeedleCase {
  NeedleSpec spec;
  std::vector<NeedleSought> sought;  // never empty
  std::string text;                  // the filler with the facts
  std::string question;              // follows the text
  std::vector<int32_t> context;
  std::vector<int32_t> question_ids;

  // Relative position of a sought string's sentence in the context, in [0, 1).
  double depth(size_t which = 0) const {
    return static_cast<double>(sought[which].token) / static_cast<double>(context.size());
  }
  int64_t prompt_tokens() const { return static_cast<int64_t>(context.size() + question_ids.size()); }
};

class NeedleMaker {
 public:
  // `tokenizer` outlives it. `source`: text to cut filler from; nullopt: filler is generated. kChat needs a chat
  // template.
  static Result<NeedleMaker> Make(const Tokenizer& tokenizer, NeedleForm form, std::optional<std::string> source,
                                  uint64_t seed);

  // Refuses facts that do not fit into the length, and a source with too little text. Precondition: spec.facts ≤
  // MostFacts(spec.family).
  Result<NeedleCase> Case(const NeedleSpec& spec) const;

 private:
  struct Draft;

  NeedleMaker(const Tokenizer& tokenizer, NeedleForm form, std::optional<std::string> source, uint64_t seed)
      : tokenizer_(&tokenizer), form_(form), source_(std::move(source)), seed_(seed) {}

  Result<Draft> Draw(const NeedleSpec& spec) const;
  Result<std::vector<std::string>> WordPool(const NeedleSpec& spec, SplitMix& random) const;
  Result<NeedleCase> Fit(const NeedleSpec& spec, const Draft& draft) const;
  Status Cut(NeedleCase* made) const;
  Result<NeedleCase> Build(const NeedleSpec& spec, const Draft& draft, size_t sentences, size_t words) const;
  std::string QuestionOf(const NeedleTask& task) const;
  // Encodes a prompt or the beginning of one.
  Result<std::vector<int32_t>> Encode(std::string_view text) const;

  const Tokenizer* tokenizer_;
  NeedleForm form_;
  std::optional<std::string> source_;
  uint64_t seed_;
  std::vector<int32_t> opening_;    // special tokens before a text
  std::optional<ChatPrompt> chat_;  // with kChat
};

}  // namespace infinigen
