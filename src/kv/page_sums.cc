#include "kv/page_sums.h"

#include <cmath>

#include "base/check.h"

namespace infinigen {

void AddToPageSum(std::span<float> sum, int64_t row, std::span<const float> key) {
  CHECK(sum.size() == key.size());
  for (size_t i = 0; i < key.size(); ++i) {
    const float number = std::isfinite(key[i]) ? key[i] : 0.0f;
    sum[i] = row % kPageRows == 0 ? number : sum[i] + number;
  }
}

float PageMeanScore(std::span<const float> sum, std::span<const float> query) {
  CHECK(sum.size() == query.size());
  float score = 0;
  for (size_t i = 0; i < query.size(); ++i) score += query[i] * sum[i];
  return score / static_cast<float>(kPageRows);
}

}  // namespace infinigen
