// From a plan to a running executor: finds or computes the skew that a sketch method needs, reports the plan's
// warnings, and allocates.
//
// A model's skew comes from a file that the user names, from the model's directory, from the user's cache, or from a
// calibration that runs now and is saved for the next run. docs/skew.md explains the order.
//
// Clients of runtime also get Executor from this header, and Sequence, which runs an executor without an engine.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "kv/skew.h"
#include "model/calibrate.h"
#include "model/executor.h"
#include "model/sequence.h"
#include "runtime/callbacks.h"
#include "runtime/model.h"
#include "runtime/plan.h"

namespace infinigen {

// Returns the plan's refusal as an error if it has one. The model outlives the executor.
Result<std::unique_ptr<Executor>> Launch(const Model& model, const RunPlan& plan, const Callbacks& callbacks);

// ---- skews; `infinigen calibrate` uses these too ----

inline constexpr const char* kSkewFileName = "infinigen.skew";

// `file` is the path that the user names, or empty. Skews of random weights are neither looked up nor saved. A
// calibration allocates an executor until this returns, so call it before the run's own executor exists.
Result<Skew> FindOrMakeSkew(const Model& model, const std::string& file, const DeviceChoice& device,
                            const Callbacks& callbacks);

SkewShape ShapeOf(const ModelConfig& config);

struct NamedText {
  std::string name;
  std::string bytes;
};
// The first `tokens` tokens of `given`; an error if the model has no tokenizer. Without `given`: tokens of the built-in
// text, or random ids if the model has no tokenizer.
Result<CalibrationText> MakeCalibrationText(const Model& model, const std::optional<NamedText>& given,
                                            int64_t tokens = kCalibrationTokens);

// Allocates its own executor. The skew is made for contexts of up to `positions` tokens; 0: the model's context.
// Cancelling is an error.
Result<Skew> CalibrateModel(const Model& model, const CalibrationText& text, const DeviceChoice& device,
                            int64_t positions, const Callbacks& callbacks);

// <identity>.skew in OwnCacheDirectory() (hub/cache.h); empty if there is no such directory.
std::string CachedSkewPath(const ModelIdentity& model);
// The directory `full` there, where evaluations keep the predictions of --kv full; empty as above.
std::string CachedFullDirectory();

// Saves in the model's directory or beside its GGUF file, or if that fails, or the model is in a cache of downloads, in
// the user's cache. Returns the path, or an error that names both. `path` is the model's.
Result<std::string> SaveSkew(const Skew& skew, const std::string& path);

}  // namespace infinigen
