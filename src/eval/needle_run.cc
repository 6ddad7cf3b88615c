#include "eval/needle_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "runtime/report.h"
#include "runtime/requests.h"

namespace infinigen {
namespace {

constexpr size_t kMostBins = 10;  // bins of a heat map; fewer cases have one bin each

// The order in which the cases of a cell run. Every prefix of it covers the depths evenly, so that a cancelled run does
// too.
std::vector<int64_t> EvenOrder(int64_t n) {
  constexpr double kGolden = 0.6180339887498949;
  std::vector<std::pair<double, size_t>> points;  // fractional part of i times the golden ratio, and i
  for (size_t i = 0; i < static_cast<size_t>(n); ++i)
    points.emplace_back(std::fmod(kGolden * static_cast<double>(i), 1.0), i);
  std::sort(points.begin(), points.end());
  std::vector<int64_t> order(points.size());
  for (size_t rank = 0; rank < points.size(); ++rank) order[points[rank].second] = static_cast<int64_t>(rank);
  return order;
}

}  // namespace

// ---- one group ----

struct NeedleRunner::Live {
  Live(const NeedleCase& from, size_t at, const Tokenizer& tokenizer, Sequence admitted)
      : planted(from), index(at), sequence(std::move(admitted)), decoder(tokenizer, /*skip_special=*/true) {
    item.slot = sequence.slot();
  }

  const NeedleCase& planted;
  size_t index;  // in the group
  Sequence sequence;
  StepItem item;
  size_t fed = 0;  // number of question tokens fed so far
  StreamDecoder decoder;
  NeedleAnswer answer;
};

Result<std::vector<NeedleAnswer>> NeedleRunner::Run(std::span<const NeedleCase> cases, const NeedleWatch& watch) {
  std::vector<NeedleAnswer> answers(cases.size());
  std::vector<Live> live;
  live.reserve(cases.size());
  for (size_t i = 0; i < cases.size(); ++i) {
    if (callbacks_.Cancelled()) return answers;
    ASSIGN_OR_RETURN(Sequence sequence,
                     Sequence::Admit(executor_, cases[i].prompt_tokens() + AnswerTokens(cases[i].spec, form_)));
    live.emplace_back(cases[i], i, tokenizer_, std::move(sequence));
    ASSIGN_OR_RETURN(const bool read, Prefill(live.back(), watch));
    if (!read) return answers;
  }
  Decode(live, watch);
  for (Live& one : live) answers[one.index] = std::move(one.answer);
  return answers;
}

Result<bool> NeedleRunner::Prefill(Live& live, const NeedleWatch& watch) {
  const NeedleCase& planted = live.planted;
  const Clock::time_point start = Clock::now();
  const int64_t tokens = std::ssize(planted.context);
  const auto on_unit = [&](int64_t done, int64_t units) {
    if (watch.on_prefill) watch.on_prefill(done, units, tokens);
    return !callbacks_.Cancelled();
  };
  ASSIGN_OR_RETURN(const bool whole, live.sequence.Prefill(planted.context, PrefillKind::kDense, on_unit));
  live.sequence.EndPrefill();
  if (!whole) return false;
  timing_.AddPrefill(Seconds(start), tokens);
  live.item.row = tokens;
  live.item.token = planted.question_ids[live.fed++];
  return true;
}

void NeedleRunner::Decode(std::vector<Live>& live, const NeedleWatch& watch) {
  const size_t vocab = static_cast<size_t>(executor_.config().vocab);
  std::vector<float> logits(live.size() * vocab);  // [live][vocab]
  std::vector<StepItem> items;
  while (!callbacks_.Cancelled()) {
    items.clear();
    for (const Live& one : live)
      if (!one.answer.done) items.push_back(one.item);
    if (items.empty()) break;
    const Clock::time_point start = Clock::now();
    executor_.Step(items, std::span(logits).first(items.size() * vocab));
    timing_.AddStep(Seconds(start), std::ssize(items));
    size_t row = 0;
    for (Live& one : live)
      if (!one.answer.done) Accept(one, std::span(logits).subspan(row++ * vocab, vocab), watch);
  }
  pool_bytes_ = executor_.instruments().pool_bytes();
}

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
  JudgeAnswer(live, ended || std::ssize(answer.tokens) == AnswerTokens(live.planted.spec, form_));
}

void NeedleRunner::JudgeAnswer(Live& live, bool ended) const {
  NeedleAnswer& answer = live.answer;
  if (AsksForOne(live.planted.spec.family)) {
    const Verdict verdict = Judge(answer.text, live.planted.sought[0].text, form_, ended);
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

// ---- all cases ----

NeedleTable::NeedleTable(const NeedlePlan& plan, const EvalSession& session, const NeedleMaker& maker,
                         std::string label)
    : plan_(plan),
      session_(session),
      maker_(maker),
      label_(std::move(label)),
      order_(EvenOrder(plan.n)),
      runner_(session.executor(), session.tokenizer(), plan.form, session.callbacks()) {
  const size_t cases = static_cast<size_t>(plan_.n);
  for (const NeedleFamily family : plan_.families)
    for (const int64_t length : plan_.lengths)
      for (const int64_t facts : plan_.FactsOf(family)) {
        NeedleCell& cell = result_.cells.emplace_back(NeedleCell{.family = family, .length = length, .facts = facts});
        cell.bins.resize(family == NeedleFamily::kWords ? 1 : std::min(cases, kMostBins));
        cell.outcomes.resize(cases);
      }
}

Result<NeedleResult> NeedleTable::Run() {
  for (NeedleCell& cell : result_.cells) RETURN_IF_ERROR(RunCell(cell));
  session_.callbacks().Status("");
  for (const NeedleCell& cell : result_.cells) {
    result_.score += cell.score;
    result_.complete = result_.complete && cell.score.all.n == plan_.n;
  }
  result_.timing = runner_.timing();
  result_.pool = runner_.pool();
  return std::move(result_);
}

Result<NeedleCase> NeedleTable::Make(const NeedleCell& cell, int64_t turn) const {
  const int64_t index = order_[static_cast<size_t>(turn)];
  ASSIGN_OR_RETURN(
      NeedleCase made,
      maker_.Case({.length = cell.length, .facts = cell.facts, .index = index, .n = plan_.n, .family = cell.family}));
  RETURN_IF_ERROR(CheckIds(session_.model().config, made.context));
  RETURN_IF_ERROR(CheckIds(session_.model().config, made.question_ids));
  return made;
}

Status NeedleTable::RunCell(NeedleCell& cell) {
  const Callbacks& callbacks = session_.callbacks();
  const std::string family = cell.family == NeedleFamily::kSingle ? "" : fmt::format("{}, ", Name(cell.family));
  const int64_t batch = session_.executor().options().max_batch;
  for (int64_t next = cell.skip; next < plan_.n && !callbacks.Cancelled();) {
    std::vector<NeedleCase> group;
    for (; next < plan_.n && std::ssize(group) < batch; ++next) {
      ASSIGN_OR_RETURN(NeedleCase made, Make(cell, next));
      group.push_back(std::move(made));
    }
    const int64_t before = next - std::ssize(group);
    int64_t prefilled = 0;
    const auto on_prefill = [&](int64_t unit, int64_t units, int64_t) {
      prefilled += unit == units ? 1 : 0;
      callbacks.Status(fmt::format("{}{}{} tokens, {} fact{}: case {} of {}, {} found  {:.0f} tok/s", label_, family,
                                   cell.length, cell.facts, cell.facts == 1 ? "" : "s",
                                   std::min(before + prefilled + 1, plan_.n), plan_.n, cell.score.all.found,
                                   runner_.timing().prefill_rate()));
    };
    ASSIGN_OR_RETURN(const std::vector<NeedleAnswer> answers, runner_.Run(group, {.on_prefill = on_prefill}));
    for (size_t i = 0; i < group.size(); ++i)
      if (answers[i].done) cell.Add(group[i], answers[i]);
  }
  return Ok();
}

}  // namespace infinigen
