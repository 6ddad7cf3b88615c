#include "cli/bench_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "base/size.h"

namespace infinigen {
namespace {

using Json = nlohmann::ordered_json;

double MeanOf(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return values.empty() ? 0 : sum / static_cast<double>(values.size());
}

Json OrNull(const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); }

// "12.34 ± 0.05"; a single value has no deviation; "-" if nothing was measured.
std::string WithDeviation(bool known, double value, const std::optional<double>& deviation, int digits) {
  if (!known) return "-";
  std::string text = fmt::format("{:.{}f}", value, digits);
  if (deviation) text += fmt::format(" ± {:.{}f}", *deviation, digits);
  return text;
}

// Times within the GPU's steps, and the measured bandwidth limits of the machine.
std::string GpuNotes(const std::vector<Measurement>& measurements, const GpuCeilings& ceilings) {
  std::string text = fmt::format(
      "\nmeasured limits of this machine: GPU memory {:.0f} GB/s (read), link {:.1f} GB/s to the GPU, {:.1f} GB/s to "
      "the host\n\n",
      ceilings.device_gb_per_s, ceilings.to_device_gb_per_s, ceilings.to_host_gb_per_s);
  text += "| kv | home | depth | prefill s | pinning s | link GB/s | hits | GPU peak |";
  for (const ZoneTime& zone : measurements[0].zones) text += fmt::format(" {} ms |", zone.name);
  text += "\n|---|---|--:|--:|--:|--:|--:|--:|";
  for (size_t i = 0; i < measurements[0].zones.size(); ++i) text += "--:|";
  for (const Measurement& m : measurements) {
    text += fmt::format("\n| {} | {} | {} | {:.2f} | {:.2f} | {:.1f} | {} | {} |", m.options.method.preset,
                        m.options.pool_on_device ? "device" : "host", m.depth, m.timing.prefill_s, m.device.pinning_s,
                        m.link_gigabytes_per_s(), m.stats.fetches ? fmt::format("{:.3f}", m.stats.hit_ratio()) : "",
                        FormatSize(m.device.peak_bytes));
    for (const ZoneTime& zone : m.zones) text += fmt::format(" {:.2f} |", zone.ms);
  }
  text += "\n";
  for (const Measurement& m : measurements)
    if (m.no_fetch_ms > 0)
      text += fmt::format(
          "\n{} at depth {}: a step takes {:.2f} ms, {:.2f} ms without fetching, {:.2f} ms without computing (only "
          "selection and fetching): {:.0f} % of the fetching is hidden behind computing\n",
          m.options.method.preset, m.depth, Percentile(m.timing.step_ms, 50), m.no_fetch_ms, m.no_compute_ms,
          100 * m.hidden_share());
  return text;
}

Json CeilingsJson(const GpuCeilings& ceilings) {
  return {{"device_gb_per_s", ceilings.device_gb_per_s},
          {"to_device_gb_per_s", ceilings.to_device_gb_per_s},
          {"to_host_gb_per_s", ceilings.to_host_gb_per_s}};
}

Json MeasurementJson(const BenchReport& report, const Measurement& m) {
  Json timing = TimingJson(m.timing);
  timing["load_s"] = report.model.load_s;
  if (!m.prefill_rates.empty()) timing["prefill_tok_s"] = m.prefill_rate();
  if (!m.decode_rates.empty()) timing["decode_tok_s"] = m.decode_rate();
  timing["decode_step_ms_sd"] = OrNull(m.step_deviation());
  timing["decode_tok_s_sd"] = OrNull(Deviation(m.decode_rates));
  timing["prefill_tok_s_sd"] = OrNull(Deviation(m.prefill_rates));
  timing["decode_tok_s_runs"] = m.decode_rates;
  Json json = {{"kv", m.options.method.preset},
               {"depth", m.depth},
               {"batch", report.batch},
               {"timing", std::move(timing)},
               {"speedup_vs_first", OrNull(report.SpeedupToFirst(m))},
               {"step_bytes", m.step_bytes},
               {"gb_per_s", m.gigabytes_per_s()},
               {"kv_stats", KvStatsJson(m.pool, m.stats, report.detail)},
               {"kv_options", KvJson(m.options)},
               {"memory", MemoryJson(m.device)}};
  if (m.zones.empty()) return json;
  json["link_gb_per_s"] = m.link_gigabytes_per_s();
  for (const ZoneTime& zone : m.zones) json["step_ms_by_kind"][std::string(zone.name)] = zone.ms;
  if (m.no_fetch_ms > 0)
    json.update({{"no_fetch_step_ms", m.no_fetch_ms},
                 {"no_compute_step_ms", m.no_compute_ms},
                 {"hidden_share", m.hidden_share()}});
  return json;
}

struct CsvColumn {
  std::string name;
  std::string value;  // empty: unknown
};

// All columns of a line. Scripts rely on the first sixteen positions, so new columns go to the end.
std::vector<CsvColumn> CsvColumnsOf(const BenchReport& report, const Measurement& m) {
  const Timing& t = m.timing;
  const bool steps = !t.step_ms.empty();
  const auto known = [](bool is, double value) { return is ? fmt::format("{:.6g}", value) : std::string(); };
  const auto maybe = [&](const std::optional<double>& value) { return known(value.has_value(), value.value_or(0)); };
  const Json kv = KvStatsJson(m.pool, m.stats), memory = MemoryJson(m.device);
  std::vector<CsvColumn> columns = {{"model", report.model.config.name},
                                    {"dtype", std::string(Name(report.model.weight_type))},
                                    {"backend", BackendName(m.options.device)},
                                    {"threads", fmt::format("{}", m.options.threads)},
                                    {"kv", std::string(m.options.method.preset)},
                                    {"kv_type", std::string(Name(m.options.kv_type))},
                                    {"batch", fmt::format("{}", report.batch)},
                                    {"depth", fmt::format("{}", m.depth)},
                                    {"gen", fmt::format("{}", report.gen)},
                                    {"prefill_tok_s", known(t.prefill_s > 0, m.prefill_rate())},
                                    {"decode_tok_s", known(steps, m.decode_rate())},
                                    {"step_ms_mean", known(steps, Mean(t.step_ms))},
                                    {"step_ms_p99", known(steps, Percentile(t.step_ms, 99))},
                                    {"step_bytes", fmt::format("{}", m.step_bytes)},
                                    {"gb_per_s", known(steps, m.gigabytes_per_s())},
                                    {"attended_ratio", fmt::format("{:.4f}", m.stats.All().attended_ratio())},
                                    {"step_ms_sd", maybe(m.step_deviation())},
                                    {"step_ms_median", known(steps, Percentile(t.step_ms, 50))},
                                    {"repeat", fmt::format("{}", report.repeat)},
                                    {"decode_tok_s_sd", maybe(Deviation(m.decode_rates))},
                                    {"prefill_tok_s_sd", maybe(Deviation(m.prefill_rates))},
                                    {"speedup_vs_first", maybe(report.SpeedupToFirst(m))},
                                    {"prefill_s", known(t.prefill_s > 0, t.prefill_s)},
                                    {"decode_s", known(steps, t.decode_s)},
                                    {"fill", report.fill},
                                    {"home", m.options.pool_on_device ? "device" : "host"}};
  for (const char* field : {"selected_ratio", "extra_ratio", "fetched_bytes", "fetched_bytes_per_step", "hit_ratio",
                            "evicted", "pool_bytes", "pool_peak_bytes", "sketch_bytes", "hot_bytes"})
    columns.push_back({field, kv[field].is_null() ? std::string() : kv[field].dump()});
  for (const char* field : {"host_peak_bytes", "device_peak_bytes"}) columns.push_back({field, memory[field].dump()});
  if (!report.ceilings) return columns;
  columns.push_back({"link_gb_per_s", known(steps, m.link_gigabytes_per_s())});
  columns.push_back({"no_fetch_step_ms", known(m.no_fetch_ms > 0, m.no_fetch_ms)});
  columns.push_back({"no_compute_step_ms", known(m.no_fetch_ms > 0, m.no_compute_ms)});
  columns.push_back({"hidden_share", known(m.no_fetch_ms > 0, m.hidden_share())});
  // The zones of the first line, so that all lines have the same columns.
  for (const ZoneTime& zone : report.measurements[0].zones) {
    const auto same =
        std::find_if(m.zones.begin(), m.zones.end(), [&](const ZoneTime& z) { return z.name == zone.name; });
    columns.push_back(
        {fmt::format("{}_ms", zone.name), known(same != m.zones.end(), same != m.zones.end() ? same->ms : 0)});
  }
  return columns;
}

}  // namespace

std::optional<double> Deviation(const std::vector<double>& values) {
  if (values.size() < 2) return std::nullopt;
  const double mean = MeanOf(values);
  double sum = 0;
  for (const double value : values) sum += (value - mean) * (value - mean);
  return std::sqrt(sum / static_cast<double>(values.size() - 1));
}

double Measurement::prefill_rate() const { return MeanOf(prefill_rates); }
double Measurement::decode_rate() const { return MeanOf(decode_rates); }
std::optional<double> Measurement::step_deviation() const {
  return Deviation(std::vector<double>(timing.step_ms.begin(), timing.step_ms.end()));
}

void Measurement::Add(Measurement run) {
  if (run.timing.prefill_s > 0) prefill_rates.push_back(run.timing.prefill_rate());
  if (run.timing.decode_s > 0) decode_rates.push_back(run.timing.decode_rate());
  if (!complete) {
    run.prefill_rates = std::move(prefill_rates);
    run.decode_rates = std::move(decode_rates);
    *this = std::move(run);
    return;
  }
  const std::vector<float>& steps = run.timing.step_ms;
  timing.step_ms.insert(timing.step_ms.end(), steps.begin(), steps.end());
  timing.prefill_tokens += run.timing.prefill_tokens;
  timing.prefill_s += run.timing.prefill_s;
  timing.decode_tokens += run.timing.decode_tokens;
  timing.decode_s += run.timing.decode_s;
  pool.peak_bytes = std::max(pool.peak_bytes, run.pool.peak_bytes);
  device = run.device;
}

double Measurement::gigabytes_per_s() const {
  const double mean_ms = Mean(timing.step_ms);
  return mean_ms > 0 ? static_cast<double>(step_bytes) / mean_ms / 1e6 : 0;
}

double Measurement::hidden_share() const {
  double fetch_ms = no_compute_ms;
  for (const ZoneTime& zone : zones)
    if (zone.name == "fetch") fetch_ms = std::min(fetch_ms, zone.ms);
  return fetch_ms > 0 ? std::clamp(1 - (Percentile(timing.step_ms, 50) - no_fetch_ms) / fetch_ms, 0.0, 1.0) : 0;
}

double Measurement::link_gigabytes_per_s() const {
  // `stats` counts the bytes of one repetition only.
  const double ms = timing.decode_s * 1e3 / std::max(1.0, static_cast<double>(decode_rates.size()));
  const bool far = options.device == Device::kCuda && !options.pool_on_device;
  return far && ms > 0 ? static_cast<double>(stats.fetched_bytes) / ms / 1e6 : 0;
}

std::optional<double> BenchReport::SpeedupToFirst(const Measurement& of) const {
  const auto same = [&](const Measurement& other) { return other.depth == of.depth; };
  const auto first = std::find_if(measurements.begin(), measurements.end(), same);
  if (first == measurements.end() || first->timing.step_ms.empty() || of.timing.step_ms.empty()) return std::nullopt;
  return Percentile(first->timing.step_ms, 50) / Percentile(of.timing.step_ms, 50);
}

Json BenchJson(const BenchReport& report) {
  Json results = Json::array();
  for (const Measurement& m : report.measurements) results.push_back(MeasurementJson(report, m));
  Json json = {{"model", ModelJson(report.model)},
               {"device", report.device},
               {"kv", report.measurements.empty() ? Json(nullptr) : KvJson(report.measurements[0].options)},
               {"batch", report.batch},
               {"prompt", report.prompt},
               {"gen", report.gen},
               {"repeat", report.repeat},
               {"fill", report.fill},
               {"complete", report.complete},
               {"results", std::move(results)}};
  if (report.ceilings) json["ceilings"] = CeilingsJson(*report.ceilings);
  return json;
}

std::string BenchCsv(const BenchReport& report) {
  std::string text;
  for (const Measurement& m : report.measurements) {
    const std::vector<CsvColumn> columns = CsvColumnsOf(report, m);
    std::vector<std::string> names, values;
    for (const CsvColumn& column : columns) {
      names.push_back(column.name);
      values.push_back(CsvField(column.value));
    }
    if (text.empty()) text = fmt::format("{}\n", fmt::join(names, ","));
    text += fmt::format("{}\n", fmt::join(values, ","));
  }
  return text;
}

std::string BenchMarkdown(const BenchReport& report) {
  const std::vector<Measurement>& measurements = report.measurements;
  const std::string first = measurements.empty() ? "the first" : std::string(measurements[0].options.method.preset);
  std::string text = fmt::format(
      "| model | type | backend | threads | kv | kv type | batch | depth | gen | prefill tok/s | decode tok/s | "
      "step ms | median ms | p99 ms | against {} | step bytes | GB/s | attended |\n"
      "|---|---|---|--:|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n",
      first);
  for (const Measurement& m : measurements) {
    const Timing& t = m.timing;
    const bool steps = !t.step_ms.empty();
    const std::optional<double> ratio = report.SpeedupToFirst(m);
    const std::vector<std::string> cells = {
        report.model.config.name,
        std::string(Name(report.model.weight_type)),
        BackendName(m.options.device),
        fmt::format("{}", m.options.threads),
        std::string(m.options.method.preset),
        std::string(Name(m.options.kv_type)),
        fmt::format("{}", report.batch),
        fmt::format("{}", m.depth),
        report.repeat > 1 ? fmt::format("{} x {}", report.repeat, report.gen) : fmt::format("{}", report.gen),
        WithDeviation(t.prefill_s > 0, m.prefill_rate(), Deviation(m.prefill_rates), 1),
        WithDeviation(steps, m.decode_rate(), Deviation(m.decode_rates), 2),
        WithDeviation(steps, Mean(t.step_ms), m.step_deviation(), 2),
        WithDeviation(steps, Percentile(t.step_ms, 50), {}, 2),
        WithDeviation(steps, Percentile(t.step_ms, 99), {}, 2),
        ratio ? fmt::format("{:.2f}x", *ratio) : "-",
        fmt::format("{}", m.step_bytes),
        fmt::format("{:.2f}", m.gigabytes_per_s()),
        fmt::format("{:.4f}", m.stats.All().attended_ratio())};
    text += fmt::format("| {} |\n", fmt::join(cells, " | "));
  }
  if (report.ceilings) text += GpuNotes(measurements, *report.ceilings);
  return text;
}

}  // namespace infinigen
