#include "runtime/kv_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

namespace infinigen {
namespace {

// Without a limit, h2o and streaming take kDefaultLimit.
constexpr std::array<KvPreset, 8> kPresets = {{
    {.name = "full", .summary = "attend to every entry"},
    {.name = "infinigen", .summary = "attend to the entries that sketches rank highest", .select = &kSelectSketch},
    {.name = "oracle", .summary = "attend to the truly best entries; slow, for measurement", .select = &kSelectOracle},
    {.name = "h2o", .summary = "retain the most attended entries", .evict = &kRetainH2o, .sinks = 0},
    {.name = "streaming", .summary = "retain only the first and the newest entries", .evict = &kRetainStreaming},
    {.name = "int8", .summary = "attend to every entry, stored in 8 bits", .type = StoreType::kInt8},
    {.name = "int4", .summary = "attend to every entry, keys stored in 6 bits, values in 4", .type = StoreType::kInt4},
    // As published: the best pages, without sinks and window.
    {.name = "quest",
     .summary = "attend to the pages whose bounds rank highest",
     .select = &kSelectQuest,
     .alpha = std::numeric_limits<float>::infinity(),
     .sinks = 0,
     .window = 0,
     .min_rows = kQuestMinRows,
     .dense_layers = 2},
}};

std::vector<std::string_view> PoliciesWithoutSelection() {
  std::vector<std::string_view> names;
  for (const RetainPolicy* policy : RetainPolicies())
    if (!policy->needs_selection()) names.push_back(policy->name);
  return names;
}

// Presets that evict have a default limit.
bool HasLimit(const KvRequest& request) {
  return request.limit_share || request.limit_bytes || request.preset->evict != nullptr;
}

Status CheckHotSet(const KvRequest& request) {
  const double hits = request.force_hits.value_or(0);
  if (hits >= 1) return Invalid("--kv-force-hits {}: must be below 1, because some entries are always fetched", hits);
  if (hits > 0 && request.wants_hot_set())
    return Invalid(
        "--kv-force-hits replaces the hot set, so it cannot be combined with --kv-hot; pass --kv-hot 0 or leave it "
        "out");
  return Ok();
}

Status CheckEviction(const KvRequest& request) {
  const RetainPolicy* policy = request.eviction();
  const SelectMethod& select = request.selection();
  if (policy == nullptr) {
    if (!request.limit_share || request.one_of_several) return Ok();
    return Invalid("--kv-limit {:.6g}%: a share needs an eviction policy; pass --kv-evict POLICY, or a size like 8GiB",
                   100 * *request.limit_share);
  }
  if (!HasLimit(request))
    return Invalid("--kv-evict {} needs a limit: pass --kv-limit, as a size or a share like 80%", policy->name);
  if (policy->needs_selection() && &select == &kSelectAll)
    return Invalid("--kv-evict {} ranks entries by selections, and --kv-select all makes none; use one of {}",
                   policy->name, fmt::join(PoliciesWithoutSelection(), ", "));
  if (policy->sums_attention && &select != &kSelectAll)
    return Invalid("--kv-evict {} needs the attention to every retained entry; pass --kv-select all", policy->name);
  if (!select.rewrites_rows)
    return Unsupported(
        "--kv-evict {} cannot be combined with --kv-select {}: a page's index cannot drop an evicted key", policy->name,
        select.name);
  if (!select.EvictsIndex())
    return Unsupported("--kv-evict {} cannot be combined with --kv-select {}: the backends cannot evict from its index",
                       policy->name, select.name);
  if (request.prompt_columns && select.uses_basis)
    return Unsupported("--kv-columns prompt cannot be combined with --kv-evict {}", policy->name);
  return Ok();
}

// Why a method cannot have a tail; empty if it can.
std::string NoTail(const KvRequest& request) {
  const SelectMethod& select = request.selection();
  if (&select == &kSelectAll) return "everything is attended to, so nothing is left for a tail";
  if (!select.uses_basis) return fmt::format("--kv-select {} has no sketches of keys", select.name);
  if (request.projection_kind() == ProjectionKind::kNone)
    return "--kv-projection none has no mean of keys, so scores of sketches have no level";
  if (request.prompt_columns) return "--kv-columns prompt makes sketches after the prompt, without its values";
  return {};
}

// Late rows are those that a guess missed, by the scores of the tail. `from` as far as it is known.
Status CheckLate(const KvRequest& request, std::optional<GuessSource> from) {
  if (request.late.value_or(0) == 0 || request.one_of_several) return Ok();
  const std::string reason = NoTail(request);
  if (!reason.empty()) return Unsupported("--kv-late {}: {}", *request.late, reason);
  if (!request.has_tail())
    return Invalid("--kv-late {}: late rows are chosen by the scores of the tail; leave out --kv-tail off",
                   *request.late);
  if (from == GuessSource::kSelf)
    return Invalid(
        "--kv-late {}: with --kv-from self the layer's own query selects, so no row is missed; pass --kv-from "
        "prev-layer, prev-mid or prev-step",
        *request.late);
  return Ok();
}

Status CheckTail(const KvRequest& request) {
  const std::string reason = NoTail(request);
  if (request.tail == true && !reason.empty() && !request.one_of_several)
    return Unsupported("--kv-tail on: {}", reason);
  if (!request.mass) return Ok();
  const SelectMethod& select = request.selection();
  if (!select.uses_basis && !request.one_of_several)
    return Unsupported("--kv-mass: --kv-select {} has no sketches to estimate attention from", select.name);
  if (request.alpha && std::isfinite(*request.alpha))
    return Invalid("--kv-mass decides how many entries are selected, so it cannot be combined with --kv-alpha");
  if (request.mean_counts)
    return Invalid("--kv-mass decides for each head, so it cannot be combined with --kv-counts mean");
  return Ok();
}

Status CheckSketches(const KvRequest& request) {
  const SelectMethod& select = request.selection();
  if (request.sketch && (request.ratio || request.sketch_type))
    return Invalid(
        "--kv-sketch describes sketches whole, so it cannot be combined with --kv-ratio or --kv-sketch-type");
  if (!request.prompt_columns || &select == &kSelectAll) return Ok();
  if (select.index != nullptr && !select.uses_basis)
    return Unsupported("--kv-columns prompt: {} has no sketches, so there are no columns to choose", select.name);
  if (select.uses_basis && request.projection_kind() == ProjectionKind::kPair)
    return Unsupported(
        "--kv-columns prompt: needs one projection for queries and keys, and --kv-projection pair has two; pass "
        "--kv-projection rotation or none");
  return Ok();
}

// A forced count includes sinks and window, so these shrink to fit into it.
SelectRule RuleOf(const KvRequest& request) {
  const KvPreset& preset = *request.preset;
  const bool tail = request.has_tail();
  SelectRule rule{.alpha = request.alpha.value_or(request.mass ? std::numeric_limits<float>::infinity() : preset.alpha),
                  .cap = request.cap.value_or(request.mass ? kMassCap
                                              : tail       ? kTailCap
                                                           : kDefaultCap),
                  .min_rows = request.min_rows.value_or(tail ? kTailMinRows : preset.min_rows),
                  .sinks = request.sinks.value_or(preset.sinks),
                  .window = request.window.value_or(tail ? kTailWindow : preset.window),
                  .whole_rows = tail && !request.min_rows ? kTailWholeRows : 0,
                  .force_count = request.force_count,
                  .mass = request.mass ? SelectRule::MassOf(*request.mass) : 0.0f,
                  .tail = tail,
                  .late = tail ? request.late.value_or(kTailLateRows) : 0};
  if (rule.force_count > 0) {
    rule.sinks = std::min(rule.sinks, rule.force_count - 1);
    rule.window = std::min(rule.window, rule.force_count - 1 - rule.sinks);
  }
  return rule;
}

// Entries that are fetched over a link must be requested a layer ahead, so the default is a guess
// (docs/decisions/0008).
GuessSource SourceOf(const KvRequest& request, bool fetches) {
  const bool may_guess = request.selection().can_guess && request.dense_layers != 0;
  return request.from.value_or(fetches && may_guess ? GuessSource::kPrevLayer : GuessSource::kSelf);
}

// The sketches of one KV head. A description that asks for more numbers than a head has gets as many as it has.
SketchLayout SketchOf(const KvRequest& request, int64_t head_dim, bool evicts) {
  const bool tail = request.has_tail();
  SketchLayout layout{.type = request.sketch_type.value_or(tail ? SketchType::kInt4 : SketchType::kInt8),
                      .dims = SketchDims(head_dim, request.ratio.value_or(tail ? kTailRatio : kDefaultRatio))};
  if (const std::optional<SketchSpec>& spec = request.sketch) {
    const double share = spec->ratio.value_or(static_cast<double>(spec->dims) / static_cast<double>(head_dim));
    layout.type = spec->type;
    layout.dims = SketchDims(head_dim, std::min(share, 1.0));
    layout.scale_dims = spec->scale_dims;
  }
  if (layout.scale_dims >= layout.dims || !layout.has_scales()) layout.scale_dims = 0;
  if (tail) layout.value_dims = kTailValueDims;
  if (tail && !evicts) layout.mean_dims = head_dim;
  return layout;
}

RetainLimit LimitOf(const KvRequest& request, int64_t sequences) {
  return {.share = request.limit_share.value_or(kDefaultLimit),
          .bytes = request.limit_bytes.value_or(0),
          .sequences = sequences};
}

}  // namespace

std::span<const KvPreset> KvPresets() { return kPresets; }

const KvPreset* FindPreset(std::string_view name) {
  const auto found = std::find_if(kPresets.begin(), kPresets.end(), [&](const KvPreset& p) { return p.name == name; });
  return found == kPresets.end() ? nullptr : &*found;
}

const RetainPolicy* KvRequest::eviction() const {
  if (evict) return *evict;
  // With a share as limit, methods that select single rows evict the least selected row by default.
  const bool by_rows = selects() && selection().page_rows == 1;
  return limit_share && by_rows ? &kRetainCounter : preset->evict;
}

ProjectionKind KvRequest::projection_kind() const {
  // Columns can be chosen by a prompt only if queries and keys share one projection, which the pair does not.
  return projection.value_or(prompt_columns ? ProjectionKind::kRotation : ProjectionKind::kPair);
}

bool KvRequest::has_tail() const { return tail.value_or(true) && NoTail(*this).empty(); }

Status CheckKvRequest(const KvRequest& request) {
  if (request.home == KvHome::kDisk)
    return Unsupported("--kv-home disk:{} is not supported; use host or device", request.disk_path);
  RETURN_IF_ERROR(CheckHotSet(request));
  RETURN_IF_ERROR(CheckEviction(request));
  RETURN_IF_ERROR(CheckSketches(request));
  RETURN_IF_ERROR(CheckTail(request));
  RETURN_IF_ERROR(CheckLate(request, request.from));
  const bool guesses = request.selects() && request.from.value_or(GuessSource::kSelf) != GuessSource::kSelf;
  if (guesses && request.dense_layers == 0)
    return Invalid(
        "--kv-from {} guesses a query before its layer runs, so the first layer must be dense; pass "
        "--kv-dense-layers 1 or more",
        Name(*request.from));
  return Ok();
}

Result<KvMethod> ResolveMethod(const KvRequest& request, const MethodInputs& inputs) {
  const KvPreset& preset = *request.preset;
  const ModelConfig& config = inputs.config;
  const GuessSource from = SourceOf(request, inputs.fetches);
  RETURN_IF_ERROR(CheckLate(request, from));
  const int64_t dense_layers =
      request.dense_layers.value_or(std::max<int64_t>(preset.dense_layers, from == GuessSource::kSelf ? 0 : 2));
  // Layers with a window attend to all of it and keep nothing else, whatever the method.
  const auto windowless = [&](int64_t first) {
    return std::count_if(config.specs.begin() + std::min<int64_t>(first, std::ssize(config.specs)), config.specs.end(),
                         [](const LayerSpec& spec) { return spec.window == 0; });
  };
  const RetainPolicy* const retain = windowless(0) == 0 ? nullptr : request.eviction();
  if (windowless(dense_layers) == 0 && retain != nullptr)
    return Invalid(
        "--kv-dense-layers {}: all {} layers would be dense, and dense layers never evict, so --kv-limit cannot be met",
        dense_layers, config.layers);

  SelectRule rule = RuleOf(request);
  if (from == GuessSource::kSelf) rule.late = 0;
  const SketchLayout sketch = SketchOf(request, config.head_dim, retain != nullptr);
  const int64_t always =
      std::max<int64_t>({rule.min_rows, int64_t{rule.sinks} + rule.window + 1, int64_t{rule.whole_rows}});
  const bool whole = rule.force_count == 0 && always >= inputs.max_tokens && retain == nullptr;
  const SelectMethod& select = whole || windowless(dense_layers) == 0 ? kSelectAll : request.selection();
  const bool any_cap = inputs.any_cap && &select != &kSelectAll && retain == nullptr;
  return KvMethod{.preset = preset.name,
                  .select = &select,
                  .from = from,
                  .rule = rule,
                  .largest_cap = any_cap ? 1.0 : 0.0,
                  .mean_counts = request.mean_counts,
                  .dense_layers = dense_layers,
                  .sketch = sketch,
                  .ratio = static_cast<double>(sketch.dims) / static_cast<double>(config.head_dim),
                  .projection = request.projection_kind(),
                  .prompt_columns = request.prompt_columns && request.selection().uses_basis,
                  .measure_mass = request.measure_mass,
                  .retain = retain,
                  .limit = LimitOf(request, inputs.sequences)};
}

}  // namespace infinigen
