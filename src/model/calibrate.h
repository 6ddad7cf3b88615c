// Calibration: one prefill over a text, from which the skew of every layer is fitted. Prefill is layer-major, so the
// statistics of one layer are complete before the next begins, and only one layer's are held. Called from the
// executor's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "kv/skew.h"
#include "model/executor.h"

namespace infinigen {

inline constexpr int64_t kCalibrationTokens = 2048;
// Below this there is hardly a covariance: sinks, and a few keys.
inline constexpr int64_t kLeastCalibrationTokens = 16;

struct CalibrationText {
  std::string name;
  std::vector<int32_t> tokens;
};

// Called after every unit of the prefill; false gives up.
using CalibrationProgress = std::function<bool(int64_t done, int64_t units)>;

// Reads the first kCalibrationTokens tokens, or as many as the executor's context has. `model` is stored in the skew.
// Precondition: the executor has a free sequence and attends to everything.
Result<Skew> Calibrate(Executor& executor, const ModelIdentity& model, const CalibrationText& text, int threads,
                       const CalibrationProgress& progress = {});

// For a model without a tokenizer: pseudo-random ids, the same on every machine.
CalibrationText RandomCalibrationText(int64_t vocab, int64_t tokens);

}  // namespace infinigen
