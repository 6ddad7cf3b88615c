#include "runtime/skew_store.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <utility>

#include "kv/skew.h"
#include "model/calibrate.h"
#include "text/calibration_text.h"

namespace infinigen {
namespace {

// 2,048 tokens of any text end within it; more need not be turned into tokens.
constexpr size_t kTextBytes = size_t{64} << 10;

// Also true for what cannot be looked at: it is then refused by name, not passed over.
bool Exists(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 || (errno != ENOENT && errno != ENOTDIR);
}

std::string BesideModel(const std::string& directory) {
  return (std::filesystem::path(directory) / kSkewFileName).string();
}

Error WithAdvice(Error error, const std::string& advice) {
  error.message += "; " + advice;
  return error;
}

// The skew of one of the files that may hold it; nullopt when there is none.
Result<std::optional<Skew>> LookUp(const ModelConfig& config, const ModelIdentity& identity,
                                   const std::string& directory, const Callbacks& callbacks) {
  if (directory.empty()) return std::optional<Skew>();
  const std::string beside = BesideModel(directory);
  if (Exists(beside)) {
    Result<Skew> skew = ReadSkew(beside, identity, ShapeOf(config));
    if (!skew.ok())
      return WithAdvice(skew.error(),
                        fmt::format("delete it, or make it anew with: infinigen calibrate -m {}", directory));
    return std::optional<Skew>(std::move(skew).value());
  }
  const std::string cached = CachedSkewPath(identity);
  if (cached.empty() || !Exists(cached)) return std::optional<Skew>();
  Result<Skew> skew = ReadSkew(cached, identity, ShapeOf(config));
  if (skew.ok()) return std::optional<Skew>(std::move(skew).value());
  callbacks.Warn(fmt::format("{}; it is made anew", skew.error().message));
  return std::optional<Skew>();
}

}  // namespace

SkewShape ShapeOf(const ModelConfig& config) {
  return {.layers = config.layers, .kv_heads = config.kv_heads, .head_dim = config.head_dim};
}

std::string CachedSkewPath(const ModelIdentity& model) {
  using Path = std::filesystem::path;
  const auto environment = [](const char* name) {
    const char* value = std::getenv(name);
    return Path(value == nullptr ? "" : value);
  };
  Path cache = environment("XDG_CACHE_HOME");
  // A relative XDG_CACHE_HOME is to be ignored, says its specification.
  if (!cache.is_absolute()) {
    cache = environment("HOME");
    if (!cache.is_absolute()) return {};
    cache /= ".cache";
  }
  return (cache / "infinigen" / (model.Hex() + ".skew")).string();
}

Result<CalibrationText> MakeCalibrationText(const Model& model, const std::optional<NamedText>& given) {
  if (model.tokenizer == nullptr) {
    if (given)
      return Invalid("{}: {} has no tokenizer that could turn text into tokens; calibrate it without a text",
                     given->name, model.config.name);
    return RandomCalibrationText(model.config.vocab, kCalibrationTokens);
  }
  CalibrationText text{.name = given ? given->name : std::string(kCalibrationTextName)};
  std::string bytes = given ? given->bytes : std::string(BuiltInCalibrationText());
  bytes.resize(std::min(bytes.size(), kTextBytes));
  ASSIGN_OR_RETURN(text.tokens, model.tokenizer->Encode(bytes, {.parse_special = false}));
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

Result<std::string> SaveSkew(const Skew& skew, const std::string& directory) {
  const std::string beside = BesideModel(directory);
  const Status written = WriteSkew(skew, beside);
  if (written.ok()) return beside;
  // What lies beside the model is looked at first: a second one in the cache would never be found.
  if (std::filesystem::exists(beside))
    return IoError("{}; it is in the way of any other: remove it, or write elsewhere (-o FILE) and pass --kv-skew FILE",
                   written.error().message);
  const std::string cached = CachedSkewPath(skew.origin().model);
  if (cached.empty()) return written.error();
  std::error_code ignored;  // then the write fails, and says why
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
    return WithAdvice(skew.error(), fmt::format("make one with: infinigen calibrate -m {} -o FILE", model.directory));
  }
  ASSIGN_OR_RETURN(std::optional<Skew> found, LookUp(model.config, identity, model.directory, callbacks));
  if (found) return std::move(*found);

  ASSIGN_OR_RETURN(const CalibrationText text, MakeCalibrationText(model, std::nullopt));
  callbacks.Notice(fmt::format("calibrating {} on {}{}{}", model.config.name, model.tokenizer == nullptr ? "" : "the ",
                               text.name, model.is_random() ? "" : " (once per model)"));
  ASSIGN_OR_RETURN(Skew skew, CalibrateModel(model, text, device, /*positions=*/0, callbacks));
  if (model.is_random()) return skew;
  const Result<std::string> saved = SaveSkew(skew, model.directory);
  if (!saved.ok()) callbacks.Warn(fmt::format("{}; the calibration is kept for this run only", saved.error().message));
  return skew;
}

}  // namespace infinigen
