// Calibration: fits the skew of every layer to the queries, keys and values of prefills over a text. A text longer than
// the executor's context is cut into sequences of that length. Prefill is layer-major, so in the last sequence the
// statistics of one layer are complete before the next begins, and a short text has only one layer's in memory. Called
// from the executor's thread.
//
// RoPE rotates queries and keys by their positions, so a basis fitted to positions 0 … 2,047 fails at 8,000: planes
// that rotate slowly have covered only a part of a turn. A text as long as the context would solve this but take long.
// Instead every row is rotated to positions spread over the whole context, as if the token were there; measurements
// show the same quality (docs/skew.md).
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "kv/skew.h"
#include "model/config.h"
#include "model/executor.h"
#include "model/weights.h"

namespace infinigen {

inline constexpr int64_t kCalibrationTokens = 8192;  // of a text, unless the user asks for more; and of a sequence
// Fewer tokens leave too few keys beside the sinks for a covariance.
inline constexpr int64_t kLeastCalibrationTokens = 16;

struct CalibrationText {
  std::string name;
  std::vector<int32_t> tokens;
};

// Called after every prefill unit; returning false aborts.
using CalibrationProgress = std::function<bool(int64_t done, int64_t units)>;

struct CalibrationOptions {
  ModelIdentity model;    // stored in the skew
  int64_t positions = 0;  // the longest sequence to calibrate for, in tokens; 0: the model's max_positions
  int threads = 1;
  CalibrationProgress progress;
};

// Uses all tokens of the text. Precondition: the executor has a free slot, attends to everything, and owns all heads.
Result<Skew> Calibrate(Executor& executor, const CalibrationText& text, const CalibrationOptions& options);

// Pseudo-random ids for a model without a tokenizer; the same on every machine.
CalibrationText RandomCalibrationText(int64_t vocab, int64_t tokens);

// Rotates queries or keys to other positions: row r of `rows` [count][heads · head_dim] by offsets[r] positions. Rows
// that are rotated already keep their magnitude. `frequencies`: from RopeInverseFrequencies.
void TurnRows(std::span<const float> frequencies, const RopeConfig& rope, int64_t head_dim,
              std::span<const double> offsets, std::span<float> rows);

// The identity of a model ties a skew to the model that it was calibrated on: a hash that changes when queries, keys or
// values change, cheap for a model of any size (docs/skew.md). It covers the fields of the configuration that change
// the computation; and of the embedding, every query, key and value projection, and their norms and biases: shape,
// type, and at most 64 KiB of evenly spaced rows. Name, directory and the division of weights into files do not matter.
ModelIdentity IdentifyModel(const ModelConfig& config, const Weights& weights);

}  // namespace infinigen
