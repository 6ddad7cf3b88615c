// PrefillJob: a prefill in progress, with the memory that it needs. Made and run by the decoder only.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "model/executor.h"
#include "model/workspace.h"
#include "tensor/buffer.h"

namespace infinigen {

// For prompts that choose their own sketch columns: Σ|qA| + Σ|kA| over the rows of a prompt in one layer, where A is
// the rotation of the layer's skew. Host memory.
class ColumnSums {
 public:
  // rotation [kv_heads][head_dim][head_dim]
  ColumnSums(std::vector<float> rotation, int64_t kv_heads, int64_t head_dim)
      : rotation_(std::move(rotation)),
        kv_heads_(kv_heads),
        head_dim_(head_dim),
        sums_(static_cast<size_t>(kv_heads * head_dim)) {}

  // rows [count][per_kv · kv_heads · head_dim]: queries (per_kv heads for each KV head) or keys (per_kv = 1).
  void Add(std::span<const float> rows, int64_t per_kv);
  std::span<const double> sums() const { return sums_; }  // [kv_heads][head_dim]

 private:
  std::vector<float> rotation_;
  int64_t kv_heads_, head_dim_;
  std::vector<double> sums_;
};

struct PrefillJob {
  SeqSlot slot;
  int64_t first_row = 0;  // of tokens[0]
  PrefillKind kind = PrefillKind::kDense;
  std::vector<int32_t> tokens;

  Buffer memory;             // holds residual and guess
  Tensor residual;           // [tokens][hidden]
  Tensor guess;              // [tokens][hidden], for steps whose layers guess from the layer before
  Buffer prompt_memory;      // holds prompt_cache
  PromptCache prompt_cache;  // only if layers evict

  // Only where the prompt chooses sketch columns; of next_layer.
  std::optional<ColumnSums> columns;
  std::vector<float> keys;  // [tokens][kv_heads·head_dim]

  int64_t next_layer = 0;
  int64_t next_token = 0;            // first token of the next unit's chunk
  std::array<Ticket, 4> enqueued{};  // ends of the latest units
  size_t units = 0;                  // units enqueued so far

  // Memory that a dense prefill of `tokens` tokens holds, without the stages of a remote pool.
  static uint64_t DenseBytes(const WorkspaceShape& shape, int64_t tokens) {
    if (tokens == 0) return 0;
    return static_cast<uint64_t>(tokens * shape.config.hidden) * sizeof(float) +
           (shape.method.evicts() ? PromptCache::Bytes(shape, tokens) : 0);
  }
};

}  // namespace infinigen
