#include "cli/launch.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>
#include <vector>

#include "cli/console.h"
#include "cli/report.h"
#include "cli/skew_source.h"
#include "kv/skew.h"

namespace infinigen {
namespace {

// Random weights have no structure that a skew could find, and calibrating a large shape takes longer than most
// benchmarks.
bool IsRandom(const Model& model) { return model.weights.storage->source == nullptr; }

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

Result<SketchSource> SourceFor(const Model& model, const KvChoice& kv, const ExecutorOptions& options) {
  const ModelConfig& config = model.config;
  const int64_t dims = options.method.sketch_dims;
  const DeviceChoice device{options.device, options.threads, options.device_memory_bytes, options.weights_on_device};
  if (options.method.select != SelectKind::kSketch) {
    // A file that was named must be right even where the context is so short that nothing is selected.
    if (kv.method.select == SelectKind::kSketch && !kv.skew_file.empty())
      RETURN_IF_ERROR(FindOrMakeSkew(model, model.directory, kv.skew_file, device));
    return SketchSource();
  }
  if (kv.projection == ProjectionKind::kNone || (IsRandom(model) && kv.skew_file.empty()))
    return PlainSource(config, dims);
  ASSIGN_OR_RETURN(Skew found, FindOrMakeSkew(model, model.directory, kv.skew_file, device));
  const int64_t positions = found.origin().positions;
  if (config.rotates() && options.max_tokens > positions)
    Warn(
        fmt::format("the skew was calibrated for {} positions, this run may have {}; `infinigen calibrate -m {} -c {}` "
                    "makes one for it",
                    positions, options.max_tokens, model.directory, options.max_tokens));
  SketchSource source;
  for (LayerId layer : IdRange<LayerId>(config.layers)) source.bases.push_back(found.Basis(layer, kv.projection, dims));
  if (!options.method.prompt_columns) return source;
  // Copies of the skew: each function may outlive everything here.
  source.rotation = [skew = found](LayerId layer) { return skew.Rotation(layer); };
  source.choose = [skew = std::move(found), kind = kv.projection, dims](LayerId layer, std::span<const double> sums) {
    return skew.Basis(layer, kind, dims, LargestColumns(sums, skew.shape().kv_heads, dims));
  };
  return source;
}

}  // namespace

ExecutorOptions DeviceOptions(const Model& model, const DeviceChoice& device) {
  ExecutorOptions options{.device = device.device, .threads = device.threads};
  if (device.device != Device::kCuda) return options;
  options.activation = model.dtype;
  options.device_memory_bytes = device.device_memory_bytes;
  options.weights_on_device = device.weights_on_device;
  return options;
}

Result<ExecutorOptions> OptionsFor(const Model& model, const DeviceChoice& device, const KvChoice& kv,
                                   int64_t max_tokens, const BatchChoice& batch) {
  // By the flag alone, so that what a sequence may keep does not depend on how many others there are.
  const bool shared = kv.method.evicts() && kv.limit_bytes;
  const int64_t most = batch.flag > 0 ? batch.flag : shared ? 1 : kDefaultBatch;
  if (kv.on_device && device.device != Device::kCuda)
    return Unsupported("--kv-home device: needs --device cuda; without a GPU entries live in host memory");
  ExecutorOptions options = DeviceOptions(model, device);
  options.max_tokens = max_tokens;
  options.max_batch = std::min(batch.useful, most);
  options.kv_type = kv.type.value_or(StoreTypeOf(model.dtype));
  options.pool_on_device = kv.on_device;
  KvChoice fitting = kv;
  if (device.device == Device::kCuda && !kv.on_device) {
    // Entries that come over a link are wanted long before they are needed (docs/decisions/0008).
    const bool may_guess = kv.method.may_guess() && kv.dense_layers != 0;
    if (!kv.source_given && may_guess) fitting.method.from = GuessSource::kPrevLayer;
    options.hot_limit_bytes = kv.hot_bytes.value_or(UINT64_MAX);
    options.hot_selections = kv.hot_selections;
  } else if (kv.hot_bytes.value_or(0) > 0 || kv.hot_selections > 0 || kv.method.forced_hits > 0) {
    return Unsupported("a hot set (--kv-hot, --kv-force-hits) is for entries that live on the host of a GPU");
  }
  ASSIGN_OR_RETURN(options.method, FitMethod(fitting, model.config, max_tokens));
  options.method.limit.sequences = most;
  return options;
}

Result<std::unique_ptr<Executor>> Launch(const Model& model, const KvChoice& kv, const ExecutorOptions& options) {
  const KvMethod& method = options.method;
  if (method.forced_hits > 0 && !IsRandom(model))
    Warn("--kv-force-hits: a hit that is forced was never fetched, so answers mean nothing; only times do");
  const bool hot_asked = kv.hot_bytes.value_or(0) > 0 || kv.hot_selections > 0;
  if (hot_asked && method.select != SelectKind::kAll && method.hot_rows == 0)
    Warn("--kv-hot: there is no room for one selection of every sequence, so there is no hot set");
  ASSIGN_OR_RETURN(SketchSource sketches, SourceFor(model, kv, options));
  return MakeExecutor(model.config, model.weights, options, std::move(sketches));
}

Result<int> PrintPlans(const Model& model, std::span<const RunPlan> plans, bool json) {
  CHECK(!plans.empty());
  Output output;
  if (json) {
    nlohmann::ordered_json all = {
        {"model", ModelJson(model)}, {"kv", KvJson(plans[0].options)}, {"plan", PlanJson(plans[0])}};
    for (const RunPlan& plan : plans) all["plans"].push_back({{"kv", KvJson(plan.options)}, {"plan", PlanJson(plan)}});
    output.Write(Dump(all));
  } else {
    for (const RunPlan& plan : plans) output.Write(DescribePlan(model.config, plan));
  }
  for (const RunPlan& plan : plans)
    if (!plan.refusal.empty()) return Exhausted("{}", plan.refusal);
  RETURN_IF_ERROR(output.status());
  return kExitOk;
}

}  // namespace infinigen
