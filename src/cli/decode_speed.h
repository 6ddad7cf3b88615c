// How fast a method decodes at a depth: given tokens are prefilled, the last of them are taken as decode steps and
// timed. Unlike `bench`, the tokens are those of a text, so that what a method selects, and with it what a step costs,
// is what the text asks for.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "base/result.h"
#include "kv/stats.h"
#include "model/executor.h"
#include "runtime/report.h"

namespace infinigen {

struct DecodeSpeed {
  int64_t depth = 0;  // tokens before the first step
  Timing timing;
  PoolUse pool;
  KvStats stats;
  bool complete = false;  // false: Ctrl-C

  // By the median step, which a busy machine moves least.
  double step_ms() const { return Percentile(timing.step_ms, 50); }
  double tokens_per_s() const { return 1e3 / step_ms(); }
};

// The last `steps` of `tokens` are the steps. Precondition: 0 < steps < tokens; nothing else runs on the executor.
Result<DecodeSpeed> MeasureDecode(Executor& executor, std::span<const int32_t> tokens, int64_t steps,
                                  const std::function<void(int64_t unit, int64_t units)>& on_prefill);

}  // namespace infinigen
