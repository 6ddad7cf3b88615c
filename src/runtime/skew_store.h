// Where a model's skew comes from: a file that the user names, the model's directory, the user's cache, or a
// calibration made now and saved for the next run. The order and the reasons: docs/skew.md.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "kv/skew.h"
#include "model/calibrate.h"
#include "runtime/callbacks.h"
#include "runtime/model.h"
#include "runtime/plan.h"

namespace infinigen {

inline constexpr const char* kSkewFileName = "infinigen.skew";

// `file`: the user's, or empty. Nothing is looked up or saved for random weights. A calibration takes memory for an
// executor until it returns, so call this before the run's own executor is made.
Result<Skew> FindOrMakeSkew(const Model& model, const std::string& file, const DeviceChoice& device,
                            const Callbacks& callbacks);

// ---- the parts, which `infinigen calibrate` uses too ----

SkewShape ShapeOf(const ModelConfig& config);

// Tokens of a text that the user gives; refused where the model has no tokenizer. Without one: of the built-in text,
// or of random ids where the model has no tokenizer.
struct NamedText {
  std::string name;
  std::string bytes;
};
Result<CalibrationText> MakeCalibrationText(const Model& model, const std::optional<NamedText>& given);

// Runs on an executor of its own. `positions`: for contexts of up to so many tokens, or 0 for what the model was made
// for. Cancelled: an error.
Result<Skew> CalibrateModel(const Model& model, const CalibrationText& text, const DeviceChoice& device,
                            int64_t positions, const Callbacks& callbacks);

// $XDG_CACHE_HOME/infinigen/<identity>.skew; empty when neither it nor HOME is set to an absolute path.
std::string CachedSkewPath(const ModelIdentity& model);

// Beside the model; where that is not possible, in the cache. Returns the path, or an error that names both.
Result<std::string> SaveSkew(const Skew& skew, const std::string& directory);

}  // namespace infinigen
