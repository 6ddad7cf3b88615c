// KvRequest: what a user asks of the KV cache, and how that becomes a method.
//
// A request names a preset and the values that replace the preset's own; everything left out follows from the preset,
// the model and the device. It is resolved exactly once, when those are known: ResolveMethod makes the KvMethod that
// the run uses unchanged from then on. What a request contradicts by itself is refused earlier, by CheckKvRequest,
// before a model is opened.
//
// Options as text ("kv-cap", "5%") are in runtime/kv_options.h.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "kv/method.h"
#include "kv/skew.h"
#include "kv/view.h"
#include "model/config.h"

namespace infinigen {

// Defaults that hold for every model; the measurements behind them: docs/decisions/0004-selection-defaults.md.
inline constexpr float kDefaultAlpha = 5.0f;
inline constexpr double kDefaultCap = 0.2;
inline constexpr double kDefaultRatio = 0.3;
inline constexpr int32_t kDefaultSinks = 4;
inline constexpr int32_t kDefaultWindow = 576;
inline constexpr int32_t kDefaultMinRows = 256;
inline constexpr double kDefaultLimit = 0.2;  // of presets that make no sense without a limit
inline constexpr int32_t kQuestMinRows = 48;  // three pages, as in its authors' evaluation

// A point in retain × select × store, with the numbers that go with it.
struct KvPreset {
  std::string_view name;
  std::string_view summary;  // for help
  const SelectMethod* select = &kSelectAll;
  const RetainPolicy* evict = nullptr;  // null: everything is retained
  std::optional<StoreType> type;        // nullopt: that of the model's matrices
  float alpha = kDefaultAlpha;
  int32_t sinks = kDefaultSinks, window = kDefaultWindow, min_rows = kDefaultMinRows;
  int64_t dense_layers = 0;  // at least; a guess needs two
};
std::span<const KvPreset> KvPresets();
// Null where no preset has the name.
const KvPreset* FindPreset(std::string_view name);

enum class KvHome : uint8_t { kHost, kDevice, kDisk };

struct KvRequest {
  const KvPreset* preset = FindPreset("infinigen");
  bool one_of_several = false;  // options that mean nothing to this preset are meant for the others

  const SelectMethod* select = nullptr;      // null: the preset's
  std::optional<const RetainPolicy*> evict;  // null inside: retain everything
  std::optional<StoreType> type;
  // At most one of the two: a share of each sequence's final length, or bytes for all entries.
  std::optional<double> limit_share;
  std::optional<uint64_t> limit_bytes;
  KvHome home = KvHome::kHost;
  std::string disk_path;  // of kDisk

  std::optional<float> alpha;
  double cap = kDefaultCap;
  std::optional<int32_t> sinks, window, min_rows;
  std::optional<int64_t> dense_layers;
  std::optional<GuessSource> from;  // nullopt: by the device
  bool mean_counts = false;

  double ratio = kDefaultRatio;
  SketchType sketch_type = SketchType::kInt8;
  std::optional<ProjectionKind> projection;  // nullopt: the pair, or the rotation where prompts choose columns
  bool prompt_columns = false;
  std::string skew_file;  // empty: where skews are kept

  std::optional<uint64_t> hot_bytes;  // of a GPU's hot set; nullopt: what is left
  double hot_selections = 0;          // at most room for so many selections; 0: no such limit
  int32_t force_count = 0;            // for benchmarks
  std::optional<double> force_hits;   // likewise
  bool measure_mass = false;

  const SelectMethod& selection() const { return select != nullptr ? *select : *preset->select; }
  // Which entries leave a full cache; null: none do.
  const RetainPolicy* eviction() const;
  bool evicts() const { return eviction() != nullptr; }
  // The limit in bytes of a run that refuses, or evicts, what exceeds it.
  std::optional<uint64_t> pool_limit() const { return limit_bytes; }
  ProjectionKind projection_kind() const;
  std::optional<StoreType> store_type() const { return type ? type : preset->type; }
  bool wants_hot_set() const { return hot_bytes.value_or(0) > 0 || hot_selections > 0; }
};

// Refuses what contradicts itself, and what this version lacks, by the names of the options.
Status CheckKvRequest(const KvRequest& request);

// What a method follows from, beside the request.
struct MethodInputs {
  const ModelConfig& config;
  int64_t max_tokens = 0;
  bool fetches = false;   // selected entries come over a link, so a guess a layer ahead hides the wait
  int64_t sequences = 1;  // among which a limit in bytes is divided
  bool any_cap = false;   // single sequences may ask for any cap, up to everything
};

// The method of a run. Where even the longest sequence is attended to whole, nothing is selected and no index is kept.
// Precondition: CheckKvRequest passed.
Result<KvMethod> ResolveMethod(const KvRequest& request, const MethodInputs& inputs);

}  // namespace infinigen
