#include "eval/needle_case.h"

#include <fmt/format.h>

#include <algorithm>

#include "eval/filler.h"
#include "runtime/model.h"

namespace infinigen {
namespace {

// Shares of the room for a prompt.
constexpr double kFilled = 0.98;  // below this, a part of a sentence is added
constexpr double kShort = 0.9;    // below this, the source has too little text

// The first `words` words of a sentence, and a full stop.
std::string Shortened(std::string_view sentence, size_t words) {
  size_t end = 0;
  while (words-- > 0 && end != std::string_view::npos) end = sentence.find(' ', end + 1);
  std::string text(sentence.substr(0, end));
  while (!text.empty() && std::string_view(",;:-.!?").find(text.back()) != std::string_view::npos) text.pop_back();
  return text + ".";
}

}  // namespace

// The parts of a case before the amount of filler is known.
struct NeedleMaker::Draft {
  std::vector<FillerSentence> filler;
  NeedleTask task;
  std::vector<int64_t> costs;  // [filler], tokens of each sentence alone
  size_t least = 2;            // minimum sentences of filler
};

Result<NeedleMaker> NeedleMaker::Make(const Tokenizer& tokenizer, NeedleForm form, std::optional<std::string> source,
                                      uint64_t seed) {
  NeedleMaker maker(tokenizer, form, std::move(source), seed);
  ASSIGN_OR_RETURN(maker.opening_, OpeningIds(tokenizer));
  if (form != NeedleForm::kChat) return maker;
  if (tokenizer.chat_template().empty())
    return Unsupported("--form chat: the model's directory has no chat template; pass --form plain");
  ASSIGN_OR_RETURN(maker.chat_, ChatPrompt::Make(tokenizer));
  return maker;
}

// Text that looks like special tokens is encoded as plain text in every form.
Result<std::vector<int32_t>> NeedleMaker::Encode(std::string_view text) const {
  if (chat_) return chat_->Encode(std::vector<ChatMessage>{{"user", std::string(text)}});
  std::vector<int32_t> ids = opening_;
  ASSIGN_OR_RETURN(const std::vector<int32_t> rest,
                   tokenizer_->Encode(text, {.add_special = false, .parse_special = false}));
  ids.insert(ids.end(), rest.begin(), rest.end());
  return ids;
}

std::string NeedleMaker::QuestionOf(const NeedleTask& task) const {
  if (form_ == NeedleForm::kContinuation) return task.opening;
  if (form_ == NeedleForm::kChat) return fmt::format("\n\n{}", task.question);
  return fmt::format("\n\nQuestion: {}\nAnswer:", task.question);
}

// Builds the case with the first `sentences` sentences of the filler and `words` words of the next one. Its context is
// the whole prompt until Cut is called.
Result<NeedleCase> NeedleMaker::Build(const NeedleSpec& spec, const Draft& draft, size_t sentences,
                                      size_t words) const {
  std::vector<FillerSentence> filler(draft.filler.begin(), draft.filler.begin() + static_cast<ptrdiff_t>(sentences));
  if (words > 0) filler.push_back({draft.filler[sentences].before, Shortened(draft.filler[sentences].text, words)});

  // Facts can be placed before sentences that continue a paragraph.
  std::vector<size_t> starts, places;
  size_t bytes = 0;
  for (size_t i = 0; i < filler.size(); ++i) {
    bytes += (i > 0 ? filler[i].before.size() : 0) + filler[i].text.size();
    starts.push_back(bytes - filler[i].text.size());
    if (i > 0 && filler[i].before != "\n\n") places.push_back(i);
  }
  const std::vector<NeedleStatement>& statements = draft.task.statements;
  if (places.empty() && !statements.empty())
    return Invalid("the text has no two sentences in one paragraph, so a fact cannot be placed between them");
  std::vector<std::vector<size_t>> facts_before(filler.size());
  for (size_t f = 0; f < statements.size(); ++f) {
    const double wanted = statements[f].depth * static_cast<double>(bytes);
    const auto far_enough = [&](size_t place) { return static_cast<double>(starts[place]) >= wanted; };
    const auto place = std::find_if(places.begin(), places.end(), far_enough);
    facts_before[place != places.end() ? *place : places.back()].push_back(f);
  }

  NeedleCase made{.spec = spec};
  for (const std::string& text : draft.task.sought) made.sought.push_back({.text = text});
  for (size_t i = 0; i < filler.size(); ++i) {
    if (i > 0) made.text += filler[i].before;
    for (const size_t f : facts_before[i]) {
      const NeedleStatement& said = statements[f];
      if (said.sought) {
        NeedleSought& sought = made.sought[*said.sought];
        sought.statement = said.text;
        sought.depth = said.depth;
        sought.at = made.text.size();
      }
      made.text += said.text + " ";
    }
    made.text += filler[i].text;
  }
  made.question = QuestionOf(draft.task);
  ASSIGN_OR_RETURN(made.context, Encode(made.text + made.question));
  return made;
}

// Distinct words for a list, from the source or from StoryNouns.
Result<std::vector<std::string>> NeedleMaker::WordPool(const NeedleSpec& spec, SplitMix& random) const {
  std::vector<std::string> pool;
  if (source_) {
    std::string text;
    for (const FillerSentence& sentence :
         CutFiller(*source_, static_cast<size_t>(spec.length) * kFillerBytesPerToken, random))
      text += sentence.text + " ";
    pool = DistinctWords(text);
  } else {
    for (const std::string_view word : StoryNouns()) pool.emplace_back(word);
  }
  if (pool.size() < WordsNeeded(spec.facts))
    return Invalid("the text has {} different words of 4 to 10 letters, but a list needs {}; pass a longer file",
                   pool.size(), WordsNeeded(spec.facts));
  return pool;
}

Result<NeedleMaker::Draft> NeedleMaker::Draw(const NeedleSpec& spec) const {
  SplitMix random(seed_);
  for (const int64_t part : {spec.length, spec.facts, spec.index})
    random = SplitMix(random.Next() ^ static_cast<uint64_t>(part));
  // single and multi-key have the same cases.
  if (!AsksForOne(spec.family)) random = SplitMix(random.Next() ^ static_cast<uint64_t>(spec.family));
  Draft draft;
  if (spec.family == NeedleFamily::kWords) {
    ASSIGN_OR_RETURN(std::vector<std::string> pool, WordPool(spec, random));
    draft.task = DrawWords(spec, std::move(pool), static_cast<size_t>(spec.length), random, &draft.filler);
    draft.least = 1 + WordsInRound(spec.facts);
  } else {
    draft.task = DrawTask(spec, random);
    const size_t enough = static_cast<size_t>(spec.length) * kFillerBytesPerToken;
    draft.filler = source_ ? CutFiller(*source_, enough, random) : StoryFiller(random.Next(), enough);
  }
  if (draft.filler.size() < draft.least) return Invalid("the text has fewer than two sentences");
  for (const FillerSentence& sentence : draft.filler) {
    ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                     tokenizer_->Encode(" " + sentence.text, {.add_special = false, .parse_special = false}));
    draft.costs.push_back(static_cast<int64_t>(ids.size()));
  }
  return draft;
}

// Adds as much filler as fits into the length. The number of sentences is estimated from the tokens of each, then
// corrected by the tokens of the whole prompt; a part of the next sentence fills the rest.
Result<NeedleCase> NeedleMaker::Fit(const NeedleSpec& spec, const Draft& draft) const {
  const int64_t room = spec.length - AnswerRoom(spec, form_);
  const std::vector<int64_t>& costs = draft.costs;
  int64_t left = room;
  if (!draft.task.statements.empty()) {
    ASSIGN_OR_RETURN(const std::vector<int32_t> fact_ids, Encode(draft.task.statements[0].text));
    left -= static_cast<int64_t>(draft.task.statements.size() * fact_ids.size());
  }
  size_t count = 0;
  while (count < costs.size() && costs[count] <= left) left -= costs[count++];
  count = std::max(count, draft.least);

  ASSIGN_OR_RETURN(NeedleCase best, Build(spec, draft, count, 0));
  while (best.prompt_tokens() > room) {
    if (count == draft.least)
      return Invalid(
          "{} tokens are too few for {} fact{}, the question and the answer; use a longer context or fewer facts",
          spec.length, spec.facts, spec.facts == 1 ? "" : "s");
    for (int64_t over = best.prompt_tokens() - room; over > 0 && count > draft.least;) over -= costs[--count];
    ASSIGN_OR_RETURN(best, Build(spec, draft, count, 0));
  }
  const auto gap = [&] { return room - best.prompt_tokens(); };
  const auto filled = [&] { return static_cast<double>(best.prompt_tokens()) > kFilled * static_cast<double>(room); };
  while (!filled() && count < costs.size() && costs[count] <= gap()) {
    ASSIGN_OR_RETURN(NeedleCase longer, Build(spec, draft, count + 1, 0));
    if (longer.prompt_tokens() > room) break;
    best = std::move(longer);
    ++count;
  }
  if (filled() || count == costs.size()) return best;
  const std::string& next = draft.filler[count].text;
  const int64_t words = 1 + std::count(next.begin(), next.end(), ' ');
  for (int64_t kept = std::min(words * gap() / costs[count] + 1, words - 1); kept > 0; --kept) {
    ASSIGN_OR_RETURN(NeedleCase longer, Build(spec, draft, count, static_cast<size_t>(kept)));
    if (longer.prompt_tokens() <= room) return longer;
  }
  return best;
}

// Splits the prompt into context and question, and finds the token of each fact: the first token at which the prompt
// differs from the prompt of a text that ends before the fact. A token across the end of the text (".\n\n") belongs to
// the question.
Status NeedleMaker::Cut(NeedleCase* made) const {
  const auto parts_from = [&](const std::vector<int32_t>& ids) {
    return std::mismatch(made->context.begin(), made->context.end(), ids.begin(), ids.end()).first;
  };
  for (NeedleSought& sought : made->sought) {
    if (sought.statement.empty()) continue;
    // Ends before the space in front of the fact, because that space belongs to the fact's first token.
    ASSIGN_OR_RETURN(const std::vector<int32_t> before, Encode(made->text.substr(0, sought.at - 1)));
    sought.token = parts_from(before) - made->context.begin();
  }
  ASSIGN_OR_RETURN(const std::vector<int32_t> text, Encode(made->text));
  const auto cut = parts_from(text);
  made->question_ids.assign(cut, made->context.end());
  made->context.erase(cut, made->context.end());
  return Ok();
}

Result<NeedleCase> NeedleMaker::Case(const NeedleSpec& spec) const {
  ASSIGN_OR_RETURN(const Draft draft, Draw(spec));
  ASSIGN_OR_RETURN(NeedleCase made, Fit(spec, draft));
  if (static_cast<double>(made.prompt_tokens()) < kShort * static_cast<double>(spec.length - AnswerRoom(spec, form_)))
    return Invalid("the text is too short for a context of {} tokens: it has only {}; pass a longer file", spec.length,
                   made.prompt_tokens());
  RETURN_IF_ERROR(Cut(&made));
  return made;
}

}  // namespace infinigen
