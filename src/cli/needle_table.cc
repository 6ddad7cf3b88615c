#include "cli/needle_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/interrupt.h"

namespace infinigen {
namespace {

using Json = nlohmann::ordered_json;

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

void NeedleCell::Add(double depth, bool found) {
  Count& fifth = by_depth[std::min<size_t>(static_cast<size_t>(depth * 5), 4)];
  for (Count* count : {&all, &fifth}) {
    ++count->n;
    count->found += found ? 1 : 0;
  }
}

NeedleTable::NeedleTable(const NeedlePlan& plan, const EvalSession& session, const NeedleMaker& maker,
                         std::string label)
    : plan_(plan),
      session_(session),
      maker_(maker),
      label_(std::move(label)),
      order_(EvenOrder(plan.n)),
      runner_(*session.executor, session.tokenizer(), plan.form) {
  for (const int64_t length : plan_.lengths)
    for (const int64_t facts : plan_.facts) result_.cells.push_back({.length = length, .facts = facts});
}

Result<NeedleResult> NeedleTable::Run() {
  for (NeedleCell& cell : result_.cells) RETURN_IF_ERROR(RunCell(cell, &cell == &first_cell() ? skip_ : 0));
  line_.Erase();
  for (const NeedleCell& cell : result_.cells) {
    result_.all.n += cell.all.n;
    result_.all.found += cell.all.found;
    result_.complete = result_.complete && cell.all.n == plan_.n;
  }
  result_.timing = runner_.timing();
  result_.pool = runner_.pool();
  return std::move(result_);
}

Result<NeedleCase> NeedleTable::Make(const NeedleCell& cell, int64_t turn) const {
  const int64_t index = order_[static_cast<size_t>(turn)];
  ASSIGN_OR_RETURN(NeedleCase made,
                   maker_.Case({.length = cell.length, .facts = cell.facts, .index = index, .n = plan_.n}));
  RETURN_IF_ERROR(CheckIds(session_.model->config, made.context));
  RETURN_IF_ERROR(CheckIds(session_.model->config, made.question_ids));
  return made;
}

Status NeedleTable::RunCell(NeedleCell& cell, int64_t next) {
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
      line_.Draw(fmt::format("{}{} tokens, {} fact{}: case {} of {}, {} found  {:.0f} tok/s", label_, cell.length,
                             cell.facts, cell.facts == 1 ? "" : "s", std::min(before + prefilled + 1, plan_.n), plan_.n,
                             cell.all.found, runner_.timing().prefill_rate()));
    };
    ASSIGN_OR_RETURN(const std::vector<NeedleAnswer> answers, runner_.Run(group, {.on_prefill = on_prefill}));
    for (size_t i = 0; i < group.size(); ++i)
      if (answers[i].done) cell.Add(group[i].depth(), answers[i].found);
  }
  return Ok();
}

Json ShareJson(const NeedleCell::Count& count) { return count.n > 0 ? Json(count.share()) : Json(nullptr); }

Json CellsJson(const std::vector<NeedleCell>& cells) {
  Json json = Json::array();
  for (const NeedleCell& cell : cells) {
    Json depths = Json::array();
    for (const NeedleCell::Count& count : cell.by_depth)
      depths.push_back({{"n", count.n}, {"found", count.found}, {"accuracy", ShareJson(count)}});
    json.push_back({{"length", cell.length},
                    {"facts", cell.facts},
                    {"n", cell.all.n},
                    {"found", cell.all.found},
                    {"accuracy", ShareJson(cell.all)},
                    {"by_depth", std::move(depths)}});
  }
  return json;
}

}  // namespace infinigen
