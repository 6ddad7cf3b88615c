#include "eval/needle_score.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "base/machine.h"
#include "base/size.h"
#include "runtime/report.h"

namespace infinigen {
namespace {

using Json = nlohmann::ordered_json;

Json ShareJson(const NeedleCell::Count& count) { return count.n > 0 ? Json(count.share()) : Json(nullptr); }

// The run that the others are compared with; null if there is none.
const NeedleKvRun* FullAmong(const std::vector<NeedleKvRun>& runs) {
  const auto full = std::find_if(runs.begin(), runs.end(), [](const NeedleKvRun& run) { return run.full(); });
  return full != runs.end() && runs.size() > 1 ? &*full : nullptr;
}

Json AgreementJson(const NeedleAgreement& agreement) {
  const auto share = [&](int64_t same) {
    return agreement.n > 0 ? Json(static_cast<double>(same) / static_cast<double>(agreement.n)) : Json(nullptr);
  };
  return {
      {"n", agreement.n}, {"same_answer", share(agreement.same_answer)}, {"same_found", share(agreement.same_found)}};
}

void AddAgreement(const NeedleKvRun& full, NeedleKvRun& run) {
  NeedleAgreement all;
  for (size_t cell = 0; cell < run.result.cells.size(); ++cell) {
    const NeedleAgreement agreement = Agree(run.result.cells[cell], full.result.cells[cell]);
    run.json["cells"][cell]["against_full"] = AgreementJson(agreement);
    all += agreement;
  }
  run.json["against_full"] = AgreementJson(all);
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

Json NeedleRunJson(const EvalSession& session, const NeedlePlan& plan, const NeedleOrigin& origin,
                   const NeedleResult& result) {
  Json families = Json::array();
  for (const NeedleFamily family : plan.families) families.push_back(Name(family));
  Json json = EvalJsonHead(session);
  json.update({{"accuracy", AccuracyJson(result.score)},
               {"n", result.score.all.n},
               {"form", Name(plan.form)},
               {"file", origin.generated() ? Json(nullptr) : Json(origin.file)},
               {"seed", origin.seed},
               {"families", std::move(families)}});
  json["cells"] = CellsJson(result.cells);
  json["heatmap"] = BinsJson(result.cells);
  json["complete"] = result.complete;
  AddEvalJsonTail(session, result.timing, result.pool, &json);
  return json;
}

Json NeedleJson(std::vector<NeedleKvRun> runs, bool complete) {
  if (const NeedleKvRun* full = FullAmong(runs))
    for (NeedleKvRun& run : runs) AddAgreement(*full, run);
  Json json = runs[0].json;
  json["complete"] = complete;
  if (runs.size() == 1) return json;
  for (NeedleKvRun& run : runs) {
    for (const char* shared : {"model", "device", "form", "file", "seed", "families"}) run.json.erase(shared);
    json["results"].push_back(std::move(run.json));
  }
  return json;
}

std::string NeedleMarkdown(const NeedlePlan& plan, const std::vector<NeedleKvRun>& runs) {
  // With one method and only the family single, the columns for method and family are left out.
  const bool several = runs.size() > 1 || plan.families != std::vector{NeedleFamily::kSingle};
  const NeedleKvRun* full = FullAmong(runs);
  std::string text = several ? "| kv | family | context | facts | n | all found | accuracy |"
                             : "| context | facts | n | found | accuracy |";
  text += " depth 0-20 % | 20-40 % | 40-60 % | 60-80 % | 80-100 % |";
  text += full != nullptr ? " same answer as full |\n" : "\n";
  text += std::string(several ? "|---|---|" : "|") + "--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|" +
          (full != nullptr ? "--:|\n" : "\n");
  for (const NeedleKvRun& run : runs)
    for (size_t i = 0; i < run.result.cells.size(); ++i) {
      const NeedleCell& cell = run.result.cells[i];
      if (cell.score.all.n == 0) continue;
      if (several) text += fmt::format("| {} | {} ", run.kv, Name(cell.family));
      text += fmt::format("| {} | {} | {} | {} | {:.1f} % |", cell.length, cell.facts, cell.score.all.n,
                          cell.score.all.found, 100.0 * cell.score.accuracy());
      for (const NeedleCell::Count& count : cell.by_depth)
        text += count.n > 0 ? fmt::format(" {}/{} |", count.found, count.n) : " - |";
      if (full != nullptr) {
        const NeedleAgreement agreement = Agree(cell, full->result.cells[i]);
        text += fmt::format(" {}/{} |", agreement.same_answer, agreement.n);
      }
      text += "\n";
    }
  return text;
}

std::string NeedleStatistics(const NeedleKvRun& run, bool per_layer) {
  const Timing& timing = run.result.timing;
  const ExecutorOptions& options = run.options;
  return fmt::format(
      "texts {} tokens, {:.1f} tok/s; questions and answers {} steps for {} tokens, {:.1f} tok/s\n"
      "memory peak {}, KV pool {} ({}), {} thread{}\n{}{}",
      timing.prefill_tokens, timing.prefill_rate(), timing.step_ms.size(), timing.decode_tokens, timing.decode_rate(),
      FormatSize(PeakResidentBytes()), FormatSize(run.result.pool.peak_bytes), KvWords(options), options.threads,
      options.threads == 1 ? "" : "s", AttendedWords(run.stats, options), per_layer ? LayerTable(run.stats) : "");
}

}  // namespace infinigen
