// Reports of `eval ppl`: JSON and text for people.
#include <fmt/format.h>

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
  return fmt::format("against {}: KL divergence {:.5f}, the same most likely token in {:.2f} %{}\n{}{}{}",
                     Name(against), result.kld_mean(), 100 * result.top1_agree(), clear, selected,
                     AttendedWords(stats, session.executor().options()),
                     session.request().detail.per_layer ? LayerTable(stats) : "");
}

std::string ChunksText(int64_t chunk, const PplResult& result) {
  std::string text = "| tokens | ppl | KL |\n|---|--:|--:|\n";
  for (size_t i = 0; i < result.chunks.size(); ++i) {
    const PplChunk& of = result.chunks[i];
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

Json PplJson(const EvalSession& session, const PplTask& task, const PplReport& report, const std::string& file) {
  Json json = EvalJsonHead(session);
  const PplResult& result = report.result;
  const bool compared = session.other() != nullptr;
  const bool known = compared || session.executor().options().is_full();
  // NaN (nothing was finished or compared) becomes null.
  json.update({{"ppl", result.ppl()},
               {"nll", result.nll()},
               {"kld_mean", known ? Json(result.kld_mean()) : Json(nullptr)},
               {"top1_agree", known ? Json(result.top1_agree()) : Json(nullptr)},
               {"top1_agree_clear", compared ? Json(result.clear_agree()) : Json(nullptr)},
               {"clear", result.clear},
               {"selection_overlap", report.selection_overlap},
               {"against", compared ? Json(Name(session.request().against)) : Json(nullptr)},
               {"tokens_scored", result.tokens},
               {"windows", result.window_nll.size()},
               {"ctx", task.options.context},
               {"mode", ModeName(task.options.mode)},
               {"file", file},
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
      "{} tokens scored ({} bytes) in {} of {} windows of {} tokens, {}, {}, {:.1f} tok/s\n",
      result.ppl(), result.nll(), report.bits_per_byte(), result.tokens, report.bytes, result.window_nll.size(),
      result.windows, task.options.context, ModeName(task.options.mode), KvWords(session.executor().options()),
      result.tokens_per_s());
  if (session.other() != nullptr) text += AgainstText(session, report);
  if (task.options.chunk > 0) text += ChunksText(task.options.chunk, result);
  if (report.step_overlap) text += StepOverlapText(*report.step_overlap);
  return text;
}

}  // namespace infinigen
