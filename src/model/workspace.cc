#include "model/workspace.h"

#include <algorithm>

namespace infinigen {
namespace {

// Rows of logits computed at once when a whole prompt's are wanted: enough to amortise reading the head, 16 MiB at 128K
// words.
constexpr int64_t kLogitRows = 32;

class Carver {
 public:
  explicit Carver(std::byte* base) : base_(base) {}

  std::byte* Take(size_t bytes) {
    std::byte* place = base_ == nullptr ? nullptr : base_ + used_;
    used_ += (bytes + 63) / 64 * 64;
    return place;
  }
  Tensor Matrix(DType type, int64_t rows, int64_t cols) {
    return {Take(static_cast<size_t>(rows * cols) * SizeOf(type)), type, rows, cols, cols};
  }
  template <class T>
  T* Array(int64_t count) {
    return reinterpret_cast<T*>(Take(static_cast<size_t>(count) * sizeof(T)));
  }
  size_t used() const { return used_; }

 private:
  std::byte* base_;
  size_t used_ = 0;
};

Workspace Walk(Carver& carver, const ModelConfig& config, const PoolOptions& pool, int64_t max_batch, int64_t chunk,
               DType activation) {
  const int64_t tokens = std::max(max_batch, chunk);
  const int64_t extents = (pool.max_tokens + kExtentTokens - 1) / kExtentTokens;
  const bool gated = config.mlp == MlpKind::kGatedSilu;
  const bool rotates = config.positions == PositionKind::kRope;
  Workspace w;
  w.step_residual = carver.Matrix(activation, max_batch, config.hidden);
  w.normed = carver.Matrix(activation, tokens, config.hidden);
  if (config.has_projections()) w.narrow = carver.Matrix(activation, tokens, config.embed_dim);
  w.q = carver.Matrix(activation, tokens, config.heads * config.head_dim);
  w.k = carver.Matrix(activation, tokens, config.kv_heads * config.head_dim);
  w.v = carver.Matrix(activation, tokens, config.kv_heads * config.head_dim);
  w.mixed = carver.Matrix(activation, tokens, config.heads * config.head_dim);
  if (gated) w.gate = carver.Matrix(activation, tokens, config.ffn);
  w.up = carver.Matrix(activation, tokens, config.ffn);
  if (rotates) w.rope = carver.Matrix(DType::kF32, tokens, config.head_dim);
  if (rotates) w.frequencies = carver.Matrix(DType::kF32, 1, config.head_dim / 2);
  w.logits = carver.Matrix(DType::kF32, std::max(max_batch, kLogitRows), config.vocab);
  w.ids = carver.Array<int32_t>(tokens);
  w.slots = carver.Array<int32_t>(tokens);
  w.rows = carver.Array<int32_t>(tokens);
  w.tables = carver.Array<std::byte*>(config.layers * pool.max_sequences * extents);
  return w;
}

}  // namespace

size_t Workspace::Bytes(const ModelConfig& config, const PoolOptions& pool, int64_t max_batch, int64_t chunk,
                        DType activation) {
  Carver carver(nullptr);
  Walk(carver, config, pool, max_batch, chunk, activation);
  return carver.used();
}

Workspace Workspace::Carve(std::byte* base, const ModelConfig& config, const PoolOptions& pool, int64_t max_batch,
                           int64_t chunk, DType activation) {
  Carver carver(base);
  return Walk(carver, config, pool, max_batch, chunk, activation);
}

}  // namespace infinigen
