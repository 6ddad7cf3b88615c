// Conversions between the public API (include/infinigen/infinigen.h) and runtime, for api.cc: Results become
// exceptions, requests are checked, and structs of one side become those of the other. Any thread.
#pragma once

#include <infinigen/infinigen.h>

#include <utility>

#include "runtime/callbacks.h"
#include "runtime/model.h"
#include "runtime/plan.h"
#include "runtime/requests.h"

namespace infinigen::v1 {

[[noreturn]] inline void Throw(const infinigen::Error& error) {
  throw Error(static_cast<ErrorKind>(error.kind), error.message);
}
static_assert(static_cast<int>(ErrorKind::kExhausted) == static_cast<int>(infinigen::ErrorKind::kExhausted));

template <class T>
T Take(Result<T> result) {
  if (!result.ok()) Throw(result.error());
  return std::move(result).value();
}
inline void Take(const Status& status) {
  if (!status.ok()) Throw(status.error());
}

// For work that reports to its caller.
infinigen::Callbacks Inner(const Callbacks& outer);

TokenLogprobs LogprobsOf(const infinigen::TokenLogprobs& given);
KvStatistics StatisticsOf(const KvStats& stats);
Plan PlanOf(const ModelConfig& config, const RunPlan& plan);
// Draws a seed if the request has none.
SamplingOptions SamplingOf(const Request& request);

// Throws what is wrong with a request whatever its prompt's tokens are.
void CheckRequest(const Request& request, const infinigen::Model& model, const KvMethod& method);

}  // namespace infinigen::v1
