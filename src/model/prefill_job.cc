#include "model/prefill_job.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace infinigen {

void ColumnSums::Add(std::span<const float> rows, int64_t per_kv) {
  const int64_t width = per_kv * kv_heads_ * head_dim_;
  CHECK(static_cast<int64_t>(rows.size()) % width == 0);
  std::vector<float> rotated(static_cast<size_t>(head_dim_));
  for (const float* x = rows.data(); x != rows.data() + rows.size(); x += head_dim_) {
    const int64_t head = (x - rows.data()) % width / head_dim_ / per_kv;
    const float* matrix = rotation_.data() + head * head_dim_ * head_dim_;
    std::fill(rotated.begin(), rotated.end(), 0.0f);
    for (int64_t i = 0; i < head_dim_; ++i)
      for (int64_t c = 0; c < head_dim_; ++c) rotated[static_cast<size_t>(c)] += x[i] * matrix[i * head_dim_ + c];
    for (int64_t c = 0; c < head_dim_; ++c)
      sums_[static_cast<size_t>(head * head_dim_ + c)] +=
          static_cast<double>(std::fabs(rotated[static_cast<size_t>(c)]));
  }
}

}  // namespace infinigen
