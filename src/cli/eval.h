// `infinigen eval`: how good a model's answers are, under any way of keeping the cache. One file per kind of evaluation
// (eval_ppl.cc, eval_needle.cc, eval_choice.cc, eval_compare.cc); here is what they share.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "runtime/kv_request.h"
#include "runtime/model.h"
#include "runtime/plan.h"
#include "runtime/report.h"

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
  std::string against = "full";  // what results are compared with, where they are: full on the same device, or cpu
};
// `kv_list`: --kv takes several.
void AddEvalFlags(Flags& flags, EvalFlags* values, const std::string& batch_help, bool kv_list = false);

// A model with its tokenizer, ready to run sequences of `rows` rows.
struct EvalSession {
  DeviceChoice device;
  KvRequest kv;
  std::unique_ptr<Model> model;
  std::unique_ptr<Executor> executor;  // after the model, whose weights it reads
  std::unique_ptr<Executor> full;      // what it is compared with: --kv full, or the same on the CPU; null unless asked
  bool warned = false;                 // of a context beyond what the model was trained for; once is enough

  const Tokenizer& tokenizer() const { return *model->tokenizer; }
};
Result<EvalSession> OpenForEval(const EvalFlags& flags);
// The same without a choice of --kv, which the caller makes before each StartExecutor.
Result<EvalSession> OpenModelForEval(const EvalFlags& flags);
// What sequences of `rows` rows take under the session's choice. `batch`: how many of them can be of use at once.
Result<RunPlan> PlanEval(const EvalFlags& flags, int64_t rows, int64_t batch, const EvalSession& session);
// Plans memory and makes the executor, and a second one when its results are to be compared with another's.
Status StartExecutor(const EvalFlags& flags, int64_t rows, int64_t batch, bool compare, EvalSession* session);

// The part of the report that every evaluation has: model, device, kv; and its end: timing, kv_stats, memory.
nlohmann::ordered_json EvalJsonHead(const EvalSession& session);
void AddEvalJsonTail(const EvalFlags& flags, const EvalSession& session, const Timing& timing, const PoolUse& pool,
                     nlohmann::ordered_json* json);

// Runs a command's body as the others do: errors in one line, exit code 130 after Ctrl-C.
int FinishEval(const std::function<Result<int>()>& body);

// One line on stderr that is drawn over and over, where a person watches; nothing elsewhere.
class StatusLine {
 public:
  StatusLine();
  ~StatusLine() { Erase(); }
  StatusLine(const StatusLine&) = delete;
  StatusLine& operator=(const StatusLine&) = delete;

  void Draw(std::string_view text);
  void Erase();

 private:
  const bool terminal_;
  bool drawn_ = false;
};

}  // namespace infinigen
