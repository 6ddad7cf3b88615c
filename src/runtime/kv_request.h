// KvRequest: the user's settings for the KV cache, and how they become a method.
//
// A request names a preset and overrides some of its values; the rest follows from the preset, the model and the
// device. CheckKvRequest refuses contradictions before a model is opened. ResolveMethod turns the request into a
// KvMethod once, when model and device are known; the run never changes it.
//
// runtime/run_options.h parses these options from text ("kv-cap", "5%").
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

// Defaults without a tail, for every model. Measurements: docs/decisions/0004-selection-defaults.md.
inline constexpr float kDefaultAlpha = 5.0f;
inline constexpr double kDefaultCap = 0.2;
inline constexpr int32_t kDefaultSinks = 4;
inline constexpr int32_t kDefaultWindow = 576;
inline constexpr int32_t kDefaultMinRows = 256;
// With a tail, which is the default, what is not selected is still attended to by its sketch, so fewer rows do
// (docs/decisions/0013-a-tail-from-sketches.md).
inline constexpr double kTailCap = 0.07;
inline constexpr int32_t kTailWindow = 64;
inline constexpr int32_t kTailMinRows = 32;
inline constexpr int32_t kTailWholeRows = 1024;  // caches of up to this many rows are attended to whole
inline constexpr int32_t kTailLateRows = 16;     // after a guess (docs/decisions/0008-guess-a-layer-early.md)
// Sketches: numbers of a key as a share of head_dim, numbers of a value. All numbers of a key share a scale.
inline constexpr double kDefaultRatio = 0.3;
inline constexpr double kTailRatio = 0.875;  // docs/decisions/0015-means-of-blocks.md
inline constexpr int64_t kTailValueDims = 8;
inline constexpr double kDefaultLimit = 0.2;  // share; for presets that evict
inline constexpr int32_t kQuestMinRows = 48;  // three pages, as in the authors' evaluation

// A combination of selection, eviction and storage, with its parameters.
struct KvPreset {
  std::string_view name;
  std::string_view summary;  // for help
  const SelectMethod* select = &kSelectAll;
  const RetainPolicy* evict = nullptr;  // null: nothing is evicted
  std::optional<StoreType> type;        // nullopt: the type of the model's matrices
  float alpha = kDefaultAlpha;
  int32_t sinks = kDefaultSinks, window = kDefaultWindow, min_rows = kDefaultMinRows;
  int64_t dense_layers = 0;  // lower bound; methods that guess use at least 2
};
std::span<const KvPreset> KvPresets();
// Null if there is no such preset.
const KvPreset* FindPreset(std::string_view name);

// How the sketches of keys are stored: numbers × bits, and how many numbers share a scale.
struct SketchSpec {
  std::optional<double> ratio;  // numbers as a share of head_dim, or ...
  int64_t dims = 0;             // ... their number
  SketchType type = SketchType::kInt4;
  int64_t scale_dims = 0;  // 0: all
};

enum class KvHome : uint8_t { kHost, kDevice, kDisk };

struct KvRequest {
  const KvPreset* preset = FindPreset("infinigen");
  bool one_of_several = false;  // a list of presets shares the options: those that this preset lacks are ignored

  const SelectMethod* select = nullptr;      // null: the preset's
  std::optional<const RetainPolicy*> evict;  // nullopt: the preset's; null: evict nothing
  std::optional<StoreType> type;
  // At most one is set: a share of each sequence's final length, or bytes for all entries.
  std::optional<double> limit_share;
  std::optional<uint64_t> limit_bytes;
  KvHome home = KvHome::kHost;
  std::string disk_path;  // with kDisk

  std::optional<float> alpha;
  std::optional<double> cap;
  std::optional<double> mass;   // share of the estimated attention that a selection must hold
  std::optional<bool> tail;     // nullopt: on where the method can have one
  std::optional<int32_t> late;  // rows that a guess missed and that are attended to after all; nullopt: kTailLateRows
  std::optional<int32_t> sinks, window, min_rows;
  std::optional<int64_t> dense_layers;
  std::optional<GuessSource> from;  // nullopt: depends on the device
  bool mean_counts = false;

  // At most one of two ways to describe sketches: `sketch`, or ratio and type.
  std::optional<SketchSpec> sketch;
  std::optional<double> ratio;
  std::optional<SketchType> sketch_type;
  std::optional<ProjectionKind> projection;  // nullopt: the pair, or the rotation with prompt_columns
  bool prompt_columns = false;
  std::string skew_file;  // empty: see FindOrMakeSkew

  std::optional<uint64_t> hot_bytes;  // size of the GPU's hot set; nullopt: all free GPU memory
  double hot_selections = 0;          // upper bound of the hot set, in selections; 0: none
  int32_t force_count = 0;            // for benchmarks
  std::optional<double> force_hits;   // for benchmarks
  bool measure_mass = false;

  const SelectMethod& selection() const { return select != nullptr ? *select : *preset->select; }
  bool selects() const { return &selection() != &kSelectAll; }
  // The policy that decides which entry is evicted; null: none is.
  const RetainPolicy* eviction() const;
  bool evicts() const { return eviction() != nullptr; }
  // Limit of the pool in bytes. Entries beyond it are evicted, or the sequence is refused.
  std::optional<uint64_t> pool_limit() const { return limit_bytes; }
  ProjectionKind projection_kind() const;
  std::optional<StoreType> store_type() const { return type ? type : preset->type; }
  // Rows outside the selection are attended to by their sketches.
  bool has_tail() const;
  bool wants_hot_set() const { return hot_bytes.value_or(0) > 0 || hot_selections > 0; }
};

// Refuses contradictory and unsupported combinations; messages name the command-line flags.
Status CheckKvRequest(const KvRequest& request);

// What a method depends on besides the request.
struct MethodInputs {
  const ModelConfig& config;
  int64_t max_tokens = 0;
  bool fetches = false;   // selected entries are fetched over a link, so a guess a layer ahead hides the wait
  int64_t sequences = 1;  // sequences that share a limit in bytes
  bool any_cap = false;   // each request may set its own cap, up to 1
};

// The method of a run. If even the longest sequence would be attended to whole, the method selects nothing and stores
// no index. Precondition: CheckKvRequest passed.
Result<KvMethod> ResolveMethod(const KvRequest& request, const MethodInputs& inputs);

}  // namespace infinigen
