// Where a model's skew comes from: a file that the user names, the model's directory, the user's cache, or a
// calibration made now and saved for the next run. The order and the reasons: docs/skew.md.
#pragma once

#include <string>

#include "base/result.h"
#include "cli/options.h"
#include "cli/session.h"
#include "kv/skew.h"
#include "model/calibrate.h"

namespace infinigen {

inline constexpr const char* kSkewFileName = "infinigen.skew";

// `directory` of the model; empty for random weights, of which nothing is looked up or saved. `file`: --kv-skew, or
// empty. Says on stderr when it calibrates, which takes memory for an executor until it returns: to be called before
// the run's own is made.
Result<Skew> FindOrMakeSkew(const Model& model, const std::string& directory, const std::string& file,
                            const DeviceChoice& device);

// ---- the parts, which `infinigen calibrate` uses too ----

SkewShape ShapeOf(const ModelConfig& config);

// Tokens of `file`, or of the built-in text when it is empty; of random ids when the model has no tokenizer.
Result<CalibrationText> ReadCalibrationText(const Model& model, const std::string& file);

// On an executor of its own, with progress where a person watches. Ctrl-C ends it with an error.
// `positions`: for contexts of up to so many tokens, or 0 for what the model was made for.
Result<Skew> CalibrateModel(const Model& model, const CalibrationText& text, const DeviceChoice& device,
                            int64_t positions);

// $XDG_CACHE_HOME/infinigen/<identity>.skew; empty when neither it nor HOME is set to an absolute path.
std::string CachedSkewPath(const ModelIdentity& model);

// Beside the model; where that is not possible, in the cache. Returns the path, or an error that names both.
Result<std::string> SaveSkew(const Skew& skew, const std::string& directory);

}  // namespace infinigen
