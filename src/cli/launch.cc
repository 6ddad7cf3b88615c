#include "cli/launch.h"

#include <vector>

#include "cli/skew_source.h"
#include "kv/skew.h"

namespace infinigen {
namespace {

// Random weights have no structure that a skew could find, and calibrating a large shape takes longer than most
// benchmarks.
bool IsRandom(const Model& model) { return model.weights.storage->checkpoint == nullptr; }

Result<std::vector<SketchMatrices>> Bases(const Model& model, const KvChoice& kv, const ExecutorOptions& options) {
  const ModelConfig& config = model.config;
  const KvMethod& method = options.method;
  std::vector<SketchMatrices> bases;
  if (method.select != SelectKind::kSketch) return bases;
  if (kv.projection == ProjectionKind::kNone || (IsRandom(model) && kv.skew_file.empty())) {
    bases.assign(static_cast<size_t>(config.layers), PlainBasis(config.kv_heads, config.head_dim, method.sketch_dims));
    return bases;
  }
  ASSIGN_OR_RETURN(const Skew skew,
                   FindOrMakeSkew(model, model.directory, kv.skew_file, {options.device, options.threads}));
  for (LayerId layer : IdRange<LayerId>(config.layers))
    bases.push_back(skew.Basis(layer, kv.projection, method.sketch_dims));
  return bases;
}

}  // namespace

Result<ExecutorOptions> OptionsFor(const Model& model, const DeviceChoice& device, const KvChoice& kv,
                                   int64_t max_tokens, int64_t max_batch) {
  ExecutorOptions options{.device = device.device,
                          .threads = device.threads,
                          .max_tokens = max_tokens,
                          .max_batch = max_batch,
                          .kv_type = kv.type.value_or(model.dtype)};
  ASSIGN_OR_RETURN(options.method, FitMethod(kv, model.config, max_tokens));
  return options;
}

Result<std::unique_ptr<Executor>> Launch(const Model& model, const KvChoice& kv, const ExecutorOptions& options) {
  ASSIGN_OR_RETURN(const std::vector<SketchMatrices> bases, Bases(model, kv, options));
  return MakeExecutor(model.config, model.weights, options, bases);
}

}  // namespace infinigen
