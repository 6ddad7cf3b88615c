// Reports of `eval choice`: JSON, a table, and text for people.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/machine.h"
#include "base/size.h"
#include "eval/choice_run.h"
#include "runtime/report.h"

namespace infinigen {
namespace {

using Json = nlohmann::ordered_json;

// The numbers of a run, in the order of the CSV columns. `agreement` is null without a comparison with full.
Json Numbers(const EvalSession& session, const ChoiceInput& input, const ChoiceResult& result) {
  const bool compared = session.other() != nullptr || session.executor().options().is_full();
  return {{"task", input.task.name},
          {"shots", input.options.shots},
          {"n", result.n()},
          {"accuracy", result.accuracy()},
          {"accuracy_stderr", result.accuracy_stderr()},
          {"acc_norm", result.share(result.right_norm)},
          {"agreement", compared ? Json(result.share(result.same)) : Json(nullptr)}};
}

Json QuestionsJson(const ChoiceInput& input, const ChoiceResult& result) {
  Json questions = Json::array();
  for (size_t i = 0; i < result.answers.size(); ++i) {
    const ChoiceAnswer& answer = result.answers[i];
    Json one = {{"line", input.questions[i].line},
                {"choice", answer.choice},
                {"choice_norm", answer.choice_norm},
                {"answer", input.questions[i].answer},
                {"scores", answer.scores}};
    if (!result.other_answers.empty())
      one.update({{"full_choice", result.other_answers[i].choice}, {"full_scores", result.other_answers[i].scores}});
    questions.push_back(std::move(one));
  }
  return questions;
}

bool IsKnown(const Json& value) {
  return !value.is_null() && !(value.is_number_float() && std::isnan(value.get<double>()));
}

}  // namespace

Json ChoiceJson(const EvalSession& session, const ChoiceInput& input, const ChoiceResult& result) {
  const ChoiceTask& task = input.task;
  Json json = EvalJsonHead(session);
  json.update(Numbers(session, input, result));
  json.update({{"seed", input.options.seed},
               {"mode", input.options.mode == ChoiceMode::kStep ? "step" : "batched"},
               {"file", task.path},
               {"examples_file", task.examples_path.empty() ? Json(nullptr) : Json(task.examples_path)},
               {"questions", QuestionsJson(input, result)},
               {"complete", result.complete()}});
  AddEvalJsonTail(session, result.timing, result.pool, &json);
  return json;
}

std::string ChoiceTable(const EvalSession& session, const ChoiceInput& input, const ChoiceResult& result, bool csv) {
  const Json numbers = Numbers(session, input, result);
  const ExecutorOptions& options = session.executor().options();
  const Json attended = KvStatsJson(result.pool, session.executor().instruments().Stats())["attended_ratio"];
  if (csv) {
    const auto cell = [](const Json& value) {
      return !IsKnown(value) ? std::string() : value.is_string() ? CsvField(value.get<std::string>()) : value.dump();
    };
    std::string heads = "kv", cells(options.method.preset);
    for (const auto& [name, value] : numbers.items()) heads += "," + name, cells += "," + cell(value);
    return fmt::format("{},attended_ratio\n{},{}\n", heads, cells, cell(attended));
  }
  const auto percent = [](const Json& share) {
    return IsKnown(share) ? fmt::format("{:.1f} %", 100 * share.get<double>()) : std::string("-");
  };
  return fmt::format(
      "| task | shots | kv | n | accuracy | +- | by character | same choice as full | attended |\n"
      "|---|--:|---|--:|--:|--:|--:|--:|--:|\n| {} | {} | {} | {} | {} | {} | {} | {} | {} |\n",
      OneLine(input.task.name), input.options.shots, options.method.preset, result.n(), percent(numbers["accuracy"]),
      percent(numbers["accuracy_stderr"]), percent(numbers["acc_norm"]), percent(numbers["agreement"]),
      percent(attended));
}

std::string ChoiceStatistics(const EvalSession& session, const ChoiceResult& result) {
  const Timing& timing = result.timing;
  const ExecutorOptions& options = session.executor().options();
  const KvStats stats = session.executor().instruments().Stats();
  const int64_t tokens = timing.prefill_tokens + timing.decode_tokens;
  return fmt::format("{} tokens, {:.1f} tok/s; memory {} at most, KV pool {} ({}), {} thread{}\n{}{}", tokens,
                     static_cast<double>(tokens) / std::max(timing.prefill_s + timing.decode_s, 1e-9),
                     FormatSize(PeakResidentBytes()), FormatSize(result.pool.peak_bytes), KvWords(options),
                     options.threads, options.threads == 1 ? "" : "s", AttendedWords(stats, options),
                     session.request().detail.per_layer ? LayerTable(stats) : "");
}

}  // namespace infinigen
