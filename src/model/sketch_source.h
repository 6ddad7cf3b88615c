// Where an executor's sketch bases come from: made once for every layer, or chosen anew by each prompt.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "kv/ids.h"
#include "kv/method.h"

namespace infinigen {

struct SketchSource {
  std::vector<SketchMatrices> bases;  // [layers]; those of layers without sketches are not looked at

  // For methods whose columns are chosen by the prompt. rotation: [kv_heads][head_dim][head_dim], by whose columns the
  // sums Σ|qA| + Σ|kA| are taken; choose: the basis of the columns with the largest sums [kv_heads][head_dim].
  std::function<std::vector<float>(LayerId)> rotation;
  std::function<SketchMatrices(LayerId, std::span<const double> sums)> choose;
};

// Sums over a prompt of what every column holds, of one layer. Host memory.
class ColumnSums {
 public:
  ColumnSums(std::vector<float> rotation, int64_t kv_heads, int64_t head_dim)
      : rotation_(std::move(rotation)),
        kv_heads_(kv_heads),
        head_dim_(head_dim),
        sums_(static_cast<size_t>(kv_heads * head_dim)) {}

  // rows [count][per_kv · kv_heads · head_dim]: queries (per_kv heads to a KV head) or keys (one).
  void Add(std::span<const float> rows, int64_t per_kv);
  std::span<const double> sums() const { return sums_; }

 private:
  std::vector<float> rotation_;  // [kv_heads][head_dim][head_dim]
  int64_t kv_heads_, head_dim_;
  std::vector<double> sums_;  // [kv_heads][head_dim]
};

}  // namespace infinigen
