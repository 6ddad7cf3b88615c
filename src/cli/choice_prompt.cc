#include "cli/choice_prompt.h"

#include <algorithm>
#include <string_view>

#include "base/split_mix.h"
#include "cli/eval.h"
#include "text/unicode.h"

namespace infinigen {
namespace {

int64_t CountCharacters(std::string_view text) {
  int64_t count = 0;
  for (size_t at = 0; at < text.size(); at += ScanUtf8(text, at).length) ++count;
  return count;
}

}  // namespace

int64_t ChoiceQuestion::rows() const {
  int64_t most = 0;
  for (const ChoiceRequest& choice : choices) most = std::max(most, choice.rows());
  return most;
}

std::vector<size_t> DrawExamples(uint64_t seed, size_t index, size_t pool, size_t count, bool from_itself) {
  CHECK(count + (from_itself ? 1 : 0) <= pool);
  SplitMix first(seed);
  SplitMix random(first.Next() ^ static_cast<uint64_t>(index));
  std::vector<size_t> drawn;
  while (drawn.size() < count) {
    const size_t one = random.Below(pool);
    if (from_itself && one == index) continue;
    if (std::find(drawn.begin(), drawn.end(), one) == drawn.end()) drawn.push_back(one);
  }
  return drawn;
}

Result<ChoiceMaker> ChoiceMaker::Make(const ChoiceTask& task, const Tokenizer& tokenizer, int64_t examples,
                                      uint64_t seed) {
  ChoiceMaker maker(task, tokenizer, examples, seed);
  const int64_t most = static_cast<int64_t>(task.pool().size()) - (task.examples_path.empty() ? 1 : 0);
  if (examples > most)
    return Invalid("--shots {}: {} has only {} questions to draw from", examples,
                   task.examples_path.empty() ? task.path : task.examples_path, most);
  ASSIGN_OR_RETURN(maker.opening_, OpeningIds(tokenizer));
  return maker;
}

std::string ChoiceMaker::Examples(size_t index) const {
  std::string text;
  const std::vector<ChoiceItem>& pool = task_->pool();
  for (const size_t one : DrawExamples(seed_, index, pool.size(), examples_, task_->examples_path.empty()))
    text += pool[one].context(pool[one].answer) + " " + pool[one].ending(pool[one].answer) + "\n\n";
  return text;
}

Result<ChoiceRequest> ChoiceMaker::Encode(std::string_view context, const std::vector<int32_t>& before,
                                          std::string_view ending) const {
  ChoiceRequest request{.context = opening_, .ending = {}, .characters = CountCharacters(ending)};
  const std::string whole = std::string(context) + " " + std::string(ending);
  ASSIGN_OR_RETURN(const std::vector<int32_t> all, tokenizer_->Encode(whole, {.add_special = false}));
  request.context.insert(request.context.end(), before.begin(), before.end());
  // What is predicted needs something before it: where a text has no opening, the token that begins or ends texts.
  if (request.context.empty()) {
    const std::optional<int32_t> prefix = tokenizer_->bos() ? tokenizer_->bos() : tokenizer_->eos();
    if (!prefix) return Invalid("the context is empty, and the tokenizer has no token that could take its place");
    request.context.push_back(*prefix);
  }
  if (all.size() <= before.size()) return Invalid("the tokenizer makes the choice a part of its context's last token");
  request.ending.assign(all.begin() + static_cast<ptrdiff_t>(before.size()), all.end());
  return request;
}

Result<ChoiceQuestion> ChoiceMaker::Question(size_t index) const {
  const ChoiceItem& item = task_->items[index];
  const std::string examples = Examples(index);
  ChoiceQuestion question{.choices = {}, .answer = item.answer, .line = item.line};
  std::string context;
  std::vector<int32_t> before;  // the tokens of the context
  for (size_t choice = 0; choice < item.count(); ++choice) {
    if (choice < item.contexts.size()) {
      context = examples + item.contexts[choice];
      ASSIGN_OR_RETURN(before, tokenizer_->Encode(TrimmedRight(context), {.add_special = false}));
    }
    Result<ChoiceRequest> request = Encode(context, before, item.ending(choice));
    if (!request.ok())
      return Error{request.error().kind, fmt::format("{}:{}: {}", task_->path, item.line, request.error().message)};
    question.choices.push_back(std::move(request).value());
  }
  return question;
}

}  // namespace infinigen
