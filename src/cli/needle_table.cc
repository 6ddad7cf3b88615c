#include "cli/needle_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/check.h"
#include "cli/interrupt.h"

namespace infinigen {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMostBins = 10;  // depths of a heat map; with fewer cases each has its own

// The order in which the cases of a cell run: every beginning of it is spread evenly over the depths, so that what is
// finished after Ctrl-C says something about all of them.
std::vector<int64_t> EvenOrder(int64_t n) {
  constexpr double kGolden = 0.6180339887498949;
  std::vector<std::pair<double, size_t>> points;  // multiples of the golden ratio, and which
  for (size_t i = 0; i < static_cast<size_t>(n); ++i)
    points.emplace_back(std::fmod(kGolden * static_cast<double>(i), 1.0), i);
  std::sort(points.begin(), points.end());
  std::vector<int64_t> order(points.size());
  for (size_t rank = 0; rank < points.size(); ++rank) order[points[rank].second] = static_cast<int64_t>(rank);
  return order;
}

}  // namespace

int64_t NeedlePlan::cases() const {
  int64_t total = 0;
  for (const NeedleFamily family : families) total += n * static_cast<int64_t>(lengths.size() * FactsOf(family).size());
  return total;
}

NeedleScore& NeedleScore::operator+=(const NeedleScore& other) {
  all.n += other.all.n;
  all.found += other.all.found;
  shares += other.shares;
  return *this;
}

void NeedleCell::Add(const NeedleCase& planted, const NeedleAnswer& answer) {
  score.all.Add(answer.found);
  score.shares += answer.share();
  for (size_t i = 0; i < planted.sought.size(); ++i) {
    const bool placed = !planted.sought[i].statement.empty();
    if (placed) by_depth[std::min<size_t>(static_cast<size_t>(planted.depth(i) * 5), 4)].Add(answer.hits[i]);
    const double depth = placed ? planted.sought[i].depth : 0;
    bins[std::min(static_cast<size_t>(depth * static_cast<double>(bins.size())), bins.size() - 1)].Add(answer.hits[i]);
  }
  outcomes[static_cast<size_t>(planted.spec.index)] = {true, answer.tokens, answer.hits};
}

NeedleAgreement& NeedleAgreement::operator+=(const NeedleAgreement& other) {
  n += other.n;
  same_answer += other.same_answer;
  same_found += other.same_found;
  return *this;
}

NeedleAgreement Agree(const NeedleCell& one, const NeedleCell& other) {
  CHECK(one.outcomes.size() == other.outcomes.size());
  NeedleAgreement agreement;
  for (size_t i = 0; i < one.outcomes.size(); ++i) {
    const NeedleCell::Outcome &a = one.outcomes[i], &b = other.outcomes[i];
    if (!a.done || !b.done) continue;
    ++agreement.n;
    agreement.same_answer += a.tokens == b.tokens ? 1 : 0;
    agreement.same_found += a.hits == b.hits ? 1 : 0;
  }
  return agreement;
}

NeedleTable::NeedleTable(const NeedlePlan& plan, const EvalSession& session, const NeedleMaker& maker,
                         std::string label)
    : plan_(plan),
      session_(session),
      maker_(maker),
      label_(std::move(label)),
      order_(EvenOrder(plan.n)),
      runner_(*session.executor, session.tokenizer(), plan.form) {
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
  line_.Erase();
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
  RETURN_IF_ERROR(CheckIds(session_.model->config, made.context));
  RETURN_IF_ERROR(CheckIds(session_.model->config, made.question_ids));
  return made;
}

Status NeedleTable::RunCell(NeedleCell& cell) {
  int64_t next = cell.skip;
  const std::string family = cell.family == NeedleFamily::kSingle ? "" : fmt::format("{}, ", Name(cell.family));
  const int64_t batch = session_.executor->options().max_batch;
  while (next < plan_.n && !Interrupted()) {
    std::vector<NeedleCase> group;
    for (; next < plan_.n && static_cast<int64_t>(group.size()) < batch; ++next) {
      ASSIGN_OR_RETURN(NeedleCase made, Make(cell, next));
      group.push_back(std::move(made));
    }
    const int64_t before = next - static_cast<int64_t>(group.size());
    int64_t prefilled = 0;
    const auto on_prefill = [&](int64_t unit, int64_t units, int64_t) {
      prefilled += unit == units ? 1 : 0;
      line_.Draw(fmt::format("{}{}{} tokens, {} fact{}: case {} of {}, {} found  {:.0f} tok/s", label_, family,
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

Json ShareJson(const NeedleCell::Count& count) { return count.n > 0 ? Json(count.share()) : Json(nullptr); }

Json AccuracyJson(const NeedleScore& score) { return score.all.n > 0 ? Json(score.accuracy()) : Json(nullptr); }

Json CellsJson(const std::vector<NeedleCell>& cells) {
  Json json = Json::array();
  for (const NeedleCell& cell : cells) {
    Json depths = Json::array();
    for (const NeedleCell::Count& count : cell.by_depth)
      depths.push_back({{"n", count.n}, {"found", count.found}, {"accuracy", ShareJson(count)}});
    json.push_back({{"family", Name(cell.family)},
                    {"length", cell.length},
                    {"facts", cell.facts},
                    {"n", cell.score.all.n},
                    {"found", cell.score.all.found},
                    {"accuracy", AccuracyJson(cell.score)},
                    {"by_depth", std::move(depths)}});
  }
  return json;
}

Json BinsJson(const std::vector<NeedleCell>& cells) {
  Json json = Json::array();
  for (const NeedleCell& cell : cells)
    for (size_t bin = 0; bin < cell.bins.size(); ++bin) {
      const double middle = (static_cast<double>(bin) + 0.5) / static_cast<double>(cell.bins.size());
      json.push_back({{"family", Name(cell.family)},
                      {"length", cell.length},
                      {"facts", cell.facts},
                      {"depth", cell.family == NeedleFamily::kWords ? Json(nullptr) : Json(middle)},
                      {"n", cell.bins[bin].n},
                      {"found", cell.bins[bin].found}});
    }
  return json;
}

}  // namespace infinigen
