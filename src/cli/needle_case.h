// Needle cases: facts planted in filler, and the question about one of them, as tokens.
//
// A case is a function of the seed, its length, its number of facts and its index: the same for every model with the
// same tokenizer, every KV method and every batch. Of n cases the i-th has its asked fact at a depth drawn from
// [i/n, (i+1)/n), so all depths are visited evenly; the other facts lie anywhere. All facts have different keys
// ("the north gate") and differ in nothing else. The forms of prompt are told in docs/model.md.
//
// The whole prompt is encoded as one string, as a user would do it, and then cut in two: `context`, which a model
// prefills, and `question`, which it is fed as decode steps.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/split_mix.h"
#include "cli/needle_text.h"
#include "text/chat_prompt.h"
#include "text/tokenizer.h"

namespace infinigen {

enum class NeedleForm { kPlain, kChat, kContinuation };

struct NeedleFact {
  std::string key;   // "the north gate"
  std::string code;  // six digits

  std::string Statement() const;
  std::string Question() const;
};
inline constexpr int64_t kMostFacts = 256;  // there are more keys

struct NeedleSpec {
  int64_t length = 0;  // tokens of context, question and answer together, at most
  int64_t facts = 1;
  int64_t index = 0, n = 1;  // case `index` of `n`
};

struct NeedleCase {
  NeedleSpec spec;
  NeedleFact asked;
  std::string text;      // the filler with its facts
  size_t fact_at = 0;    // byte of `text` where the asked statement begins
  std::string question;  // as it follows the text
  std::vector<int32_t> context;
  std::vector<int32_t> question_ids;
  int64_t fact_token = 0;  // index in `context` of the first token of the asked statement

  double depth() const { return static_cast<double>(fact_token) / static_cast<double>(context.size()); }
  int64_t prompt_tokens() const { return static_cast<int64_t>(context.size() + question_ids.size()); }
};

// Tokens that an answer may have.
int64_t AnswerTokens(NeedleForm form);
// Tokens of `spec.length` that the prompt leaves free: the answer, and a margin.
int64_t AnswerRoom(NeedleForm form);

// Whether an answer gives the code: its first number, alone in the plain forms, anywhere in a chat's sentence. kOpen:
// the next token decides; never when the answer has ended.
enum class Verdict { kOpen, kRight, kWrong };
Verdict Judge(std::string_view answer, std::string_view code, NeedleForm form, bool ended);

class NeedleMaker {
 public:
  // `tokenizer` outlives it. `source`: the real text to cut from; nothing: generated text. kChat needs a chat template.
  static Result<NeedleMaker> Make(const Tokenizer& tokenizer, NeedleForm form, std::optional<std::string> source,
                                  uint64_t seed);

  // Fails where the facts do not fit the length, or the source has too little text for it.
  Result<NeedleCase> Case(const NeedleSpec& spec) const;

 private:
  struct Draft;

  NeedleMaker(const Tokenizer& tokenizer, NeedleForm form, std::optional<std::string> source, uint64_t seed)
      : tokenizer_(&tokenizer), form_(form), source_(std::move(source)), seed_(seed) {}

  Result<Draft> Draw(const NeedleSpec& spec) const;
  Result<NeedleCase> Fit(const NeedleSpec& spec, const Draft& draft) const;
  Status Cut(NeedleCase* made) const;
  Result<NeedleCase> Build(const NeedleSpec& spec, const Draft& draft, size_t sentences, size_t words) const;
  std::string QuestionOf(const NeedleFact& fact) const;
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
