// EvalSession: the model of an evaluation, and the executors that run it. Every evaluation opens one session, plans
// the memory of its longest sequence, and starts an executor for each KV method that it measures. Like all of src/eval
// it has no terminal: warnings, progress and cancellation go through the request's callbacks. One thread.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "base/result.h"
#include "runtime/callbacks.h"
#include "runtime/device.h"
#include "runtime/kv_request.h"
#include "runtime/launch.h"
#include "runtime/model.h"
#include "runtime/plan.h"
#include "runtime/report.h"

namespace infinigen {

// What a method's predictions are compared with.
enum class Against : uint8_t {
  kFull,  // --kv full on the same device
  kCpu,   // the same method on the CPU
};
std::string_view Name(Against against);

struct EvalRequest {
  std::string model;  // a directory; empty: the built-in model
  DeviceChoice device;
  int64_t batch = 0;  // sequences at once, at most; 0: as many as are useful and fit
  Against against = Against::kFull;
  StatsDetail detail;  // of the reports
  Callbacks callbacks;
};

class EvalSession {
 public:
  // Opens the model, which must have a tokenizer.
  static Result<EvalSession> Open(EvalRequest request);

  // What sequences of `rows` rows take under `kv`. `useful`: how many of them can be of use at once.
  Result<RunPlan> Plan(const KvRequest& kv, int64_t rows, int64_t useful) const;
  // Frees the executors there are and makes one for `kv`. `compare`: also the one that results are compared with,
  // unless the method is full itself or memory is short, which is a warning.
  Status Start(const KvRequest& kv, int64_t rows, int64_t useful, bool compare);
  // Frees the executors.
  void Stop();

  const EvalRequest& request() const { return request_; }
  const Callbacks& callbacks() const { return request_.callbacks; }
  const Model& model() const { return *model_; }
  const Tokenizer& tokenizer() const { return *model_->tokenizer; }
  // Precondition: started.
  Executor& executor() const { return *executor_; }
  // What results are compared with; null: nothing.
  Executor* other() const { return other_.get(); }

 private:
  explicit EvalSession(EvalRequest request) : request_(std::move(request)) {}

  EvalRequest request_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Executor> executor_, other_;  // after the model, whose weights they read
  bool warned_ = false;                         // that the context is beyond what the model was trained for
};

// How tokens that count as decode steps are prefilled in bulk. Where every entry is kept and attended to, a dense
// prefill gives the same bits faster.
PrefillKind KindOfSteps(const Executor& executor);

// The beginning of every report (model, device, kv) and its end (timing, kv_stats, memory).
nlohmann::ordered_json EvalJsonHead(const EvalSession& session);
void AddEvalJsonTail(const EvalSession& session, const Timing& timing, const PoolUse& pool,
                     nlohmann::ordered_json* json);

}  // namespace infinigen
