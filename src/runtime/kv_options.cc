#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "base/size.h"
#include "runtime/run_options.h"

namespace infinigen {
namespace {

using Request = KvRequest*;

bool IsPercent(std::string_view text) { return !text.empty() && text.back() == '%'; }

// Parses all of `text` as a finite number.
bool ParseNumber(std::string_view text, double* value) {
  const auto [rest, failure] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return failure == std::errc() && rest == text.data() + text.size() && std::isfinite(*value);
}

template <class T>
std::string SetInteger(const std::string& text, int64_t least, T* value) {
  int64_t number = 0;
  std::string wrong = ParseInteger(text, least, std::numeric_limits<int32_t>::max(), &number);
  if (wrong.empty()) *value = static_cast<int32_t>(number);
  return wrong;
}

// A word that an option accepts, and the value it stands for.
template <class T>
struct Word {
  std::string_view word;
  T meaning;
};
template <class T, class U>
std::string SetWord(const std::string& text, std::span<const Word<T>> words, U* value) {
  for (const Word<T>& known : words)
    if (known.word == text) return *value = known.meaning, std::string();
  std::vector<std::string_view> names;
  for (const Word<T>& known : words) names.push_back(known.word);
  return fmt::format("'{}' is unknown, it can be {}", text, fmt::join(names, "|"));
}
template <class T>
std::string Words(std::span<const Word<T>> words) {
  std::string list;
  for (const Word<T>& known : words) list += fmt::format("{}{}", list.empty() ? "" : "|", known.word);
  return list;
}

constexpr Word<GuessSource> kSources[] = {{"self", GuessSource::kSelf},
                                          {"prev-layer", GuessSource::kPrevLayer},
                                          {"prev-mid", GuessSource::kPrevMid},
                                          {"prev-step", GuessSource::kPrevStep}};
constexpr Word<bool> kOnOff[] = {{"on", true}, {"off", false}};
constexpr Word<bool> kCounts[] = {{"ragged", false}, {"mean", true}};
constexpr Word<bool> kColumns[] = {{"fixed", false}, {"prompt", true}};
constexpr Word<SketchType> kSketchTypes[] = {
    {"bf16", SketchType::kBF16}, {"int8", SketchType::kInt8}, {"int4", SketchType::kInt4}};
constexpr Word<std::optional<ProjectionKind>> kProjections[] = {{"auto", std::nullopt},
                                                                {"rotation", ProjectionKind::kRotation},
                                                                {"pair", ProjectionKind::kPair},
                                                                {"none", ProjectionKind::kNone}};
constexpr Word<std::optional<StoreType>> kTypes[] = {{"auto", std::nullopt},     {"f32", StoreType::kF32},
                                                     {"f16", StoreType::kF16},   {"bf16", StoreType::kBF16},
                                                     {"int8", StoreType::kInt8}, {"int4", StoreType::kInt4}};

std::vector<Word<const SelectMethod*>> SelectWords() {
  std::vector<Word<const SelectMethod*>> words;
  for (const SelectMethod* method : SelectMethods()) words.push_back({method->name, method});
  return words;
}
std::vector<Word<const RetainPolicy*>> EvictWords() {
  std::vector<Word<const RetainPolicy*>> words = {{"none", nullptr}};
  for (const RetainPolicy* policy : RetainPolicies()) words.push_back({policy->name, policy});
  return words;
}

std::string SetSelect(const std::string& text, Request request) {
  return SetWord<const SelectMethod*>(text, SelectWords(), &request->select);
}
std::string SetEvict(const std::string& text, Request request) {
  return SetWord<const RetainPolicy*>(text, EvictWords(), &request->evict);
}

std::string SetAlpha(const std::string& text, Request request) {
  double value = 0;
  if (text == "inf" || text == "infinity")
    request->alpha = std::numeric_limits<float>::infinity();
  else if (ParseNumber(text, &value) && value >= 0)
    request->alpha = static_cast<float>(value);
  else
    return fmt::format("'{}' is not a number of at least 0, nor inf", text);
  return {};
}

// A share above 0. `zero`: why 0 is refused.
std::string SetPositiveShare(const std::string& text, const char* zero, std::optional<double>* share) {
  double parsed = 0;
  std::string wrong = ParseShare(text, &parsed);
  if (wrong.empty() && parsed == 0) wrong = zero;
  if (wrong.empty()) *share = parsed;
  return wrong;
}

// "56x4", "3/4x4/16", "0.3x8": numbers or their share of head_dim, bits, numbers that share a scale.
std::string SetSketch(const std::string& all, Request request) {
  const std::string_view text = all;
  const std::string wrong = fmt::format("'{}' is not NUMBERSxBITS[/GROUP]; write for example 56x4 or 3/4x4/16", text);
  const size_t times = text.find('x');
  if (times == std::string_view::npos) return wrong;
  const std::string_view numbers = text.substr(0, times);
  std::string_view bits = text.substr(times + 1), group;
  if (const size_t slash = bits.find('/'); slash != std::string_view::npos)
    group = bits.substr(slash + 1), bits = bits.substr(0, slash);
  SketchSpec parsed;
  const size_t slash = numbers.find('/');
  if (slash != std::string_view::npos || numbers.find('.') != std::string_view::npos) {
    double above = 0, below = 1;
    if (!ParseNumber(numbers.substr(0, slash), &above) ||
        (slash != std::string_view::npos && !ParseNumber(numbers.substr(slash + 1), &below)))
      return wrong;
    parsed.ratio = above / below;
    if (!(*parsed.ratio > 0 && *parsed.ratio <= 1))
      return fmt::format("'{}': the share must be above 0, up to 1", text);
  } else if (!ParseInteger(numbers, 1, 512, &parsed.dims).empty()) {
    return wrong;
  }
  if (bits == "4")
    parsed.type = SketchType::kInt4;
  else if (bits == "8")
    parsed.type = SketchType::kInt8;
  else if (bits == "16")
    parsed.type = SketchType::kBF16;
  else
    return fmt::format("'{}': numbers have 4, 8 or 16 bits", text);
  if (text.ends_with('/') || (!group.empty() && !ParseInteger(group, 1, 512, &parsed.scale_dims).empty())) return wrong;
  if (parsed.scale_dims % kSketchDimStep != 0)
    return fmt::format("'{}': the numbers that share a scale must be a multiple of {}", text, kSketchDimStep);
  request->sketch = parsed;
  return {};
}

std::string SetLimit(const std::string& text, Request request) {
  if (IsPercent(text)) {
    double share = 0;
    if (!ParseShare(text, &share).empty() || share == 0)
      return fmt::format("'{}' is not a share above 0 and at most 100%; write for example 20%", text);
    request->limit_share = share;
    request->limit_bytes.reset();
    return {};
  }
  const Result<uint64_t> size = ParseSize(text);
  if (!size.ok()) return size.error().message;
  request->limit_bytes = *size;
  request->limit_share.reset();
  return {};
}

std::string SetHome(const std::string& text, Request request) {
  constexpr std::string_view kDisk = "disk:";
  if (text == "host")
    request->home = KvHome::kHost;
  else if (text == "device")
    request->home = KvHome::kDevice;
  else if (text.starts_with(kDisk))
    request->home = KvHome::kDisk, request->disk_path = text.substr(kDisk.size());
  else
    return fmt::format("'{}' is unknown, it can be host|device", text);
  return {};
}

// A size, or "2x": room for two selections.
std::string SetHot(const std::string& text, Request request) {
  if (text.ends_with('x')) {
    double times = 0;
    if (!ParseNumber(std::string_view(text).substr(0, text.size() - 1), &times) || times < 1)
      return fmt::format("'{}' is not a factor of at least 1x", text);
    request->hot_selections = times;
    request->hot_bytes.reset();
    return {};
  }
  const Result<uint64_t> size = ParseSize(text);
  if (!size.ok()) return size.error().message;
  request->hot_bytes = *size;
  request->hot_selections = 0;
  return {};
}

std::string SetForceHits(const std::string& text, Request request) {
  double value = 0;
  if (!ParseNumber(text, &value)) return fmt::format("'{}' is not a number", text);
  if (value < 0) return fmt::format("{} is too small, the minimum is 0", text);
  if (value > 1) return fmt::format("{} is too large, the maximum is 1", text);
  request->force_hits = value;
  return {};
}

std::string SetSwitch(const std::string& text, bool* value) {
  for (const char* yes : {"", "1", "true", "yes", "on"})
    if (text == yes) return *value = true, std::string();
  for (const char* no : {"0", "false", "no", "off"})
    if (text == no) return *value = false, std::string();
  return fmt::format("'{}' is neither 1 nor 0", text);
}

std::string EvictHelp() {
  std::string help = "which entry a full cache evicts: none (a sequence that does not fit is refused)";
  for (const RetainPolicy* policy : RetainPolicies()) help += fmt::format(", {} ({})", policy->name, policy->summary);
  return help + " (default: the preset's, usually none; counter if --kv-limit is a share)";
}

std::string SelectHelp() {
  std::string help = "which entries a step attends to:";
  for (const SelectMethod* method : SelectMethods())
    help += fmt::format("{} {} ({})", help.back() == ':' ? "" : ",", method->name, method->summary);
  return help + " (default: the preset's)";
}

void AddSelection(std::vector<KvOption>& options) {
  options.push_back({"kv-select", "KIND", SelectHelp(), SetSelect});
  options.push_back({"kv-alpha", "X",
                     fmt::format("select the entries whose score is within X of the best score; inf: no threshold "
                                 "(default {}, quest inf)",
                                 kDefaultAlpha),
                     SetAlpha});
  options.push_back(
      {"kv-cap", "SHARE",
       fmt::format(
           "select at most this share of the entries, 0.05 or 5%; 1: no cap (default {}, without a tail {}, with "
           "--kv-mass {})",
           kTailCap, kDefaultCap, kMassCap),
       [](const std::string& text, Request r) { return ParseShare(text, &r->cap.emplace()); }});
  options.push_back({"kv-mass", "SHARE",
                     "select the fewest entries that hold this share of the estimated attention, for example 0.95, "
                     "instead of those within --kv-alpha (default: off)",
                     [](const std::string& text, Request r) {
                       return SetPositiveShare(text, "the share must be above 0", &r->mass);
                     }});
  options.push_back({"kv-tail", Words<bool>(kOnOff),
                     "attend to the entries that are not selected by their sketches, which then include the values; "
                     "needs a calibrated projection (default on where the method has one)",
                     [](const std::string& text, Request r) { return SetWord<bool>(text, kOnOff, &r->tail); }});
  options.push_back({"kv-late", "N",
                     fmt::format("attend to up to N more entries for each head, which the guessed query missed and the "
                                 "layer's own ranks highest; needs a tail and a guess (default {})",
                                 kTailLateRows),
                     [](const std::string& text, Request r) { return SetInteger(text, 0, &r->late); }});
  options.push_back(
      {"kv-min", "N",
       fmt::format("select at least N entries (default {}, and caches of up to {} entries are attended to "
                   "whole; without a tail {}, quest {})",
                   kTailMinRows, kTailWholeRows, kDefaultMinRows, kQuestMinRows),
       [](const std::string& text, Request r) { return SetInteger(text, 0, &r->min_rows); }});
  options.push_back(
      {"kv-sinks", "N",
       fmt::format("always attend to the first N tokens and never evict them (default {}, h2o and quest 0)",
                   kDefaultSinks),
       [](const std::string& text, Request r) { return SetInteger(text, 0, &r->sinks); }});
  options.push_back({"kv-window", "N",
                     fmt::format("always attend to the last N tokens (default {}, without a tail {}, quest 0)",
                                 kTailWindow, kDefaultWindow),
                     [](const std::string& text, Request r) { return SetInteger(text, 0, &r->window); }});
  options.push_back({"kv-dense-layers", "N",
                     "the first N layers attend to every entry (default 0 with --kv-from self, otherwise 2; quest 2)",
                     [](const std::string& text, Request r) { return SetInteger(text, 0, &r->dense_layers); }});
  options.push_back(
      {"kv-from", Words<GuessSource>(kSources),
       "the query that ranks the entries: self (the layer's own), prev-layer (guessed from the input of the layer "
       "before), prev-mid (guessed from the middle of the layer before, after its attention), prev-step (of the "
       "previous token) (default self; prev-layer if entries are fetched to a GPU)",
       [](const std::string& text, Request r) { return SetWord<GuessSource>(text, kSources, &r->from); }});
  options.push_back({"kv-counts", Words<bool>(kCounts),
                     "how many entries a head selects: ragged (each its own number), mean (the mean of all heads) "
                     "(default ragged)",
                     [](const std::string& text, Request r) { return SetWord<bool>(text, kCounts, &r->mean_counts); }});
}

void AddSketches(std::vector<KvOption>& options) {
  options.push_back(
      {"kv-sketch", "NxB[/GROUP]",
       fmt::format("sketches of keys: N numbers (or a share of the key, as 3/4) of B bits; GROUP of them, or "
                   "all, share a scale (default 7/8x4, without a tail {}x8)",
                   kDefaultRatio),
       SetSketch});
  options.push_back({"kv-ratio", "SHARE",
                     fmt::format("numbers of a key's sketch as a share of the key (default {}, without a tail {})",
                                 kTailRatio, kDefaultRatio),
                     [](const std::string& text, Request r) {
                       return SetPositiveShare(text, "the size of a sketch must be above 0", &r->ratio);
                     }});
  options.push_back(
      {"kv-sketch-type", Words<SketchType>(kSketchTypes),
       "stored type of a key's sketch (default int4, without a tail int8)",
       [](const std::string& text, Request r) { return SetWord<SketchType>(text, kSketchTypes, &r->sketch_type); }});
  options.push_back({"kv-projection", Words<std::optional<ProjectionKind>>(kProjections),
                     "how keys become sketches: rotation (the skew), pair (separate projections of queries and keys "
                     "with the least error), none (plain dimensions), auto (pair, or rotation with --kv-columns "
                     "prompt) (default auto)",
                     [](const std::string& text, Request r) {
                       return SetWord<std::optional<ProjectionKind>>(text, kProjections, &r->projection);
                     }});
  options.push_back(
      {"kv-columns", Words<bool>(kColumns),
       "sketch columns: fixed (by calibration), prompt (chosen by each prompt) (default fixed)",
       [](const std::string& text, Request r) { return SetWord<bool>(text, kColumns, &r->prompt_columns); }});
  options.push_back({"kv-skew", "FILE", "skew file, see infinigen calibrate (default: the model's, made on first use)",
                     [](const std::string& text, Request r) { return r->skew_file = text, std::string(); }});
}

void AddStorage(std::vector<KvOption>& options) {
  options.push_back(
      {"kv-type", Words<std::optional<StoreType>>(kTypes),
       "stored type of entries; int8 and int4 quantise in groups of 64; auto: the preset's, or the type of the "
       "model's matrices (default auto)",
       [](const std::string& text, Request r) { return SetWord<std::optional<StoreType>>(text, kTypes, &r->type); }});
  options.push_back({"kv-limit", "SIZE",
                     fmt::format("hard limit of the KV pool: a size for all sequences, for example 8GiB, or a share "
                                 "of each sequence to retain, for example 20% (default: the memory that is free; h2o "
                                 "and streaming {}%)",
                                 100 * kDefaultLimit),
                     SetLimit});
  options.push_back({"kv-evict", "POLICY", EvictHelp(), SetEvict});
  options.push_back(
      {"kv-home", "host|device", "where the KV pool is: in host memory, or on the GPU (default host)", SetHome});
  options.push_back({"kv-hot", "SIZE|Nx",
                     "size of the hot set, which keeps fetched entries on the GPU: bytes, or room for N selections; "
                     "0: off (default: all free GPU memory); needs --device cuda",
                     SetHot});
}

void AddMeasurement(std::vector<KvOption>& options) {
  options.push_back({"kv-force-count", "N",
                     "for benchmarks: attend to exactly N entries per head, sinks and window included",
                     [](const std::string& text, Request r) { return SetInteger(text, 1, &r->force_count); }});
  options.push_back({"kv-force-hits", "X",
                     "for benchmarks: treat this share of each selection as hits of the hot set; needs --device cuda",
                     SetForceHits});
  options.push_back({"mass-recall", "", "also measure the share of true attention inside the selection (slow)",
                     [](const std::string& text, Request r) { return SetSwitch(text, &r->measure_mass); }});
}

}  // namespace

std::span<const KvOption> KvOptions() {
  static const std::vector<KvOption> kOptions = [] {
    std::vector<KvOption> options;
    AddSelection(options);
    AddSketches(options);
    AddStorage(options);
    AddMeasurement(options);
    return options;
  }();
  return kOptions;
}

std::string ParsePresets(std::string_view text, bool list, std::vector<const KvPreset*>* presets) {
  std::vector<const KvPreset*> found;
  while (true) {
    const size_t comma = list ? text.find(',') : std::string_view::npos;
    const std::string_view name = text.substr(0, comma);
    found.push_back(FindPreset(name));
    if (found.back() == nullptr) {
      std::vector<std::string_view> names;
      for (const KvPreset& preset : KvPresets()) names.push_back(preset.name);
      return fmt::format("'{}' is unknown, it can be {}", name, fmt::join(names, "|"));
    }
    if (comma == std::string_view::npos) break;
    text.remove_prefix(comma + 1);
  }
  *presets = std::move(found);
  return {};
}

std::string PresetHelp() {
  std::string help = "KV method:";
  for (const KvPreset& preset : KvPresets())
    help += fmt::format("{} {} ({})", help.back() == ':' ? "" : ",", preset.name, preset.summary);
  return help;
}

std::string ParseShare(std::string_view text, double* share) {
  double value = 0;
  const bool percent = IsPercent(text);
  const std::string_view digits = text.substr(0, text.size() - (percent ? 1 : 0));
  if (!ParseNumber(digits, &value) || value < 0 || value > (percent ? 100 : 1))
    return fmt::format("'{}' is not a share; write for example 0.05 or 5%", text);
  *share = percent ? value / 100 : value;
  return {};
}

}  // namespace infinigen
