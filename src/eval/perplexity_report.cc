// Reports of `eval ppl`: JSON and text for people.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "eval/perplexity.h"
#include "runtime/report.h"

namespace infinigen {
namespace {

using Json = nlohmann::ordered_json;

std::string_view ModeName(PplMode mode) { return mode == PplMode::kStep ? "step" : "batched"; }

Json ChunksJson(const PplResult& result) {
  Json chunks = Json::array();
  for (const PplChunk& chunk : result.chunks) {
    const double tokens = static_cast<double>(chunk.tokens);
    chunks.push_back({{"tokens", chunk.tokens}, {"nll", chunk.nll / tokens}, {"kld_mean", chunk.kld / tokens}});
  }
  return chunks;
}

Json StepOverlapJson(const StepOverlap& overlap) {
  Json shares = Json::array(), layers = Json::array();
  for (size_t i = 0; i < StepOverlap::kSteps.size(); ++i) shares.push_back(overlap.share(i));
  for (const LayerId layer : overlap.layers())
    layers.push_back({{"layer", layer.value()}, {"share", overlap.share(0, layer)}});
  return {{"steps", StepOverlap::kSteps}, {"share", std::move(shares)}, {"layers", std::move(layers)}};
}

Json Known(bool known, double number) { return known ? Json(number) : Json(nullptr); }  // NaN becomes null too

// The part of a result that belongs to some windows; only sums by window are filled in.
PplResult PartOf(const PplResult& result, const PplFile& file) {
  PplResult part;
  for (size_t i = file.first; i < std::min(file.first + file.count, result.window_nll.size()); ++i) {
    part.window_nll.push_back(result.window_nll[i]);
    part.window_other_nll.push_back(result.window_other_nll[i]);
    part.window_kld.push_back(result.window_kld[i]);
    part.window_tokens.push_back(result.window_tokens[i]);
    part.tokens += result.window_tokens[i];
    part.kld += result.window_kld[i];
  }
  return part;
}

Json FilesJson(const PplTask& task, const PplResult& result, bool compared) {
  Json files = Json::array();
  for (const PplFile& file : task.files) {
    const PplResult part = PartOf(result, file);
    files.push_back({{"file", file.name},
                     {"windows", part.window_nll.size()},
                     {"tokens_scored", part.tokens},
                     {"ppl", part.ppl()},
                     {"ppl_delta_percent", Known(compared, part.ppl_change().value)},
                     {"ppl_delta_stderr", Known(compared, part.ppl_change().stderror)},
                     {"kld_mean", Known(compared, part.kld_mean())}});
  }
  return files;
}

// "+0.35 ± 0.06 %".
std::string WithError(const Estimate& percent) {
  return std::isnan(percent.stderror) ? fmt::format("{:+.2f} %", percent.value)
                                      : fmt::format("{:+.2f} ± {:.2f} %", percent.value, percent.stderror);
}

std::string FilesText(const PplTask& task, const PplResult& result, bool compared) {
  std::string text = "| file | windows | ppl | change | KL |\n|---|--:|--:|--:|--:|\n";
  for (const PplFile& file : task.files) {
    const PplResult part = PartOf(result, file);
    text += fmt::format("| {} | {} | {:.4f} | {} | {} |\n", file.name, part.window_nll.size(), part.ppl(),
                        compared ? WithError(part.ppl_change()) : "",
                        compared ? fmt::format("{:.5f}", part.kld_mean()) : "");
  }
  return text;
}

std::string AgainstText(const EvalSession& session, const PplReport& report) {
  const PplResult& result = report.result;
  const Against against = session.request().against;
  const KvStats stats = session.executor().instruments().Stats();
  const std::string clear = against == Against::kFull ? ""
                                                      : fmt::format(" ({:.2f} % where it is ahead by {})",
                                                                    100 * result.clear_agree(), kClearGap);
  const std::string selected =
      std::isnan(report.selection_overlap)
          ? ""
          : fmt::format("{:.2f} % of the selected rows are the same\n", 100 * report.selection_overlap);
  return fmt::format(
      "against {}: perplexity {}, KL divergence {:.5f}, the same most likely token in {:.2f} %{}\n{}{}{}",
      Name(against), WithError(result.ppl_change()), result.kld_mean(), 100 * result.top1_agree(), clear, selected,
      AttendedWords(stats, session.executor().options()), session.request().detail.per_layer ? LayerTable(stats) : "");
}

std::string ChunksText(int64_t chunk, const PplResult& result) {
  std::string text = "| tokens | ppl | KL |\n|---|--:|--:|\n";
  for (size_t i = 0; i < result.chunks.size(); ++i) {
    const PplChunk& of = result.chunks[i];
    if (of.tokens == 0) continue;  // in the prompt
    const int64_t first = static_cast<int64_t>(i) * chunk;
    const double tokens = static_cast<double>(of.tokens);
    text += fmt::format("| {}-{} | {:.3f} | {:.5f} |\n", first, first + chunk - 1, std::exp(of.nll / tokens),
                        of.kld / tokens);
  }
  return text;
}

std::string StepOverlapText(const StepOverlap& overlap) {
  std::string text = "share of a step's selection that was selected before too:";
  for (size_t i = 0; i < StepOverlap::kSteps.size(); ++i)
    text += fmt::format(" {:.1f} % ({})", 100 * overlap.share(i), StepOverlap::kSteps[i]);
  return text + " steps\n";
}

}  // namespace

Json PplJson(const EvalSession& session, const PplTask& task, const PplReport& report) {
  Json json = EvalJsonHead(session);
  const PplResult& result = report.result;
  const bool compared = session.other() != nullptr;
  const bool known = compared || session.executor().options().is_full();
  const Estimate change = result.ppl_change();
  // NaN (nothing was finished or compared) becomes null.
  json.update({{"ppl", result.ppl()},
               {"nll", result.nll()},
               {"ppl_against", Known(compared, std::exp(result.other_nll()))},
               {"ppl_delta_percent", Known(compared, change.value)},
               {"ppl_delta_stderr", Known(compared, change.stderror)},
               {"kld_mean", Known(known, result.kld_mean())},
               {"kld_stderr", Known(compared, result.kld_estimate().stderror)},
               {"top1_agree", Known(known, result.top1_agree())},
               {"top1_agree_clear", Known(compared, result.clear_agree())},
               {"clear", result.clear},
               {"selection_overlap", report.selection_overlap},
               {"against", compared ? Json(Name(session.request().against)) : Json(nullptr)},
               {"tokens_scored", result.tokens},
               {"windows", result.window_nll.size()},
               {"ctx", task.options.context},
               {"from", task.options.from},
               {"mode", ModeName(task.options.mode)},
               {"file", task.files.size() == 1 ? Json(task.files[0].name) : Json(nullptr)},
               {"files", FilesJson(task, result, compared)},
               {"full_kept_windows", report.kept_windows},
               {"bytes", report.bytes},
               {"bits_per_byte", report.bits_per_byte()},
               {"tok_s", result.tokens_per_s()},
               {"complete", result.complete()}});
  AddEvalJsonTail(session, result.timing, result.pool, &json);
  if (task.options.chunk > 0) json["chunks"] = ChunksJson(result);
  if (report.step_overlap) json["step_overlap"] = StepOverlapJson(*report.step_overlap);
  return json;
}

std::string PplSummary(const EvalSession& session, const PplTask& task, const PplReport& report) {
  const PplResult& result = report.result;
  std::string text = fmt::format(
      "ppl {:.4f}  nll {:.5f}  bits per byte {:.4f}\n"
      "{} tokens scored ({} bytes) in {} of {} windows of {} tokens{}, {}, {}, {:.1f} tok/s\n",
      result.ppl(), result.nll(), report.bits_per_byte(), result.tokens, report.bytes, result.window_nll.size(),
      result.windows, task.options.context,
      task.options.from > 0 ? fmt::format(" after a prompt of {}", task.options.from) : "", ModeName(task.options.mode),
      KvWords(session.executor().options()), result.tokens_per_s());
  if (session.other() != nullptr) text += AgainstText(session, report);
  if (task.files.size() > 1) text += FilesText(task, result, session.other() != nullptr);
  if (task.options.chunk > 0) text += ChunksText(task.options.chunk, result);
  if (report.step_overlap) text += StepOverlapText(*report.step_overlap);
  return text;
}

}  // namespace infinigen
