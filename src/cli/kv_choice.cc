#include "cli/kv_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <string_view>
#include <utility>

#include "base/size.h"

namespace infinigen {
namespace {

// A point in retain × select × store, with the numbers that go with it. Flags of the axes replace its words.
struct Preset {
  std::string_view name;
  SelectKind select = SelectKind::kAll;
  std::string_view evict = "none";  // without a limit
  std::string_view limit;           // where none is given
  float alpha = kDefaultAlpha;
  int64_t sinks = kDefaultSinks, window = kDefaultWindow, min_rows = kDefaultMinRows;
  int64_t dense_layers = 0;  // a guess needs two
};
constexpr std::array<Preset, 8> kPresets = {{
    {.name = "full"},
    {.name = "infinigen", .select = SelectKind::kSketch},
    {.name = "oracle", .select = SelectKind::kOracle},
    {.name = "h2o", .evict = "h2o", .limit = kDefaultLimit, .sinks = 0},
    {.name = "streaming", .evict = "streaming", .limit = kDefaultLimit},
    {.name = "int8"},
    {.name = "int4"},
    // As published: the best pages and nothing else.
    {.name = "quest",
     .select = SelectKind::kQuest,
     .alpha = std::numeric_limits<float>::infinity(),
     .sinks = 0,
     .window = 0,
     .min_rows = kQuestMinRows,
     .dense_layers = 2},
}};

const Preset* FindPreset(std::string_view name) {
  const auto found = std::find_if(kPresets.begin(), kPresets.end(), [&](const Preset& p) { return p.name == name; });
  return found == kPresets.end() ? nullptr : &*found;
}

bool IsPercent(std::string_view text) { return !text.empty() && text.back() == '%'; }

// A whole number or fraction, all of `text`.
bool ParseNumber(std::string_view text, double* value) {
  const auto [rest, failure] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return failure == std::errc() && rest == text.data() + text.size() && std::isfinite(*value);
}

std::string CheckPresets(std::string_view text, bool list) {
  while (true) {
    const size_t comma = list ? text.find(',') : std::string_view::npos;
    const std::string_view name = text.substr(0, comma);
    if (FindPreset(name) == nullptr)
      return fmt::format("'{}' is unknown, it can be {}", name, fmt::join(PresetNames(), "|"));
    if (comma == std::string_view::npos) return {};
    text.remove_prefix(comma + 1);
  }
}

std::string CheckHome(const std::string& text) {
  if (text == "host" || text == "device" || text.substr(0, 5) == "disk:") return {};
  return fmt::format("'{}' is unknown, it can be host|device|disk:PATH", text);
}

std::string CheckSize(const std::string& text) {
  const Result<uint64_t> size = ParseSize(text);
  return size.ok() ? std::string() : size.error().message;
}

// 2x: so many times a selection.
bool ParseTimes(const std::string& text, double* times) {
  return text.ends_with('x') && ParseNumber(std::string_view(text).substr(0, text.size() - 1), times) && *times >= 1;
}
std::string CheckHot(const std::string& text) {
  double times = 0;
  if (!text.ends_with('x')) return CheckSize(text);
  return ParseTimes(text, &times) ? "" : fmt::format("'{}' is not 1x or more", text);
}

std::string CheckLimit(const std::string& text) {
  if (!IsPercent(text)) return CheckSize(text);
  double percent = 0;
  const bool good =
      ParseNumber(std::string_view(text).substr(0, text.size() - 1), &percent) && percent > 0 && percent <= 100;
  return good ? std::string() : fmt::format("'{}' is not a share, write for example 20%", text);
}

std::string SetAlpha(const std::string& text, float* alpha) {
  double value = 0;
  if (text == "inf" || text == "infinity")
    *alpha = std::numeric_limits<float>::infinity();
  else if (ParseNumber(text, &value) && value >= 0)
    *alpha = static_cast<float>(value);
  else
    return fmt::format("'{}' is neither a number of at least 0 nor inf", text);
  return {};
}

auto OneOf(std::vector<std::string_view> words) {
  return [words = std::move(words)](const std::string& text) {
    if (std::find(words.begin(), words.end(), text) != words.end()) return std::string();
    return fmt::format("'{}' is unknown, it can be {}", text, fmt::join(words, "|"));
  };
}

template <class Check>
Flags::Setter Checked(std::string* value, Check check) {
  return [=](const std::string& text) {
    std::string wrong = check(text);
    if (wrong.empty()) *value = text;
    return wrong;
  };
}

// Who is attended.
void AddSelectionFlags(Flags& flags, KvFlags* kv) {
  flags.Custom("--kv-select", Checked(&kv->select, OneOf({"all", "sketch", "quest", "oracle"})), "KIND",
               "who is attended: all|sketch|quest|oracle (default: the preset's)");
  flags.Custom(
      "--kv-alpha", [kv](const std::string& text) { return SetAlpha(text, &kv->alpha); }, "X",
      fmt::format("select entries whose score is within X of the best; inf: all (default {}, quest inf)",
                  kDefaultAlpha));
  flags.Custom(
      "--kv-cap", [kv](const std::string& text) { return SetShare(text, &kv->cap); }, "SHARE",
      fmt::format("select at most this share, 0.05 or 5%; 1: no cap (default {})", kv->cap));
  flags.Integer("--kv-min", &kv->min_rows, 0, INT32_MAX,
                fmt::format("select at least N, so shorter texts are attended to whole (default {}, quest {})",
                            kDefaultMinRows, kQuestMinRows));
  flags.Integer("--kv-sinks", &kv->sinks, 0, INT32_MAX,
                fmt::format("always attend to the first N tokens, and never evict them (default {}, h2o and quest 0)",
                            kDefaultSinks));
  flags.Integer("--kv-window", &kv->window, 0, INT32_MAX,
                fmt::format("always attend to the last N tokens (default {}, quest 0)", kDefaultWindow));
  flags.Integer("--kv-dense-layers", &kv->dense_layers, 0, INT32_MAX,
                "the first N layers attend to everything (default 0 with --kv-from self, else 2; quest 2)");
  flags.Choice(
      "--kv-from", &kv->from, {"self", "prev-layer", "prev-mid", "prev-step"},
      "whose query is compared with the sketches, or pages (default self; where entries come over the link to a "
      "GPU prev-layer)");
  flags.Choice("--kv-counts", &kv->counts, {"ragged", "mean"}, "every head its own count, or the mean of all");
}

void AddSketchFlags(Flags& flags, KvFlags* kv) {
  flags.Custom(
      "--kv-ratio",
      [kv](const std::string& text) {
        double share = 0;
        std::string wrong = SetShare(text, &share);
        if (wrong.empty() && share == 0) wrong = "a sketch needs a size above 0";
        if (wrong.empty()) kv->ratio = share;
        return wrong;
      },
      "SHARE", fmt::format("size of a sketch against its key (default {})", kv->ratio));
  flags.Choice("--kv-sketch-type", &kv->sketch_type, {"bf16", "int8", "int4"}, "stored type of sketches");
  flags.Choice(
      "--kv-projection", &kv->projection, {"auto", "rotation", "pair", "none"},
      "from keys to sketches: the skewing rotation, the pair with the least error, plain dimensions; auto: pair, "
      "or rotation with --kv-columns prompt");
  flags.Choice("--kv-columns", &kv->columns, {"fixed", "prompt"},
               "sketch columns fixed by calibration, or chosen by each prompt");
  flags.Text("--kv-skew", &kv->skew, "FILE", "skew file to use (default: the model's, made on first use)");
}

// Where and how entries are kept, and who has to go.
void AddStorageFlags(Flags& flags, KvFlags* kv) {
  flags.Choice("--kv-type", &kv->type, {"auto", "f32", "f16", "bf16", "int8", "int4"},
               "stored type of entries; int8 and int4 are codes in groups of 64; auto: the preset's, else that of "
               "the model's matrices");
  flags.Custom("--kv-limit", Checked(&kv->limit, CheckLimit), "SIZE",
               fmt::format("hard limit of the pool, for example 8GiB, or a share that every sequence may keep, for "
                           "example 20% (default: what memory allows; h2o and streaming {})",
                           kDefaultLimit));
  std::vector<std::string_view> policies = {"none"};
  std::string help = "who leaves a full cache: none (a sequence that does not fit is refused)";
  for (const RetainPolicy* policy : RetainPolicies()) {
    policies.push_back(policy->name);
    help += fmt::format(", {} ({})", policy->name, policy->summary);
  }
  flags.Custom("--kv-evict", Checked(&kv->evict, OneOf(policies)), "POLICY",
               help + " (default none; counter where --kv-limit is a share)");
  flags.Custom("--kv-home", Checked(&kv->home, CheckHome), "host|device",
               "where entries live: in host memory, or on the GPU (default host)");
  flags.Custom("--kv-hot", Checked(&kv->hot, CheckHot), "SIZE|Nx",
               "entries kept on the GPU: bytes, or room for N selections (default: what is left); needs --device cuda");
}

void AddMeasurementFlags(Flags& flags, KvFlags* kv) {
  flags.Integer("--kv-force-count", &kv->force_count, 1, INT32_MAX,
                "for benchmarks: attend to exactly N entries per head, sinks and window included");
  flags.Real("--kv-force-hits", &kv->force_hits, 0, 1, false, "for benchmarks of the hot set; needs --device cuda");
  flags.Switch("--mass-recall", &kv->mass_recall, "measure the share of true attention inside the selection (slow)");
  flags.Switch("--stats-per-layer", &kv->stats_per_layer, "report what was attended to for every layer");
}

Status CheckAvailable(const KvFlags& flags) {
  if (flags.home.starts_with("disk:"))
    return Unsupported("--kv-home {} is not part of this version; available: host, device", flags.home);
  if (flags.force_hits > 0 && !flags.hot.empty() && (flags.hot.ends_with('x') || *ParseSize(flags.hot) > 0))
    return Invalid("--kv-force-hits stands for a hot set: it goes with --kv-hot 0");
  return Ok();
}

SelectKind SelectOf(const Preset& preset, const std::string& select) {
  if (select.empty()) return preset.select;
  if (select == "all") return SelectKind::kAll;
  if (select == "quest") return SelectKind::kQuest;
  return select == "oracle" ? SelectKind::kOracle : SelectKind::kSketch;
}

// A stored type by name; nullopt for other words.
std::optional<StoreType> StoreOf(std::string_view word) {
  for (const StoreType type : kStoreTypes)
    if (word == Name(type)) return type;
  return std::nullopt;
}

GuessSource SourceOf(const std::string& word) {
  if (word == "prev-layer") return GuessSource::kPrevLayer;
  if (word == "prev-mid") return GuessSource::kPrevMid;
  return word == "prev-step" ? GuessSource::kPrevStep : GuessSource::kSelf;
}

ProjectionKind ProjectionOf(const KvFlags& flags) {
  if (flags.projection == "none") return ProjectionKind::kNone;
  // Columns that a prompt chooses are those of the rotation: the pair's two sides cannot be compared.
  const bool rotation = flags.projection == "rotation" || (flags.projection == "auto" && flags.columns == "prompt");
  return rotation ? ProjectionKind::kRotation : ProjectionKind::kPair;
}

KvMethod MethodOf(const KvFlags& flags, const Preset& preset) {
  const auto given = [](int64_t flag, int64_t otherwise) { return static_cast<int32_t>(flag >= 0 ? flag : otherwise); };
  KvMethod method;
  method.preset = preset.name;
  method.select = SelectOf(preset, flags.select);
  method.from = flags.from.empty() ? GuessSource::kSelf : SourceOf(flags.from);
  method.forced_hits = std::max(0.0f, flags.force_hits);
  method.rule = {.alpha = flags.alpha < 0 ? preset.alpha : flags.alpha,
                 .cap = flags.cap,
                 .min_rows = given(flags.min_rows, preset.min_rows),
                 .sinks = given(flags.sinks, preset.sinks),
                 .window = given(flags.window, preset.window),
                 .force_count = static_cast<int32_t>(flags.force_count)};
  method.mean_counts = flags.counts == "mean";
  method.sketch_type = flags.sketch_type == "bf16"   ? SketchType::kBF16
                       : flags.sketch_type == "int8" ? SketchType::kInt8
                                                     : SketchType::kInt4;
  method.ratio = flags.ratio;
  method.prompt_columns = flags.columns == "prompt" && method.select == SelectKind::kSketch;
  method.projection = Name(ProjectionOf(flags));
  method.measure_mass = flags.mass_recall;
  return method;
}

std::vector<std::string_view> PoliciesWithoutSelection() {
  std::vector<std::string_view> names;
  for (const RetainPolicy* policy : RetainPolicies())
    if (!policy->needs_selection()) names.push_back(policy->name);
  return names;
}

// Who leaves, and when. `alone`: the preset is the only one, so that a limit is meant for it.
Status ResolveRetention(const KvFlags& flags, const Preset& preset, bool alone, KvChoice& choice) {
  // Where rows are selected one by one, a share lets the least selected leave.
  const bool by_rows = choice.method.select == SelectKind::kSketch || choice.method.select == SelectKind::kOracle;
  const std::string_view by_preset = IsPercent(flags.limit) && by_rows ? "counter" : preset.evict;
  const std::string_view word = flags.evict.empty() ? by_preset : std::string_view(flags.evict);
  choice.method.retain = FindRetainPolicy(word);
  const bool evicts = choice.method.retain != nullptr;
  const std::string_view limit = evicts && flags.limit.empty() ? preset.limit : std::string_view(flags.limit);
  if (evicts && limit.empty())
    return Invalid("--kv-evict {} needs a limit: pass --kv-limit, as a size or a share like 80%", word);
  if (!evicts && IsPercent(limit)) {
    if (!alone) return Ok();
    return Invalid("--kv-limit {}: a share makes entries leave, and here none does; pass --kv-evict POLICY, or a size",
                   limit);
  }
  if (limit.empty()) return Ok();
  if (IsPercent(limit)) {
    const std::string wrong = SetShare(std::string(limit), &choice.method.limit.share);
    CHECK(wrong.empty());
    return Ok();
  }
  ASSIGN_OR_RETURN(choice.limit_bytes, ParseSize(std::string(limit)));
  choice.method.limit.bytes = *choice.limit_bytes;
  return Ok();
}

// What each allows and both together do not.
Status CheckTogether(const KvChoice& choice) {
  const KvMethod& method = choice.method;
  const bool guesses = method.select != SelectKind::kAll && method.from != GuessSource::kSelf;
  if (guesses && choice.dense_layers == 0)
    return Invalid(
        "--kv-from {} guesses from what came before, so it needs at least one dense layer: pass --kv-dense-layers 1 "
        "or more",
        Name(method.from));
  if (method.evicts() && method.retain->needs_selection() && method.select == SelectKind::kAll)
    return Invalid("--kv-evict {} goes by selections, and --kv-select all makes none; pass one of {}",
                   method.retain->name, fmt::join(PoliciesWithoutSelection(), ", "));
  if (method.evicts() && method.retain->sums_attention && method.select != SelectKind::kAll)
    return Invalid("--kv-evict {} goes by the attention to everything retained: pass --kv-select all",
                   method.retain->name);
  if (method.evicts() && method.select == SelectKind::kQuest)
    return Unsupported(
        "--kv-evict {}: a page's bounds are those of all its keys, and cannot follow one that leaves; quest keeps all",
        method.retain->name);
  if (method.evicts() && method.prompt_columns)
    return Unsupported("--kv-columns prompt is not there together with --kv-evict {}", method.retain->name);
  if (method.prompt_columns && choice.projection == ProjectionKind::kPair)
    return Unsupported(
        "--kv-columns prompt: columns are compared by what they hold of queries and keys alike, and the pair's two "
        "sides differ; pass --kv-projection rotation or none");
  return Ok();
}

}  // namespace

void AddKvFlags(Flags& flags, KvFlags* kv, bool list) {
  flags.Group("KV cache");
  const auto check_presets = [list](const std::string& text) { return CheckPresets(text, list); };
  flags.Custom("--kv", Checked(&kv->presets, check_presets), list ? "PRESET,..." : "PRESET",
               "how the cache is kept: infinigen (attend to what a guess selects), full (attend to everything), int8 "
               "and int4 (everything, in so many bits), quest (the pages with the best bounds), h2o (keep heavy "
               "hitters), streaming (keep first and last), "
               "oracle (true best, slow, for measurement) (default " +
                   kv->presets + ")");
  AddSelectionFlags(flags, kv);
  AddSketchFlags(flags, kv);
  AddStorageFlags(flags, kv);
  AddMeasurementFlags(flags, kv);
}

std::string SetShare(const std::string& text, double* share) {
  double value = 0;
  const bool percent = IsPercent(text);
  const std::string_view digits = std::string_view(text).substr(0, text.size() - (percent ? 1 : 0));
  if (!ParseNumber(digits, &value) || value < 0 || value > (percent ? 100 : 1))
    return fmt::format("'{}' is not a share, write for example 0.05 or 5%", text);
  *share = percent ? value / 100 : value;
  return {};
}

std::vector<std::string_view> PresetNames() {
  std::vector<std::string_view> names;
  for (const Preset& preset : kPresets) names.push_back(preset.name);
  return names;
}

Result<std::vector<KvChoice>> ResolveKvList(const KvFlags& flags) {
  RETURN_IF_ERROR(CheckAvailable(flags));
  KvChoice common;
  if (flags.dense_layers >= 0) common.dense_layers = flags.dense_layers;
  common.projection = ProjectionOf(flags);
  common.skew_file = flags.skew;
  common.on_device = flags.home == "device";
  common.source_given = !flags.from.empty();
  if (!flags.hot.empty() && !ParseTimes(flags.hot, &common.hot_selections)) common.hot_bytes = *ParseSize(flags.hot);
  if (flags.force_hits > 0) common.hot_bytes = 0;

  std::vector<KvChoice> choices;
  std::string_view presets = flags.presets;
  const bool alone = presets.find(',') == std::string_view::npos;
  while (!presets.empty()) {
    const std::string_view name = presets.substr(0, presets.find(','));
    const Preset* preset = FindPreset(name);
    CHECK(preset != nullptr);
    KvChoice& choice = choices.emplace_back(common);
    choice.method = MethodOf(flags, *preset);
    RETURN_IF_ERROR(ResolveRetention(flags, *preset, alone, choice));
    choice.type = StoreOf(flags.type == "auto" ? name : flags.type);
    if (choice.method.select == SelectKind::kQuest && flags.columns == "prompt")
      return Unsupported("--kv-columns prompt: quest selects by bounds of pages, which have no columns to choose");
    RETURN_IF_ERROR(CheckTogether(choice));
    presets.remove_prefix(std::min(name.size() + 1, presets.size()));
  }
  return choices;
}

Result<KvChoice> ResolveKv(const KvFlags& flags) {
  ASSIGN_OR_RETURN(std::vector<KvChoice> choices, ResolveKvList(flags));
  CHECK(choices.size() == 1);
  return std::move(choices[0]);
}

Result<KvMethod> FitMethod(const KvChoice& choice, const ModelConfig& config, int64_t max_tokens) {
  KvMethod method = choice.method;
  method.dense_layers = choice.dense_layers.value_or(
      std::max<int64_t>(FindPreset(method.preset)->dense_layers, method.from == GuessSource::kSelf ? 0 : 2));
  method.sketch_dims = SketchDims(config.head_dim, method.ratio);
  SelectRule& rule = method.rule;
  if (rule.force_count > 0) {  // everything attended is counted: sinks and window give way
    rule.sinks = std::min(rule.sinks, rule.force_count - 1);
    rule.window = std::min(rule.window, rule.force_count - 1 - rule.sinks);
  }
  const bool dense = method.dense_layers >= config.layers;
  if (dense && method.evicts())
    return Invalid(
        "--kv-dense-layers {}: all {} layers are dense, and dense layers never evict; --kv-limit could not hold",
        method.dense_layers, config.layers);
  const int64_t always = std::max<int64_t>(rule.min_rows, int64_t{rule.sinks} + rule.window + 1);
  const bool all = rule.force_count == 0 && always >= max_tokens && !method.evicts();
  if (all || dense) method.select = SelectKind::kAll;
  return method;
}

}  // namespace infinigen
