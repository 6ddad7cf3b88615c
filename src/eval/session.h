// EvalSession: the model of an evaluation and the executors that run it. Every evaluation opens one session, plans the
// memory of its longest sequence, and starts an executor for each KV method. Like all of src/eval it does not use the
// terminal: warnings, progress and cancellation go through the request's callbacks. One thread.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "base/result.h"
#include "runtime/callbacks.h"
#include "runtime/kv_request.h"
#include "runtime/launch.h"
#include "runtime/model.h"
#include "runtime/plan.h"
#include "runtime/report.h"
#include "runtime/run_options.h"

namespace infinigen {

// The run that a method's predictions are compared with.
enum class Against : uint8_t {
  kFull,  // --kv full on the same device
  kCpu,   // the same method on the CPU
};
std::string_view Name(Against against);

struct EvalRequest {
  std::string model;  // a directory; empty: the built-in model
  DeviceChoice device;
  int64_t batch = 0;  // maximum batch; 0: as many as are useful and fit
  Against against = Against::kFull;
  StatsDetail detail;  // for the reports
  Callbacks callbacks;
};

class EvalSession {
 public:
  // Opens the model, which must have a tokenizer.
  static Result<EvalSession> Open(EvalRequest request);

  // The plan for sequences of `rows` rows under `kv`. `useful`: a larger batch would not be used.
  Result<RunPlan> Plan(const KvRequest& kv, int64_t rows, int64_t useful) const;
  // Frees the current executors and creates one for `kv`. `compare`: also creates the one to compare with, unless the
  // method is full itself or memory is short, which gives a warning.
  Status Start(const KvRequest& kv, int64_t rows, int64_t useful, bool compare);
  // Frees the executors.
  void Stop();

  const EvalRequest& request() const { return request_; }
  const Callbacks& callbacks() const { return request_.callbacks; }
  const Model& model() const { return *model_; }
  const Tokenizer& tokenizer() const { return *model_->tokenizer; }
  // Precondition: started.
  Executor& executor() const { return *executor_; }
  // The executor that results are compared with; null: none.
  Executor* other() const { return other_.get(); }

 private:
  explicit EvalSession(EvalRequest request) : request_(std::move(request)) {}

  EvalRequest request_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Executor> executor_, other_;  // after model_, because they use its weights
  bool warned_ = false;                         // about a context beyond the trained length
};

// The kind of prefill that treats tokens as decode steps. If every entry is retained and attended to, a dense prefill
// gives the same bits faster.
PrefillKind KindOfSteps(const Executor& executor);

// The first fields of every report (model, device, kv) and the last (timing, kv_stats, memory).
nlohmann::ordered_json EvalJsonHead(const EvalSession& session);
void AddEvalJsonTail(const EvalSession& session, const Timing& timing, const PoolUse& pool,
                     nlohmann::ordered_json* json);

}  // namespace infinigen
