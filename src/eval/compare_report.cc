// Reports of `eval compare`: one line per method, as Markdown, CSV or JSON.

#include <fmt/format.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/size.h"
#include "eval/compare.h"
#include "runtime/report.h"

namespace infinigen {
namespace {

using Json = nlohmann::ordered_json;

// Statistics of the timed steps, or of another part's steps if none were timed.
Json StatsOf(const CompareRow& row) {
  if (row.speed) return KvStatsJson(row.speed->pool, row.speed->stats);
  if (row.ppl) return KvStatsJson(row.ppl->pool, row.ppl_stats);
  return row.facts ? KvStatsJson(row.facts->pool, row.facts_stats) : Json::object();
}

// ---- the fields of a result ----

Json PplJson(const CompareRow& row, const CompareResult& result, const StatsDetail& detail) {
  const PplResult& ppl = *row.ppl;
  const bool full = result.full.ppl.has_value(), differs = result.compared && !row.full;
  const Estimate change = ppl.ppl_change();
  return {{"ppl", ppl.ppl()},
          {"nll", ppl.nll()},
          {"ppl_vs_full", full ? Json(ppl.ppl() / result.full.ppl->ppl()) : Json(nullptr)},
          {"ppl_delta_percent", differs ? Json(change.value) : Json(nullptr)},
          {"ppl_delta_stderr", differs ? Json(change.stderror) : Json(nullptr)},
          {"kld_mean", result.compared ? Json(ppl.kld_mean()) : Json(nullptr)},
          {"kld_stderr", differs ? Json(ppl.kld_estimate().stderror) : Json(nullptr)},
          {"top1_agree", result.compared ? Json(ppl.top1_agree()) : Json(nullptr)},
          {"tokens_scored", ppl.tokens},
          {"windows", ppl.windows},
          {"ppl_kv_stats", KvStatsJson(ppl.pool, row.ppl_stats, detail)}};
}

Json FactsJson(const CompareRow& row, const StatsDetail& detail) {
  return {{"accuracy", AccuracyJson(row.facts->score)},
          {"n", row.facts->score.all.n},
          {"cells", CellsJson(row.facts->cells)},
          {"needle_kv_stats", KvStatsJson(row.facts->pool, row.facts_stats, detail)}};
}

Json SpeedJson(const CompareRow& row, const CompareResult& result, const StatsDetail& detail) {
  const DecodeSpeed& speed = *row.speed;
  const bool full = result.full.speed.has_value();
  return {{"depth", speed.depth},
          {"tok_s", speed.tokens_per_s()},
          {"tok_s_vs_full", full ? Json(speed.tokens_per_s() / result.full.speed->tokens_per_s()) : Json(nullptr)},
          {"step_ms_median", speed.step_ms()},
          {"timing", TimingJson(speed.timing)},
          {"kv_stats", KvStatsJson(speed.pool, speed.stats, detail)}};
}

Json RowJson(const CompareRow& row, const CompareResult& result, const StatsDetail& detail) {
  Json json = {{"kv", row.preset}, {"error", row.error.empty() ? Json(nullptr) : Json(row.error)}};
  if (row.ppl) json.update(PplJson(row, result, detail));
  if (row.facts) json.update(FactsJson(row, detail));
  if (row.speed) json.update(SpeedJson(row, result, detail));
  if (row.options) json["kv_options"] = KvJson(*row.options);
  return json;
}

// ---- the table ----

// A column of the table.
struct Column {
  std::string head, name;                        // heading in Markdown (empty: no such column), and in CSV
  std::function<Json(const CompareRow&)> value;  // null or absent: not measured
  std::function<std::string(const Json&)> words;
};

std::string Percent(const Json& share) { return fmt::format("{:.1f} %", 100 * share.get<double>()); }
std::string Size(const Json& bytes) { return FormatSize(bytes.get<uint64_t>()); }
std::string Signed(const Json& ratio) { return fmt::format("{:+.2f} %", 100 * (ratio.get<double>() - 1)); }

auto Number(int digits) {
  return [digits](const Json& number) { return fmt::format("{:.{}f}", number.get<double>(), digits); };
}

std::function<Json(const CompareRow&)> Field(const CompareResult& result, std::string name) {
  return [&result, name](const CompareRow& row) { return RowJson(row, result, {}).value(name, Json(nullptr)); };
}

std::function<Json(const CompareRow&)> Stat(std::string name) {
  return [name](const CompareRow& row) { return StatsOf(row).value(name, Json(nullptr)); };
}

void AddPplColumns(const CompareResult& result, std::vector<Column>& columns) {
  columns.push_back({"ppl", "ppl", Field(result, "ppl"), Number(3)});
  columns.push_back({"against full", "ppl_vs_full", Field(result, "ppl_vs_full"), Signed});
  columns.push_back({"KL", "kld_mean", Field(result, "kld_mean"), Number(4)});
  columns.push_back({"same top token", "top1_agree", Field(result, "top1_agree"), Percent});
  columns.push_back({"", "tokens_scored", Field(result, "tokens_scored"), {}});
}

void AddFactColumns(const NeedlePlan& plan, std::vector<Column>& columns) {
  for (size_t cell = 0; cell < plan.facts.size(); ++cell) {
    const int64_t facts = plan.facts[cell];
    const auto found = [cell](const CompareRow& row) {
      return row.facts ? Json(row.facts->cells[cell].score.all.found) : Json(nullptr);
    };
    columns.push_back({fmt::format("{} fact{}", facts, facts == 1 ? "" : "s"), fmt::format("facts_{}_found", facts),
                       found, [n = plan.n](const Json& of) { return fmt::format("{} of {}", of.get<int64_t>(), n); }});
    columns.push_back({"", fmt::format("facts_{}_n", facts), [n = plan.n](const CompareRow&) { return Json(n); }, {}});
  }
}

void AddSpeedColumns(const CompareResult& result, std::vector<Column>& columns) {
  columns.push_back({"tok/s", "tok_s", Field(result, "tok_s"), Number(1)});
  columns.push_back({"against full", "tok_s_vs_full", Field(result, "tok_s_vs_full"),
                     [](const Json& ratio) { return fmt::format("{:.2f} x", ratio.get<double>()); }});
  columns.push_back({"", "step_ms_median", Field(result, "step_ms_median"), {}});
  columns.push_back({"", "depth", Field(result, "depth"), {}});
}

std::vector<Column> Columns(const CompareTask& task, const CompareResult& result, bool csv) {
  const auto plain = [](const Json& text) { return text.get<std::string>(); };
  std::vector<Column> columns = {{"kv", "kv", Field(result, "kv"), plain}};
  if (task.perplexity) AddPplColumns(result, columns);
  if (task.facts.n > 0) AddFactColumns(task.facts, columns);
  columns.push_back({"attended", "attended_ratio", Stat("attended_ratio"), Percent});
  columns.push_back({"read a step", "fetched_bytes_per_step", Stat("fetched_bytes_per_step"), Size});
  columns.push_back({"evicted", "evicted", Stat("evicted"), [](const Json& rows) { return rows.dump(); }});
  columns.push_back({"pool", "pool_peak_bytes", Stat("pool_peak_bytes"), Size});
  columns.push_back({"sketches", "sketch_bytes", Stat("sketch_bytes"), Size});
  if (task.steps > 0) AddSpeedColumns(result, columns);
  bool failed = false;
  for (const CompareRow& row : result.rows) failed = failed || !row.error.empty();
  if (csv || failed) columns.push_back({"not measured because", "error", Field(result, "error"), plain});
  std::erase_if(columns, [csv](const Column& column) { return !csv && column.head.empty(); });
  return columns;
}

std::string Replaced(std::string text, std::string_view what, std::string_view by) {
  for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += by.size())
    text.replace(at, what.size(), by);
  return text;
}

std::string CsvCell(const Json& value) {
  if (value.is_null()) return {};
  return value.is_string() ? CsvField(value.get<std::string>()) : value.dump();
}

}  // namespace

std::string CompareTable(const CompareTask& task, const CompareResult& result, bool csv) {
  const std::vector<Column> columns = Columns(task, result, csv);
  std::vector<std::string> heads, rules;
  for (const Column& column : columns) {
    heads.push_back(csv ? column.name : column.head);
    rules.push_back(column.name == "kv" || column.name == "error" ? "---" : "--:");
  }
  std::string table = csv ? fmt::format("{}\n", fmt::join(heads, ","))
                          : fmt::format("| {} |\n|{}|\n", fmt::join(heads, " | "), fmt::join(rules, "|"));
  for (const CompareRow& row : result.rows) {
    std::vector<std::string> cells;
    for (const Column& column : columns) {
      const Json value = column.value(row);
      const bool known = !value.is_null();
      cells.push_back(csv ? CsvCell(value) : known ? Replaced(column.words(value), "|", "\\|") : std::string());
    }
    table += csv ? fmt::format("{}\n", fmt::join(cells, ",")) : fmt::format("| {} |\n", fmt::join(cells, " | "));
  }
  return table;
}

Json CompareJson(const CompareResult& result, const StatsDetail& detail) {
  Json rows = Json::array();
  for (const CompareRow& row : result.rows) rows.push_back(RowJson(row, result, detail));
  return {{"full", RowJson(result.full, result, detail)}, {"results", std::move(rows)}};
}

std::string CompareCaption(const CompareTask& task, const CompareResult& result) {
  std::vector<std::string> parts;
  for (const CompareRow& row : result.rows) {
    if (row.ppl && task.perplexity)
      parts.push_back(fmt::format("{} tokens scored in windows of {}", row.ppl->tokens, task.text.options.context));
    if (row.facts) parts.push_back(fmt::format("facts in {} tokens, {} times", task.facts.lengths[0], task.facts.n));
    if (row.speed)
      parts.push_back(fmt::format("attention and speed (the median) of {} steps after {} tokens",
                                  row.speed->timing.step_ms.size(), row.speed->depth));
    if (!parts.empty()) break;
  }
  return fmt::format("{}\n", fmt::join(parts, "; "));
}

}  // namespace infinigen
