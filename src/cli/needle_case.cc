#include "cli/needle_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "cli/eval.h"

namespace infinigen {
namespace {

// Keys are a side and a spot; both were in the shipped model's training.
constexpr std::array<std::string_view, 24> kSides = {
    "north", "south", "east",   "west",  "upper", "lower", "old",   "new",   "inner", "outer", "main",   "back",
    "front", "first", "second", "small", "red",   "blue",  "green", "white", "black", "iron",  "wooden", "hidden"};
constexpr std::array<std::string_view, 32> kSpots = {
    "gate",    "tower",   "bridge",   "vault",      "cellar",      "garden",  "harbour", "station",
    "library", "archive", "workshop", "office",     "hall",        "chapel",  "museum",  "stable",
    "barn",    "mill",    "tunnel",   "lighthouse", "greenhouse",  "kitchen", "attic",   "courtyard",
    "depot",   "shed",    "cabin",    "storehouse", "observatory", "bakery",  "school",  "boathouse"};
static_assert(kSides.size() * kSpots.size() >= static_cast<size_t>(kMostFacts));

constexpr double kFilled = 0.98;  // of the room; below that a part of a sentence is added
constexpr double kShort = 0.9;    // of the room; below that the source had too little text

std::vector<NeedleFact> DrawFacts(int64_t count, SplitMix& random) {
  std::vector<NeedleFact> facts;
  while (static_cast<int64_t>(facts.size()) < count) {
    NeedleFact fact;
    fact.key = fmt::format("the {} {}", random.Pick(kSides), random.Pick(kSpots));
    fact.code = fmt::format("{}", 100000 + random.Below(900000));
    const auto clashes = [&](const NeedleFact& other) { return other.key == fact.key || other.code == fact.code; };
    if (std::none_of(facts.begin(), facts.end(), clashes)) facts.push_back(std::move(fact));
  }
  return facts;
}

// The first `words` words of a sentence, closed with a full stop.
std::string Shortened(std::string_view sentence, size_t words) {
  size_t end = 0;
  while (words-- > 0 && end != std::string_view::npos) end = sentence.find(' ', end + 1);
  std::string text(sentence.substr(0, end));
  while (!text.empty() && std::string_view(",;:-.!?").find(text.back()) != std::string_view::npos) text.pop_back();
  return text + ".";
}

constexpr std::string_view kDigits = "0123456789";

}  // namespace

std::string NeedleFact::Statement() const { return fmt::format("The access code for {} is {}.", key, code); }
std::string NeedleFact::Question() const { return fmt::format("What is the access code for {}?", key); }

// A chat model answers with a sentence, the other forms with the code alone.
int64_t AnswerTokens(NeedleForm form) { return form == NeedleForm::kChat ? 32 : 12; }
int64_t AnswerRoom(NeedleForm form) { return AnswerTokens(form) + 4; }

Verdict Judge(std::string_view answer, std::string_view code, NeedleForm form, bool ended) {
  const size_t first = std::min(answer.find_first_of(kDigits), answer.size());
  const std::string_view number = answer.substr(first, answer.find_first_not_of(kDigits, first) - first);
  // Only a chat's sentence has words before the code.
  if (form != NeedleForm::kChat && answer.substr(0, first).find_first_not_of(' ') != std::string_view::npos)
    return Verdict::kWrong;
  const bool whole = ended || first + number.size() < answer.size();  // no further digit can come
  if (whole) return number == code ? Verdict::kRight : Verdict::kWrong;
  return number == code.substr(0, number.size()) ? Verdict::kOpen : Verdict::kWrong;
}

// What a case is made of, before it is known how much of the filler fits.
struct NeedleMaker::Draft {
  std::vector<FillerSentence> filler;
  std::vector<NeedleFact> facts;  // the first one is asked for
  std::vector<double> depths;     // of each fact, in [0, 1)
  std::vector<int64_t> costs;     // [filler], tokens of each sentence alone
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

// Words of the text that look like special tokens stay words, in every form.
Result<std::vector<int32_t>> NeedleMaker::Encode(std::string_view text) const {
  if (chat_) return chat_->Encode(std::vector<ChatMessage>{{"user", std::string(text)}});
  std::vector<int32_t> ids = opening_;
  ASSIGN_OR_RETURN(const std::vector<int32_t> rest,
                   tokenizer_->Encode(text, {.add_special = false, .parse_special = false}));
  ids.insert(ids.end(), rest.begin(), rest.end());
  return ids;
}

std::string NeedleMaker::QuestionOf(const NeedleFact& fact) const {
  if (form_ == NeedleForm::kContinuation) return fmt::format(" The access code for {} is", fact.key);
  if (form_ == NeedleForm::kChat) return fmt::format("\n\n{}", fact.Question());
  return fmt::format("\n\nQuestion: {}\nAnswer:", fact.Question());
}

// The case with the first `sentences` sentences of the filler and `words` words of the next one. All of the prompt is
// in its context still (Cut).
Result<NeedleCase> NeedleMaker::Build(const NeedleSpec& spec, const Draft& draft, size_t sentences,
                                      size_t words) const {
  std::vector<FillerSentence> filler(draft.filler.begin(), draft.filler.begin() + static_cast<ptrdiff_t>(sentences));
  if (words > 0) filler.push_back({draft.filler[sentences].before, Shortened(draft.filler[sentences].text, words)});

  // Places for facts: before sentences that continue a paragraph.
  std::vector<size_t> starts, places;
  size_t bytes = 0;
  for (size_t i = 0; i < filler.size(); ++i) {
    bytes += (i > 0 ? filler[i].before.size() : 0) + filler[i].text.size();
    starts.push_back(bytes - filler[i].text.size());
    if (i > 0 && filler[i].before != "\n\n") places.push_back(i);
  }
  if (places.empty()) return Invalid("there is no place between two sentences for a fact");
  std::vector<std::vector<size_t>> facts_before(filler.size());
  for (size_t f = 0; f < draft.facts.size(); ++f) {
    const double wanted = draft.depths[f] * static_cast<double>(bytes);
    const auto far_enough = [&](size_t place) { return static_cast<double>(starts[place]) >= wanted; };
    const auto place = std::find_if(places.begin(), places.end(), far_enough);
    facts_before[place != places.end() ? *place : places.back()].push_back(f);
  }

  NeedleCase made{.spec = spec, .asked = draft.facts[0]};
  for (size_t i = 0; i < filler.size(); ++i) {
    if (i > 0) made.text += filler[i].before;
    for (const size_t f : facts_before[i]) {
      if (f == 0) made.fact_at = made.text.size();
      made.text += draft.facts[f].Statement() + " ";
    }
    made.text += filler[i].text;
  }
  made.question = QuestionOf(made.asked);
  ASSIGN_OR_RETURN(made.context, Encode(made.text + made.question));
  return made;
}

Result<NeedleMaker::Draft> NeedleMaker::Draw(const NeedleSpec& spec) const {
  SplitMix random(seed_);
  for (const int64_t part : {spec.length, spec.facts, spec.index})
    random = SplitMix(random.Next() ^ static_cast<uint64_t>(part));
  Draft draft;
  draft.facts = DrawFacts(spec.facts, random);
  draft.depths.push_back((static_cast<double>(spec.index) + random.Unit()) / static_cast<double>(spec.n));
  while (draft.depths.size() < draft.facts.size()) draft.depths.push_back(random.Unit());
  const size_t enough = static_cast<size_t>(spec.length) * kFillerBytesPerToken;
  draft.filler = source_ ? CutFiller(*source_, enough, random) : StoryFiller(random.Next(), enough);
  if (draft.filler.size() < 2) return Invalid("the text has fewer than two sentences");
  for (const FillerSentence& sentence : draft.filler) {
    ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                     tokenizer_->Encode(" " + sentence.text, {.add_special = false, .parse_special = false}));
    draft.costs.push_back(static_cast<int64_t>(ids.size()));
  }
  return draft;
}

// As much filler as the length has room for. How many sentences is guessed from the tokens of each, then corrected by
// what the whole prompt really has; what is left is filled with a part of the next sentence.
Result<NeedleCase> NeedleMaker::Fit(const NeedleSpec& spec, const Draft& draft) const {
  const int64_t room = spec.length - AnswerRoom(form_);
  const std::vector<int64_t>& costs = draft.costs;
  ASSIGN_OR_RETURN(const std::vector<int32_t> fact_ids, Encode(draft.facts[0].Statement()));
  int64_t left = room - spec.facts * static_cast<int64_t>(fact_ids.size());
  size_t count = 0;
  while (count < costs.size() && costs[count] <= left) left -= costs[count++];
  count = std::max<size_t>(count, 2);

  ASSIGN_OR_RETURN(NeedleCase best, Build(spec, draft, count, 0));
  while (best.prompt_tokens() > room) {
    if (count == 2)
      return Invalid(
          "{} tokens have no room for {} fact{}, the question and the answer; ask for a longer context or "
          "fewer facts",
          spec.length, spec.facts, spec.facts == 1 ? "" : "s");
    for (int64_t over = best.prompt_tokens() - room; over > 0 && count > 2;) over -= costs[--count];
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

// Cuts the prompt in two and finds the fact in it: both are where the prompt parts from that of a shorter text. A token
// that lies across the end of the text (".\n\n") belongs to the question.
Status NeedleMaker::Cut(NeedleCase* made) const {
  const auto parts_from = [&](const std::vector<int32_t>& ids) {
    return std::mismatch(made->context.begin(), made->context.end(), ids.begin(), ids.end()).first;
  };
  // Without the space before the fact, which belongs to its first token.
  ASSIGN_OR_RETURN(const std::vector<int32_t> before, Encode(made->text.substr(0, made->fact_at - 1)));
  made->fact_token = parts_from(before) - made->context.begin();
  ASSIGN_OR_RETURN(const std::vector<int32_t> text, Encode(made->text));
  const auto cut = parts_from(text);
  made->question_ids.assign(cut, made->context.end());
  made->context.erase(cut, made->context.end());
  return Ok();
}

Result<NeedleCase> NeedleMaker::Case(const NeedleSpec& spec) const {
  ASSIGN_OR_RETURN(const Draft draft, Draw(spec));
  ASSIGN_OR_RETURN(NeedleCase made, Fit(spec, draft));
  if (static_cast<double>(made.prompt_tokens()) < kShort * static_cast<double>(spec.length - AnswerRoom(form_)))
    return Invalid("the text is too short for a context of {} tokens: it gave {}; pass a longer file", spec.length,
                   made.prompt_tokens());
  RETURN_IF_ERROR(Cut(&made));
  return made;
}

}  // namespace infinigen
