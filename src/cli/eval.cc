#include "cli/eval.h"

#include <fmt/format.h>

#include <array>
#include <string_view>
#include <utility>

#include "cli/console.h"

namespace infinigen {
namespace {

struct EvalKind {
  std::string_view name;
  int (*run)(Arguments);
};
constexpr std::array<EvalKind, 4> kKinds = {
    {{"ppl", RunEvalPpl}, {"needle", RunEvalNeedle}, {"choice", RunEvalChoice}, {"compare", RunEvalCompare}}};

constexpr std::string_view kHelp =
    "Measure the quality of a model's predictions and answers.\n\n"
    "usage: infinigen eval <kind> [flags]\n\nkinds:\n"
    "  ppl        perplexity of a text\n"
    "  needle     retrieval of facts that are planted in a long text\n"
    "  choice     multiple-choice questions, answered by likelihood\n"
    "  compare    all KV methods in one table: perplexity, facts found, bytes and tokens/s\n\n"
    "infinigen eval <kind> -h lists the flags of a kind.\n";

}  // namespace

int RunEval(Arguments arguments) {
  if (arguments.empty()) return FailUsage("eval", "the kind of evaluation is missing: ppl, needle, choice or compare");
  const std::string& name = arguments[0];
  if (name == "-h" || name == "--help") {
    Output().Write(kHelp);
    return kExitOk;
  }
  for (const EvalKind& kind : kKinds)
    if (kind.name == name) return kind.run(arguments.subspan(1));
  return FailUsage("eval", fmt::format("'{}' is not a kind of evaluation; use ppl, needle, choice or compare", name));
}

void AddEvalFlags(Flags& flags, EvalFlags* values, const std::string& batch_help, bool kv_list) {
  flags.Group("Model and machine");
  AddModelFlag(flags, &values->model);
  AddDeviceFlags(flags, &values->device);
  flags.Integer("--batch", &values->batch, 1, 4096, batch_help);
  flags.Switch("--dry-run", &values->dry_run, "print the memory plan and exit");
  AddKvFlags(flags, &values->kv, kv_list);
  flags.Group("Output");
  flags.Switch("--json", &values->json, "print one JSON object instead of text");
}

Result<EvalSession> OpenSession(const EvalFlags& flags, Terminal& terminal, Against against) {
  EvalRequest request{.model = flags.model,
                      .batch = flags.batch,
                      .against = against,
                      .detail = {flags.kv.stats_per_layer, flags.kv.request.measure_mass},
                      .callbacks = terminal.callbacks()};
  ASSIGN_OR_RETURN(request.device, ChooseDevice(flags.device));
  return EvalSession::Open(std::move(request));
}

}  // namespace infinigen
