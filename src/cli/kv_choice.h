// The KV flags, and what they mean: presets and axes of the design resolved to a method. Words that nobody knows are
// refused where they are read (usage); words of the interface that this version lacks are refused by name.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "cli/flags.h"
#include "kv/method.h"
#include "kv/skew.h"
#include "kv/view.h"
#include "model/config.h"

namespace infinigen {

// Defaults that hold for every model; the measurements behind them: docs/decisions/0004-selection-defaults.md.
inline constexpr float kDefaultAlpha = 5.0f;
inline constexpr double kDefaultCap = 0.2;
inline constexpr double kDefaultRatio = 0.3;
inline constexpr int64_t kDefaultSinks = 4;
inline constexpr int64_t kDefaultWindow = 576;
inline constexpr int64_t kDefaultMinRows = 256;
inline constexpr std::string_view kDefaultLimit = "20%";  // of presets that are nothing without one
inline constexpr int64_t kQuestMinRows = 3 * kPageRows;   // as in its authors' evaluation

struct KvFlags {
  std::string presets = "infinigen";  // one, or a comma list where several are taken
  std::string select, evict;          // empty: the preset's
  std::string type = "auto";
  std::string limit;
  std::string home = "host";
  std::string skew;
  float alpha = -1;  // -1, here and below: not given, so the preset's
  double cap = kDefaultCap, ratio = kDefaultRatio;
  int64_t sinks = -1, window = -1, min_rows = -1;  // -1: the preset's
  int64_t dense_layers = -1;                       // and by the source of the guess
  std::string from;                                // empty: by the device
  std::string counts = "ragged";
  std::string sketch_type = "int8";
  std::string projection = "auto";
  std::string columns = "fixed";
  std::string hot;
  int64_t force_count = 0;
  float force_hits = -1;  // -1: not given
  bool mass_recall = false;
  bool stats_per_layer = false;
};
// 0.05 or 5%; what is wrong with the text, or nothing.
std::string SetShare(const std::string& text, double* share);

// Presets that this version has, in the order of the design.
std::vector<std::string_view> PresetNames();
// `list`: --kv takes several.
void AddKvFlags(Flags& flags, KvFlags* kv, bool list);

struct KvChoice {
  std::optional<StoreType> type;        // nullopt: the model's
  std::optional<uint64_t> limit_bytes;  // nullopt: what memory allows
  KvMethod method;                      // fitted to no model yet
  std::optional<int64_t> dense_layers;  // nullopt: by the preset and the source of the guess
  ProjectionKind projection = ProjectionKind::kPair;
  std::string skew_file;              // empty: where skews are kept
  bool on_device = false;             // entries live on the GPU
  bool source_given = false;          // of the guess; else it follows from the device
  std::optional<uint64_t> hot_bytes;  // of a GPU's hot set; nullopt: what is left
  double hot_selections = 0;          // of it at most: room for so many selections; 0: no such limit
};
// One for each preset of the list.
Result<std::vector<KvChoice>> ResolveKvList(const KvFlags& flags);
// Precondition: the flags were added without `list`.
Result<KvChoice> ResolveKv(const KvFlags& flags);

// The method for one model and a context of at most `max_tokens`: with sketch size and dense layers settled. Where even
// the longest sequence is attended to whole, nothing is selected and no sketch is kept.
Result<KvMethod> FitMethod(const KvChoice& choice, const ModelConfig& config, int64_t max_tokens);

}  // namespace infinigen
