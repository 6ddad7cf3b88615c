#include "cli/needle_run.h"

#include <algorithm>

#include "cli/interrupt.h"
#include "cli/needle_judge.h"
#include "model/decoder.h"
#include "runtime/clock.h"
#include "text/text_stream.h"
#include "text/unicode.h"

namespace infinigen {

struct NeedleRunner::Live {
  Live(const NeedleCase& from, size_t at, const Tokenizer& tokenizer)
      : planted(from), index(at), decoder(tokenizer, /*skip_special=*/true) {}

  const NeedleCase& planted;
  size_t index;  // in the group
  StepItem item;
  size_t fed = 0;  // tokens of the question
  StreamDecoder decoder;
  NeedleAnswer answer;
};

Status NeedleRunner::Prefill(const NeedleCase& planted, Live& live, const NeedleWatch& watch) {
  const Clock::time_point start = Clock::now();
  const int64_t tokens = static_cast<int64_t>(planted.context.size());
  RETURN_IF_ERROR(executor_.BeginPrefill(live.item.slot, 0, planted.context));
  const int64_t units = executor_.PrefillUnits(live.item.slot);
  bool done = false;
  for (int64_t unit = 1; !done && !Interrupted(); ++unit) {
    done = executor_.RunPrefillUnit(live.item.slot);
    if (watch.on_prefill) watch.on_prefill(unit, units, tokens);
  }
  executor_.EndPrefill(live.item.slot);
  if (!done) return Ok();  // a text that was not read to its end counts for neither tokens nor seconds
  timing_.prefill_s += Seconds(start);
  timing_.prefill_tokens += tokens;
  live.item.row = tokens;
  live.item.token = planted.question_ids[live.fed++];
  return Ok();
}

// What follows from a step's logits: the next token of the question, or one of the answer.
void NeedleRunner::Accept(Live& live, std::span<const float> logits, const NeedleWatch& watch) {
  ++live.item.row;
  if (live.fed < live.planted.question_ids.size()) {
    live.item.token = live.planted.question_ids[live.fed++];
    return;
  }
  NeedleAnswer& answer = live.answer;
  const int32_t token = static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  const std::vector<int64_t>& ends = executor_.config().eos_ids;
  const bool ended = std::find(ends.begin(), ends.end(), token) != ends.end();
  std::string text;
  if (!ended) {
    answer.tokens.push_back(token);
    text = ReplaceInvalidUtf8(live.decoder.Push(token));
    live.item.token = token;
  }
  answer.text += text;
  if (watch.on_text && !text.empty()) watch.on_text(live.index, text);
  const bool last = ended || static_cast<int64_t>(answer.tokens.size()) == AnswerTokens(live.planted.spec, form_);
  Judge(live, last);
}

void NeedleRunner::Judge(Live& live, bool ended) const {
  NeedleAnswer& answer = live.answer;
  if (AsksForOne(live.planted.spec.family)) {
    const Verdict verdict = infinigen::Judge(answer.text, live.planted.sought[0].text, form_, ended);
    answer.done = verdict != Verdict::kOpen;
    answer.hits = {verdict == Verdict::kRight};
  } else {
    std::vector<std::string_view> sought;
    for (const NeedleSought& one : live.planted.sought) sought.push_back(one.text);
    ListScore score = ScoreList(answer.text, sought, form_, ended);
    answer.done = score.done;
    answer.hits = std::move(score.hits);
  }
  answer.found = answer.done && std::find(answer.hits.begin(), answer.hits.end(), false) == answer.hits.end();
}

void NeedleRunner::Decode(std::vector<Live>& live, const NeedleWatch& watch) {
  const size_t vocab = static_cast<size_t>(executor_.config().vocab);
  std::vector<float> logits(live.size() * vocab);
  std::vector<StepItem> items;
  while (!Interrupted()) {
    items.clear();
    for (const Live& one : live)
      if (!one.answer.done) items.push_back(one.item);
    if (items.empty()) break;
    const Clock::time_point start = Clock::now();
    executor_.Step(items, std::span(logits).first(items.size() * vocab));
    const double elapsed = Seconds(start);
    timing_.decode_s += elapsed;
    timing_.step_ms.push_back(static_cast<float>(elapsed * 1e3));
    timing_.decode_tokens += static_cast<int64_t>(items.size());
    size_t row = 0;
    for (Live& one : live)
      if (!one.answer.done) Accept(one, std::span(logits).subspan(row++ * vocab, vocab), watch);
  }
  pool_bytes_ = executor_.instruments().pool_bytes();
}

Result<std::vector<NeedleAnswer>> NeedleRunner::Run(std::span<const NeedleCase> cases, const NeedleWatch& watch) {
  std::vector<Live> live;
  live.reserve(cases.size());
  Status status = Ok();
  for (size_t i = 0; i < cases.size() && status.ok() && !Interrupted(); ++i) {
    Result<SeqSlot> slot = executor_.Admit(cases[i].prompt_tokens() + AnswerTokens(cases[i].spec, form_));
    if (!slot.ok()) {
      status = slot.error();
      break;
    }
    live.emplace_back(cases[i], i, tokenizer_);
    live.back().item.slot = *slot;
    status = Prefill(cases[i], live.back(), watch);
  }
  if (status.ok()) Decode(live, watch);
  std::vector<NeedleAnswer> answers(cases.size());
  for (Live& one : live) {
    executor_.Release(one.item.slot);
    answers[one.index] = std::move(one.answer);
  }
  RETURN_IF_ERROR(status);
  return answers;
}

}  // namespace infinigen
