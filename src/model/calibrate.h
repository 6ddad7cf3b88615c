// Calibration: one prefill over a text, from which the skew of every layer is fitted. Prefill is layer-major, so the
// statistics of one layer are complete before the next begins, and only one layer's are held. Called from the
// executor's thread.
//
// RoPE turns queries and keys by their positions, so a basis fitted to positions 0 … 2,047 fails at 8,000: the planes
// that turn slowly have then only been seen from one side. A text as long as the context would do, at its price.
// Instead every row is turned on to positions spread over the whole context, as if it had stood there; measured
// (docs/skew.md), that is worth as much.
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

struct CalibrationOptions {
  ModelIdentity model;    // stored in the skew
  int64_t positions = 0;  // for sequences of up to so many tokens; 0: what the model was made for
  int threads = 1;
  CalibrationProgress progress;
};

// Reads the first kCalibrationTokens tokens, or as many as the executor's context has. Precondition: the executor has a
// free sequence and attends to everything.
Result<Skew> Calibrate(Executor& executor, const CalibrationText& text, const CalibrationOptions& options);

// For a model without a tokenizer: pseudo-random ids, the same on every machine.
CalibrationText RandomCalibrationText(int64_t vocab, int64_t tokens);

// Turns queries or keys from where they stand to other positions: row r of `rows` [count][heads · head_dim] by
// offsets[r] positions. `frequencies`: RopeInverseFrequencies.
void TurnRows(std::span<const float> frequencies, std::span<const double> offsets, std::span<float> rows);

}  // namespace infinigen
