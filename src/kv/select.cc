#include "kv/select.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "base/check.h"

namespace infinigen {
namespace {

constexpr std::array<const SelectMethod*, 5> kMethods = {&kSelectAll, &kSelectSketch, &kSelectQuest, &kSelectPageMean,
                                                         &kSelectOracle};

}  // namespace

std::span<const SelectMethod* const> SelectMethods() { return kMethods; }

const SelectMethod* FindSelectMethod(std::string_view name) {
  const auto found = std::find_if(kMethods.begin(), kMethods.end(), [&](const auto* m) { return m->name == name; });
  return found == kMethods.end() ? nullptr : *found;
}

float SoftCapped(float score, float cap) {
  if (cap <= 0) return score;
  return static_cast<float>(static_cast<double>(cap) *
                            std::tanh(static_cast<double>(score) / static_cast<double>(cap)));
}

std::vector<float> RelativeScores(std::span<const float> scores, int64_t group) {
  CHECK(group > 0 && scores.size() % static_cast<size_t>(group) == 0);
  const size_t visible = scores.size() / static_cast<size_t>(group);
  std::vector<float> relative(visible, std::numeric_limits<float>::quiet_NaN());
  for (size_t g = 0; g < static_cast<size_t>(group); ++g) {
    const std::span<const float> head = scores.subspan(g * visible, visible);
    float largest = -std::numeric_limits<float>::infinity();
    for (const float score : head)
      if (score > largest) largest = score;
    for (size_t j = 0; j < visible; ++j) {
      const float r = head[j] - largest;
      if (std::isnan(relative[j]) || r > relative[j]) relative[j] = r;
    }
  }
  return relative;
}

int64_t CountPassing(std::span<const float> relative, float alpha) {
  return std::count_if(relative.begin(), relative.end(), [&](float r) { return r >= -alpha; });
}

int64_t CountForMass(std::span<const float> scores, int64_t group, float mass) {
  CHECK(group > 0 && scores.size() % static_cast<size_t>(group) == 0);
  const size_t visible = scores.size() / static_cast<size_t>(group);
  std::vector<uint64_t> shares(visible);
  for (size_t g = 0; g < static_cast<size_t>(group); ++g) {
    const std::span<const float> head = scores.subspan(g * visible, visible);
    float largest = -std::numeric_limits<float>::infinity();
    for (const float score : head)
      if (score > largest) largest = score;
    const auto weight = [&](float score) { return score <= largest ? std::exp(score - largest) : 0.0f; };  // NaN: 0
    uint64_t sum = 0;
    for (const float score : head) sum += static_cast<uint64_t>(weight(score) * kMassUnit);
    if (sum == 0) continue;
    const float per_unit = kMassUnit / static_cast<float>(sum) * kMassUnit;
    for (size_t j = 0; j < visible; ++j)
      shares[j] = std::max(shares[j], static_cast<uint64_t>(weight(head[j]) * per_unit));
  }
  std::sort(shares.begin(), shares.end(), std::greater<>());
  const uint64_t target = MassTarget(mass, std::accumulate(shares.begin(), shares.end(), uint64_t{0}));
  uint64_t sum = 0;
  int64_t count = 0;
  for (; count < static_cast<int64_t>(visible) && sum < target; ++count) sum += shares[static_cast<size_t>(count)];
  return count;
}

int64_t ChosenCount(const SelectRule& rule, int64_t passing, int64_t visible, int64_t n, int64_t page) {
  const int64_t most = std::max<int64_t>(rule.Capped(n), rule.min_rows);
  return WholePages(std::min(visible, std::clamp<int64_t>(passing, rule.min_rows, most)), page);
}

SelectedRows ChooseRows(std::span<const float> relative, const SelectRule& rule, int64_t count,
                        const RetainedRows& retained, int64_t page) {
  const int64_t visible = static_cast<int64_t>(relative.size()), n = retained.n;
  CHECK(visible <= n && count <= visible);
  const auto is_extra = [&](int64_t row) {
    const int64_t position = retained.PositionOf(row);
    return position < rule.sinks || position >= retained.position - rule.window;
  };

  std::vector<int64_t> candidates;
  for (int64_t row = 0; row < visible; ++row) {
    if (std::isnan(relative[static_cast<size_t>(row)])) continue;
    if (rule.force_count == 0 || page > 1 || !is_extra(row)) candidates.push_back(row);
  }
  int64_t extras = 0;
  for (int64_t row = 0; row < n; ++row) extras += is_extra(row) ? 1 : 0;
  if (rule.force_count > 0) count = std::max<int64_t>(0, std::min<int64_t>(rule.force_count, n) - extras);
  count = std::min(count / page * page, static_cast<int64_t>(candidates.size()));
  const auto before = [&](int64_t a, int64_t b) {
    const float ra = relative[static_cast<size_t>(a)], rb = relative[static_cast<size_t>(b)];
    return ra != rb ? ra > rb : retained.PositionOf(a) > retained.PositionOf(b);
  };
  std::sort(candidates.begin(), candidates.end(), before);
  candidates.resize(static_cast<size_t>(count));

  std::vector<bool> attended(static_cast<size_t>(n));
  for (const int64_t row : candidates) attended[static_cast<size_t>(row)] = true;
  for (int64_t row = 0; row < n; ++row)
    if (is_extra(row)) attended[static_cast<size_t>(row)] = true;
  SelectedRows result{.rows = {}, .chosen = count};
  for (int64_t row = 0; row < n; ++row)
    if (attended[static_cast<size_t>(row)]) result.rows.push_back(static_cast<int32_t>(row));
  return result;
}

std::vector<int32_t> ChooseLateRows(std::span<const float> relative, std::span<const int32_t> attended, int64_t late,
                                    const RetainedRows& retained) {
  std::vector<int32_t> candidates;
  for (int32_t row = 0; row < std::ssize(relative); ++row)
    if (!std::isnan(relative[static_cast<size_t>(row)]) && !std::binary_search(attended.begin(), attended.end(), row))
      candidates.push_back(row);
  std::sort(candidates.begin(), candidates.end(), [&](int32_t a, int32_t b) {
    const float ra = relative[static_cast<size_t>(a)], rb = relative[static_cast<size_t>(b)];
    return ra != rb ? ra > rb : retained.PositionOf(a) > retained.PositionOf(b);
  });
  candidates.resize(std::min(candidates.size(), static_cast<size_t>(late)));
  std::sort(candidates.begin(), candidates.end());
  return candidates;
}

void MergeLateRows(std::span<const int32_t> attended, std::span<const int32_t> late, int32_t* all, int32_t* items) {
  auto next = late.begin();
  int32_t count = 0;
  const auto put_late = [&] {
    all[count] = *next++;
    *items++ = count++;
  };
  for (const int32_t row : attended) {
    while (next != late.end() && *next < row) put_late();
    all[count++] = row;
  }
  while (next != late.end()) put_late();
}

}  // namespace infinigen
