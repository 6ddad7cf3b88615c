#include "cli/needle_report.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "base/machine.h"
#include "base/size.h"
#include "cli/needle_heatmap.h"
#include "runtime/describe.h"

namespace infinigen {
namespace {

using Json = nlohmann::ordered_json;

// What the others are compared with; null where there is nothing to compare.
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
  // A family that asks for one code, under one method, needs no more columns.
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
      "memory {} at most, KV pool {} ({}), {} thread{}\n{}{}",
      timing.prefill_tokens, timing.prefill_rate(), timing.step_ms.size(), timing.decode_tokens, timing.decode_rate(),
      FormatSize(PeakResidentBytes()), FormatSize(run.result.pool.peak_bytes), KvWords(options), options.threads,
      options.threads == 1 ? "" : "s", AttendedWords(run.stats, options), per_layer ? LayerTable(run.stats) : "");
}

Status WriteHeatmap(const std::string& path, const NeedlePlan& plan, const std::vector<NeedleKvRun>& runs,
                    const HeatmapWords& words) {
  std::vector<std::string> names;
  std::vector<const NeedleResult*> results;
  for (const NeedleKvRun& run : runs) {
    names.push_back(run.kv);
    results.push_back(&run.result);
  }
  Heatmap map = HeatmapOf(plan, names, results);
  map.title = "Planted facts found, by length and depth";
  map.subtitle = fmt::format("{}, {} cases each, {}, seed {}", words.model, plan.n, words.source, words.seed);
  const std::string png = DrawHeatmap(map).Png();
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) return IoError("{}: cannot be written: {}", path, std::strerror(errno));
  const bool whole = std::fwrite(png.data(), 1, png.size(), file) == png.size();
  if (std::fclose(file) != 0 || !whole) return IoError("{}: cannot be written: {}", path, std::strerror(errno));
  return Ok();
}

Status CheckWritable(const std::string& path) {
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  const std::string directory = parent.empty() ? "." : parent.string();
  const bool exists = ::access(path.c_str(), F_OK) == 0;
  if (::access(exists ? path.c_str() : directory.c_str(), W_OK) != 0)
    return IoError("{}: cannot be written: {}", path, std::strerror(errno));
  return Ok();
}

}  // namespace infinigen
