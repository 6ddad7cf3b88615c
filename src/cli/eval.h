// `infinigen eval`: the part that all kinds of evaluation share. Each kind has its own file (eval_ppl.cc,
// eval_needle.cc, eval_choice.cc, eval_compare.cc), which parses flags, runs the evaluation (src/eval) and prints its
// report.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "cli/commands.h"
#include "cli/console.h"
#include "cli/options.h"
#include "eval/session.h"

namespace infinigen {

int RunEvalPpl(Arguments arguments);
int RunEvalNeedle(Arguments arguments);
int RunEvalChoice(Arguments arguments);
int RunEvalCompare(Arguments arguments);

struct EvalFlags {
  std::string model;
  DeviceRequest device;
  KvFlags kv;
  int64_t batch = 0;  // 0: not given
  bool dry_run = false;
  bool json = false;
};
// `kv_list`: --kv accepts several presets.
void AddEvalFlags(Flags& flags, EvalFlags* values, const std::string& batch_help, bool kv_list);

// Opens the model. The session's callbacks use the terminal, which outlives it.
Result<EvalSession> OpenSession(const EvalFlags& flags, Terminal& terminal, Against against = Against::kFull);

}  // namespace infinigen
