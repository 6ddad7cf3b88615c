// Needle cases: a family's sentences planted in filler, and the question about them, as tokens.
//
// A case is a function of the seed, its family, its length, its number of facts and its index: the same for every model
// with the same tokenizer, every KV method and every batch. Case i of n has its asked fact at a depth drawn from
// [i/n, (i+1)/n), so all depths are visited evenly; the other facts lie anywhere. All facts have different keys ("the
// north gate") and are otherwise worded alike. docs/model.md describes the forms of prompts.
//
// The whole prompt is encoded as one string, as a user would do it, and then cut in two: `context`, which a model
// prefills, and `question`, which it is fed as decode steps. One thread.
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
#include "runtime/text.h"

namespace infinigen {

// One string that the answer should have.
struct NeedleSought {
  std::string text;       // "483920"
  std::string statement;  // the sentence that gives it; empty: no single sentence does (words)
  double depth = 0;       // the depth that was drawn for that sentence, in [0, 1)
  size_t at = 0;          // byte of the case's text where it begins
  int64_t token = 0;      // index in the case's context of its first token
};

struct NeedleCase {
  NeedleSpec spec;
  std::vector<NeedleSought> sought;  // never empty
  std::string text;                  // the filler with its facts
  std::string question;              // as it follows the text
  std::vector<int32_t> context;
  std::vector<int32_t> question_ids;

  // Where the sentence of a sought string lies in the context, in [0, 1).
  double depth(size_t which = 0) const {
    return static_cast<double>(sought[which].token) / static_cast<double>(context.size());
  }
  int64_t prompt_tokens() const { return static_cast<int64_t>(context.size() + question_ids.size()); }
};

class NeedleMaker {
 public:
  // `tokenizer` outlives it. `source`: the real text to cut from; nullopt: text is generated. kChat needs a chat
  // template.
  static Result<NeedleMaker> Make(const Tokenizer& tokenizer, NeedleForm form, std::optional<std::string> source,
                                  uint64_t seed);

  // Refuses facts that do not fit the length, and a source with too little text. Precondition: spec.facts is at most
  // MostFacts.
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
  // A prompt, or the beginning of one.
  Result<std::vector<int32_t>> Encode(std::string_view text) const;

  const Tokenizer* tokenizer_;
  NeedleForm form_;
  std::optional<std::string> source_;
  uint64_t seed_;
  std::vector<int32_t> opening_;    // what the tokenizer puts before a text
  std::optional<ChatPrompt> chat_;  // with kChat
};

}  // namespace infinigen
