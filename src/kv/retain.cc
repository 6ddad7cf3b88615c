#include "kv/retain.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/check.h"

namespace infinigen {
namespace {

constexpr std::array<const RetainPolicy*, 6> kPolicies = {&kRetainCounter, &kRetainLru,       &kRetainFifo,
                                                          &kRetainH2o,     &kRetainStreaming, &kRetainRandom};

}  // namespace

std::span<const RetainPolicy* const> RetainPolicies() { return kPolicies; }

const RetainPolicy* FindRetainPolicy(std::string_view name) {
  const auto found = std::find_if(kPolicies.begin(), kPolicies.end(), [&](const auto* p) { return p->name == name; });
  return found == kPolicies.end() ? nullptr : *found;
}

int64_t QuotaRule::Quota(int64_t final_tokens) const {
  if (limit.bytes == 0) {
    // ⌊share · n⌋ with a margin for rounding: 0.29 · 100 is 29, though the double 0.29 is slightly less.
    const int64_t rows = static_cast<int64_t>(limit.share * static_cast<double>(final_tokens) + 1e-9);
    return std::clamp<int64_t>(rows, 1, final_tokens);
  }
  const uint64_t dense = FixedBytes(final_tokens);
  CHECK(layers > dense_layers && row_bytes > 0);
  if (dense >= SequenceBytes()) return 0;
  const uint64_t rows = (SequenceBytes() - dense) / (static_cast<uint64_t>(layers - dense_layers) * row_bytes);
  return static_cast<int64_t>(std::min(rows, static_cast<uint64_t>(final_tokens)));
}

uint64_t QuotaRule::FixedBytes(int64_t final_tokens) const {
  const int64_t ring = std::min(ring_rows, (final_tokens + kExtentTokens - 1) / kExtentTokens * kExtentTokens);
  return static_cast<uint64_t>(dense_layers * final_tokens + windowed_layers * ring) * row_bytes;
}

int64_t QuotaRule::LargestQuota(int64_t max_tokens) const {
  if (limit.bytes == 0) return Quota(max_tokens);
  // Longer sequences leave fewer bytes to the evicting layers, shorter ones need fewer rows. The quota is largest for a
  // sequence that just fits without eviction.
  const uint64_t fit = SequenceBytes() / (static_cast<uint64_t>(layers) * row_bytes);
  return std::clamp<int64_t>(static_cast<int64_t>(std::min(fit, static_cast<uint64_t>(max_tokens))), 1, max_tokens);
}

int64_t AssignRow(std::span<const int32_t> positions, std::span<const float> priorities, const RetainRule& rule,
                  int64_t position, int64_t quota) {
  CHECK(positions.size() == priorities.size() && static_cast<int64_t>(positions.size()) <= quota);
  const int64_t rows = static_cast<int64_t>(positions.size());
  if (rows < quota) return rows;
  const Protection protection(position, quota, rule.sinks);
  int64_t victim = -1;
  for (int64_t row = 0; row < rows; ++row) {
    const size_t r = static_cast<size_t>(row), v = static_cast<size_t>(victim);
    if (protection.Covers(positions[r])) continue;
    const float priority = ComparablePriority(priorities[r]),
                least = victim < 0 ? priority : ComparablePriority(priorities[v]);
    if (victim < 0 || priority < least || (priority == least && positions[r] < positions[v])) victim = row;
  }
  CHECK(victim >= 0);
  return victim;
}

void UpdatePriorities(const RetainRule& rule, const SelectRule& select, int64_t position, std::span<const int32_t> rows,
                      std::span<const int32_t> positions, std::span<float> priorities) {
  if (rule.on_select == PriorityUpdate::kKeep) return;
  float largest = 0;
  for (const int32_t row : rows) {
    const int64_t of = positions[static_cast<size_t>(row)];
    if (of < select.sinks || of >= position - select.window) continue;
    float& priority = priorities[static_cast<size_t>(row)];
    priority = rule.on_select == PriorityUpdate::kCount ? priority + 1 : static_cast<float>(position);
    largest = std::max(largest, priority);
  }
  if (rule.on_select == PriorityUpdate::kCount && largest > kPriorityLimit)
    for (float& priority : priorities) priority = std::floor(priority / 2);
}

std::vector<int32_t> Survivors(std::span<const float> priorities, const RetainRule& rule, int64_t quota) {
  const int64_t rows = static_cast<int64_t>(priorities.size());
  CHECK(quota > 0 && quota <= rows);
  // Protection as it applies when the next token is appended.
  const Protection protection(rows, quota, rule.sinks);
  std::vector<int32_t> survivors, others;
  for (int32_t row = 0; row < rows; ++row) (protection.Covers(row) ? survivors : others).push_back(row);
  std::sort(others.begin(), others.end(), [&](int32_t a, int32_t b) {
    const float pa = ComparablePriority(priorities[static_cast<size_t>(a)]),
                pb = ComparablePriority(priorities[static_cast<size_t>(b)]);
    return pa != pb ? pa > pb : a > b;
  });
  others.resize(static_cast<size_t>(quota) - survivors.size());
  survivors.insert(survivors.end(), others.begin(), others.end());
  std::sort(survivors.begin(), survivors.end());
  return survivors;
}

}  // namespace infinigen
