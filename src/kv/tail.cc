#include "kv/tail.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "kv/index.h"

namespace infinigen {

TailSums SumTail(const SketchLayout& layout, const std::byte* head, std::span<const float> scores,
                 std::span<const int32_t> selected, int64_t complete) {
  CHECK(layout.has_values());
  std::vector<int32_t> rows;
  auto next = selected.begin();
  for (int32_t row = 0; row < std::ssize(scores); ++row) {
    while (next != selected.end() && *next < row) ++next;
    const bool is_selected = next != selected.end() && *next == row;
    if (!is_selected && !std::isnan(scores[static_cast<size_t>(row)])) rows.push_back(row);
  }
  TailSums tail{.values = std::vector<float>(static_cast<size_t>(layout.value_dims)),
                .means = std::vector<float>(static_cast<size_t>(layout.mean_dims))};
  for (const int32_t row : rows) tail.maximum = std::max(tail.maximum, scores[static_cast<size_t>(row)]);
  if (!std::isfinite(tail.maximum)) return tail;
  for (const int32_t row : rows) {
    const float weight = std::exp(scores[static_cast<size_t>(row)] - tail.maximum);
    const std::byte* block = head + static_cast<size_t>(row / kSketchBlock) * layout.block_bytes();
    const std::vector<float> value = LoadValueSketch(layout, block, row % kSketchBlock);
    tail.sum += weight;
    for (size_t i = 0; i < value.size(); ++i) tail.values[i] += weight * value[i];
    if (!layout.has_means() || row >= complete) continue;
    const std::vector<float> mean = LoadBlockMean(layout, block);
    for (size_t i = 0; i < mean.size(); ++i) tail.means[i] += weight * mean[i];
  }
  return tail;
}

float AddTail(const TailSums& tail, const TailBasis& basis, int64_t kv_head, float maximum, float sum,
              std::span<float> out) {
  if (!(tail.sum > 0)) return 0;
  const float joint = std::max(maximum, tail.maximum);
  const float inside = sum * std::exp(maximum - joint), factor = std::exp(tail.maximum - joint);
  const float total = inside + tail.sum * factor;
  const float* mean = basis.ValueMean(kv_head);
  const float* columns = basis.Value(kv_head);
  // What the means of blocks have in the directions of the sketches is left to the sketches.
  std::vector<float> sketch = tail.values;
  for (size_t i = 0; i < tail.means.size(); ++i)
    for (size_t c = 0; c < sketch.size(); ++c) sketch[c] -= columns[i * sketch.size() + c] * tail.means[i];
  for (size_t i = 0; i < out.size(); ++i) {
    float value = tail.sum * mean[i] + (tail.means.empty() ? 0.0f : tail.means[i]);
    for (size_t c = 0; c < sketch.size(); ++c) value += columns[i * sketch.size() + c] * sketch[c];
    out[i] = (out[i] * inside + value * factor) / total;
  }
  return tail.sum * factor / total;
}

}  // namespace infinigen
