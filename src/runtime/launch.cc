#include "runtime/launch.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/machine.h"
#include "hub/cache.h"
#include "kv/skew.h"
#include "loader/gguf_source.h"
#include "model/broken_numbers.h"
#include "model/calibrate.h"
#include "text/calibration_text.h"

namespace infinigen {
namespace {

// Enough for the calibration tokens of nearly any text; the rest is not encoded.
constexpr size_t kBytesPerToken = 8;

// Also true if the path cannot be examined: reading it then fails with its name, instead of the file being ignored.
bool Exists(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 || (errno != ENOENT && errno != ENOTDIR);
}

// A directory has one skew file; a GGUF file has one of its own name, because a directory may hold several.
std::string BesideModel(const std::string& path) {
  if (!LooksLikeGguf(path)) return (std::filesystem::path(path) / kSkewFileName).string();
  const GgufPartName part = ParseGgufPartName(path);
  if (part.parts != 0) return part.stem + ".skew";
  return HasGgufSuffix(path) ? std::filesystem::path(path).replace_extension(".skew").string() : path + ".skew";
}

Error WithAdvice(Error error, const std::string& advice) {
  error.message += "; " + advice;
  return error;
}

// Reads the skew from the model's directory or the cache; nullopt if neither has one.
Result<std::optional<Skew>> LookUp(const ModelConfig& config, const ModelIdentity& identity, const std::string& path,
                                   const Callbacks& callbacks) {
  if (path.empty()) return std::optional<Skew>();
  const std::string beside = BesideModel(path);
  const bool outdated = IsOutdatedSkew(beside);
  if (Exists(beside) && !outdated) {
    Result<Skew> skew = ReadSkew(beside, identity, ShapeOf(config));
    if (!skew.ok())
      return WithAdvice(skew.error(), fmt::format("delete it, or replace it with: infinigen calibrate -m {}", path));
    return std::optional<Skew>(std::move(skew).value());
  }
  const std::string cached = CachedSkewPath(identity);
  if (cached.empty() || !Exists(cached)) {
    if (outdated) callbacks.Warn(fmt::format("{}: an outdated skew file; calibrating again", beside));
    return std::optional<Skew>();
  }
  Result<Skew> skew = ReadSkew(cached, identity, ShapeOf(config));
  if (skew.ok()) return std::optional<Skew>(std::move(skew).value());
  callbacks.Warn(fmt::format("{}; calibrating again", skew.error().message));
  return std::optional<Skew>();
}

SketchSource PlainSource(const ModelConfig& config, int64_t dims, int64_t value_dims) {
  const auto plain = [heads = config.kv_heads, d = config.head_dim, dims](std::span<const double> sums) {
    return sums.empty() ? PlainBasis(heads, d, dims) : PlainBasis(heads, d, dims, LargestColumns(sums, heads, dims));
  };
  SketchSource source;
  source.bases.assign(static_cast<size_t>(config.layers), plain({}));
  if (value_dims > 0)
    source.tails.assign(static_cast<size_t>(config.layers), PlainTail(config.kv_heads, config.head_dim, value_dims));
  source.choose = [plain](LayerId, std::span<const double> sums) { return plain(sums); };
  source.rotation = [heads = config.kv_heads, d = config.head_dim](LayerId) {
    std::vector<float> identity(static_cast<size_t>(heads * d * d));
    for (int64_t head = 0; head < heads; ++head)
      for (int64_t i = 0; i < d; ++i) identity[static_cast<size_t>((head * d + i) * d + i)] = 1;
    return identity;
  };
  return source;
}

// The bases of the sketches. Random weights get plain dimensions unless the user names a file: they have no structure
// that a skew could use, and calibrating a large shape takes longer than most benchmarks.
Result<SketchSource> SourceFor(const Model& model, const RunPlan& plan, const Callbacks& callbacks) {
  const ModelConfig& config = model.config;
  const ExecutorOptions& options = plan.options;
  const KvMethod& method = options.method;
  const DeviceChoice device{options.device, options.threads, options.device_memory_bytes, options.weights_on_device,
                            plan.reads_weights};
  if (!method.select->uses_basis) {
    // A named file must be valid even if the context is so short that nothing is selected.
    if (plan.wants_skew && !plan.skew_file.empty())
      RETURN_IF_ERROR(FindOrMakeSkew(model, plan.skew_file, device, callbacks));
    return SketchSource();
  }
  const int64_t dims = method.sketch.dims, value_dims = method.sketch.value_dims;
  if (method.projection == ProjectionKind::kNone || (model.is_random() && plan.skew_file.empty()))
    return PlainSource(config, dims, value_dims);
  ASSIGN_OR_RETURN(Skew found, FindOrMakeSkew(model, plan.skew_file, device, callbacks));
  const int64_t positions = found.origin().positions;
  if (config.rotates() && options.max_tokens > positions)
    callbacks.Warn(
        fmt::format("the skew was calibrated for {} positions, but this run may use {}; for better selections run "
                    "`infinigen calibrate -m {} -c {}`",
                    positions, options.max_tokens, model.path, options.max_tokens));
  SketchSource source;
  for (LayerId layer : IdRange<LayerId>(config.layers)) {
    source.bases.push_back(found.Basis(layer, method.projection, dims));
    if (value_dims > 0) source.tails.push_back(found.Tail(layer, value_dims));
  }
  if (!method.prompt_columns) return source;
  // The functions hold copies of the skew because they outlive this call.
  source.rotation = [skew = found](LayerId layer) { return skew.Rotation(layer); };
  source.choose = [skew = std::move(found), kind = method.projection, dims](LayerId layer,
                                                                            std::span<const double> sums) {
    return skew.Basis(layer, kind, dims, LargestColumns(sums, skew.shape().kv_heads, dims));
  };
  return source;
}

// Before the first executor of a model uses its weights: reads them into memory, if the plan says so.
void PlaceWeights(const Model& model, const RunPlan& plan) {
  WeightStorage& storage = *model.weights.storage;
  std::call_once(storage.placed, [&] {
    if (!plan.reads_weights || storage.source == nullptr) return;
    ThreadPool threads(plan.options.threads);
    storage.source->ReadIntoMemory(threads);
  });
}

// Names a broken number before the model can answer with text. Costs one read of the weights, which the first prompt
// would read too; skipped where they do not fit into memory, so that they would be read from the disk twice. Then the
// engine finds the break at the first logits.
Status CheckNumbers(const Model& model, const RunPlan& plan) {
  const TensorSource* const source = model.weights.storage->source.get();
  if (source == nullptr) return Ok();
  const std::optional<uint64_t> available = AvailableHostMemory();
  if (!plan.reads_weights && available && static_cast<uint64_t>(model.weights.TotalBytes()) > *available) return Ok();
  return CheckFinite(*source, plan.options.threads);
}

}  // namespace

SkewShape ShapeOf(const ModelConfig& config) {
  return {.layers = config.layers, .kv_heads = config.kv_heads, .head_dim = config.head_dim};
}

std::string CachedSkewPath(const ModelIdentity& model) {
  const std::string cache = OwnCacheDirectory();
  return cache.empty() ? "" : fmt::format("{}/{}.skew", cache, model.Hex());
}

std::string CachedFullDirectory() {
  const std::string cache = OwnCacheDirectory();
  return cache.empty() ? "" : cache + "/full";
}

Result<CalibrationText> MakeCalibrationText(const Model& model, const std::optional<NamedText>& given, int64_t tokens) {
  if (model.tokenizer == nullptr) {
    if (given)
      return Invalid("{}: {} has no tokenizer, so it cannot be calibrated on a text; leave -f out", given->name,
                     model.config.name);
    return RandomCalibrationText(model.config.vocab, tokens);
  }
  CalibrationText text{.name = given ? given->name : std::string(kCalibrationTextName)};
  std::string bytes = given ? given->bytes : std::string(BuiltInCalibrationText());
  bytes.resize(std::min(bytes.size(), static_cast<size_t>(tokens) * kBytesPerToken));
  ASSIGN_OR_RETURN(text.tokens, model.tokenizer->Encode(bytes, {.parse_special = false}));
  text.tokens.resize(std::min(text.tokens.size(), static_cast<size_t>(tokens)));
  RETURN_IF_ERROR(CheckIds(model.config, text.tokens));
  return text;
}

Result<Skew> CalibrateModel(const Model& model, const CalibrationText& text, const DeviceChoice& device,
                            int64_t positions, const Callbacks& callbacks) {
  const int64_t tokens = std::max<int64_t>(static_cast<int64_t>(text.tokens.size()), 1);
  RunRequest request{
      .device = device, .max_tokens = std::min({tokens, kCalibrationTokens, model.config.max_positions}), .batch = 1};
  request.kv.preset = FindPreset("full");
  ASSIGN_OR_RETURN(const RunPlan plan, PlanRun(model, request));
  if (!plan.refusal.empty()) return Exhausted("calibration: {}", plan.refusal);
  PlaceWeights(model, plan);
  RETURN_IF_ERROR(CheckNumbers(model, plan));
  ASSIGN_OR_RETURN(const std::unique_ptr<Executor> executor, MakeExecutor(model.config, model.weights, plan.options));
  const auto show = [&](int64_t done, int64_t units) {
    callbacks.Progress({.kind = WorkKind::kCalibration, .done = done, .total = units, .tokens = tokens});
    return !callbacks.Cancelled();
  };
  return Calibrate(*executor, text,
                   {.model = IdentifyModel(model.config, model.weights),
                    .positions = positions,
                    .threads = device.threads,
                    .progress = show});
}

Result<std::string> SaveSkew(const Skew& skew, const std::string& path) {
  const std::string beside = BesideModel(path);
  // A snapshot holds what its commit has, and may belong to another program.
  const Status written =
      IsInSnapshot(path) ? IoError("{}: not written into a cache of downloads", beside) : WriteSkew(skew, beside);
  if (written.ok()) return beside;
  // A file in the model's directory hides the one in the cache, so saving to the cache would have no effect.
  if (std::filesystem::exists(beside) && !IsOutdatedSkew(beside))
    return IoError("{}; remove the old file, or write a new one with -o FILE and pass --kv-skew FILE",
                   written.error().message);
  const std::string cached = CachedSkewPath(skew.origin().model);
  if (cached.empty()) return written.error();
  std::error_code ignored;  // the write below reports a failure
  std::filesystem::create_directories(std::filesystem::path(cached).parent_path(), ignored);
  const Status second = WriteSkew(skew, cached);
  if (second.ok()) return cached;
  return IoError("{}; {}", written.error().message, second.error().message);
}

Result<Skew> FindOrMakeSkew(const Model& model, const std::string& file, const DeviceChoice& device,
                            const Callbacks& callbacks) {
  const ModelIdentity identity = IdentifyModel(model.config, model.weights);
  if (!file.empty()) {
    Result<Skew> skew = ReadSkew(file, identity, ShapeOf(model.config));
    if (skew.ok()) return skew;
    return WithAdvice(skew.error(), fmt::format("create one with: infinigen calibrate -m {} -o FILE", model.path));
  }
  ASSIGN_OR_RETURN(std::optional<Skew> found, LookUp(model.config, identity, model.path, callbacks));
  if (found) return std::move(*found);

  ASSIGN_OR_RETURN(const CalibrationText text, MakeCalibrationText(model, std::nullopt));
  callbacks.Notice(fmt::format("calibrating {} on {}{}{}", model.config.name, model.tokenizer == nullptr ? "" : "the ",
                               text.name, model.is_random() ? "" : " (once per model)"));
  ASSIGN_OR_RETURN(Skew skew, CalibrateModel(model, text, device, /*positions=*/0, callbacks));
  if (model.is_random()) return skew;
  const Result<std::string> saved = SaveSkew(skew, model.path);
  if (!saved.ok()) callbacks.Warn(fmt::format("{}; the calibration is used for this run only", saved.error().message));
  return skew;
}

Result<std::unique_ptr<Executor>> Launch(const Model& model, const RunPlan& plan, const Callbacks& callbacks) {
  if (!plan.refusal.empty()) return Exhausted("{}", plan.refusal);
  for (const std::string& warning : plan.warnings) callbacks.Warn(warning);
  PlaceWeights(model, plan);
  RETURN_IF_ERROR(CheckNumbers(model, plan));
  ASSIGN_OR_RETURN(SketchSource sketches, SourceFor(model, plan, callbacks));
  return MakeExecutor(model.config, model.weights, plan.options, std::move(sketches));
}

}  // namespace infinigen
