#include "runtime/launch.h"

#include <fmt/format.h>

#include <span>
#include <utility>
#include <vector>

#include "kv/skew.h"
#include "runtime/skew_store.h"

namespace infinigen {
namespace {

SketchSource PlainSource(const ModelConfig& config, int64_t dims) {
  const auto plain = [heads = config.kv_heads, d = config.head_dim, dims](std::span<const double> sums) {
    return sums.empty() ? PlainBasis(heads, d, dims) : PlainBasis(heads, d, dims, LargestColumns(sums, heads, dims));
  };
  SketchSource source;
  source.bases.assign(static_cast<size_t>(config.layers), plain({}));
  source.choose = [plain](LayerId, std::span<const double> sums) { return plain(sums); };
  source.rotation = [heads = config.kv_heads, d = config.head_dim](LayerId) {
    std::vector<float> identity(static_cast<size_t>(heads * d * d));
    for (int64_t head = 0; head < heads; ++head)
      for (int64_t i = 0; i < d; ++i) identity[static_cast<size_t>((head * d + i) * d + i)] = 1;
    return identity;
  };
  return source;
}

// The bases of the sketches. Random weights have no structure that a skew could find, and calibrating a large shape
// takes longer than most benchmarks, so they get plain dimensions unless the user names a file.
Result<SketchSource> SourceFor(const Model& model, const RunPlan& plan, const Callbacks& callbacks) {
  const ModelConfig& config = model.config;
  const ExecutorOptions& options = plan.options;
  const KvMethod& method = options.method;
  const DeviceChoice device{options.device, options.threads, options.device_memory_bytes, options.weights_on_device};
  if (!method.select->uses_basis) {
    // A file that was named must be right even where the context is so short that nothing is selected.
    if (plan.wants_skew && !plan.skew_file.empty())
      RETURN_IF_ERROR(FindOrMakeSkew(model, plan.skew_file, device, callbacks));
    return SketchSource();
  }
  const int64_t dims = method.sketch_dims;
  if (method.projection == ProjectionKind::kNone || (model.is_random() && plan.skew_file.empty()))
    return PlainSource(config, dims);
  ASSIGN_OR_RETURN(Skew found, FindOrMakeSkew(model, plan.skew_file, device, callbacks));
  const int64_t positions = found.origin().positions;
  if (config.rotates() && options.max_tokens > positions)
    callbacks.Warn(
        fmt::format("the skew was calibrated for {} positions, this run may have {}; `infinigen calibrate -m {} -c {}` "
                    "makes one for it",
                    positions, options.max_tokens, model.directory, options.max_tokens));
  SketchSource source;
  for (LayerId layer : IdRange<LayerId>(config.layers))
    source.bases.push_back(found.Basis(layer, method.projection, dims));
  if (!method.prompt_columns) return source;
  // Copies of the skew: each function may outlive everything here.
  source.rotation = [skew = found](LayerId layer) { return skew.Rotation(layer); };
  source.choose = [skew = std::move(found), kind = method.projection, dims](LayerId layer,
                                                                            std::span<const double> sums) {
    return skew.Basis(layer, kind, dims, LargestColumns(sums, skew.shape().kv_heads, dims));
  };
  return source;
}

}  // namespace

Result<std::unique_ptr<Executor>> Launch(const Model& model, const RunPlan& plan, const Callbacks& callbacks) {
  if (!plan.refusal.empty()) return Exhausted("{}", plan.refusal);
  for (const std::string& warning : plan.warnings) callbacks.Warn(warning);
  ASSIGN_OR_RETURN(SketchSource sketches, SourceFor(model, plan, callbacks));
  return MakeExecutor(model.config, model.weights, plan.options, std::move(sketches));
}

}  // namespace infinigen
