#include "runtime/kv_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
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
    {.name = "int4", .summary = "attend to every entry, stored in 4 bits", .type = StoreType::kInt4},
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

Status CheckSketches(const KvRequest& request) {
  const SelectMethod& select = request.selection();
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
  SelectRule rule{.alpha = request.alpha.value_or(preset.alpha),
                  .cap = request.cap,
                  .min_rows = request.min_rows.value_or(preset.min_rows),
                  .sinks = request.sinks.value_or(preset.sinks),
                  .window = request.window.value_or(preset.window),
                  .force_count = request.force_count};
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

Status CheckKvRequest(const KvRequest& request) {
  if (request.home == KvHome::kDisk)
    return Unsupported("--kv-home disk:{} is not supported; use host or device", request.disk_path);
  RETURN_IF_ERROR(CheckHotSet(request));
  RETURN_IF_ERROR(CheckEviction(request));
  RETURN_IF_ERROR(CheckSketches(request));
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

  const SelectRule rule = RuleOf(request);
  const int64_t always = std::max<int64_t>(rule.min_rows, int64_t{rule.sinks} + rule.window + 1);
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
                  .sketch_type = request.sketch_type,
                  .ratio = request.ratio,
                  .sketch_dims = SketchDims(config.head_dim, request.ratio),
                  .projection = request.projection_kind(),
                  .prompt_columns = request.prompt_columns && request.selection().uses_basis,
                  .measure_mass = request.measure_mass,
                  .retain = retain,
                  .limit = LimitOf(request, inputs.sequences)};
}

}  // namespace infinigen
