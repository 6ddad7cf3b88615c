// The shapes that attention's kernels and their caller share.
//
// The arithmetic of one query head, whichever path computes it:
//   entries are cut into blocks of kAttentionBlock, blocks into chunks of kAttentionChunk entries, both from entry 0
//   on; score = Σ over head_dim in ascending order of (query · scale · log2 e) · key; a block gives its maximum, Σ
//   2^(score - maximum) and Σ 2^(score - maximum) · value in ascending entry order; the blocks of a chunk are merged in
//   ascending order, then the chunks.
// So a chunk can be computed by any thread, and the result knows nothing of threads.
#pragma once

#include <cstdint>

#include "backend/backend.h"

namespace infinigen {

// The unit of work of a split decode. 1,024 entries of 256 bytes are 256 KB, about 25 µs of one core's memory
// bandwidth: enough to hide a task's start, and a context of 2K with 8 KV heads still gives 16 tasks.
inline constexpr int64_t kAttentionChunk = 1024;
static_assert(kAttentionChunk % kAttentionBlock == 0 && kExtentTokens % kAttentionBlock == 0);

// Query rows (a token's query heads of one KV head are consecutive rows) that share a widened block in prefill: the
// widening then costs 3 % of the block's arithmetic, and the rows' state stays in L2.
inline constexpr int64_t kPrefillRows = 128;

// The running softmax of one query row: {maximum, sum, unused..., value[padded_dim]}.
inline constexpr int64_t kStateHead = 16;  // floats before the value; keeps it aligned

inline int64_t ChunkCount(int64_t length) { return (length + kAttentionChunk - 1) / kAttentionChunk; }

struct AttentionPlan {
  AttentionPlan(const LayerEntries& e, const AttentionShape& shape)
      : entries(e),
        group(shape.heads / e.layout.kv_heads),
        scale(shape.scale),
        dim(e.layout.head_dim),
        padded_dim((e.layout.head_dim + 15) / 16 * 16) {}

  int64_t state_floats() const { return kStateHead + padded_dim; }
  // Scratch of one thread that works on `rows` query rows.
  int64_t scratch_floats(int64_t rows) const {
    return rows * (padded_dim + 2 * state_floats()) + 2 * kAttentionBlock * padded_dim;
  }
  // The chunks' states of `tokens` tokens that attend to `longest` entries at most.
  int64_t parts_floats(int64_t tokens, int64_t longest) const {
    return tokens * entries.layout.kv_heads * ChunkCount(longest) * group * state_floats();
  }

  LayerEntries entries;
  int64_t group;  // query heads per KV head
  float scale;
  int64_t dim;
  int64_t padded_dim;  // in whole vectors of the widest target
};

// Some chunks of one (token, KV head) in decode.
struct DecodeTask {
  const float* queries = nullptr;  // [group][dim]
  int64_t slot = 0, head = 0;
  int64_t length = 0;             // entries in all
  const int32_t* rows = nullptr;  // [length], ascending; null: rows [0, length)
  int64_t first = 0, last = 0;    // chunks
  float* parts = nullptr;         // [last - first][group][state_floats]: where their states go
};

// Consecutive tokens of one KV head in prefill, the first of which sees `first_length` entries. queries and out point
// at this KV head's first query head of the first token.
struct PrefillTask {
  const float* queries = nullptr;
  int64_t query_stride = 0;  // floats from token to token
  int64_t slot = 0, head = 0;
  int64_t tokens = 0, first_length = 0;
  float* out = nullptr;
  int64_t out_stride = 0;
};

// True scores of rows [first, last) of one (token, KV head), `first` a multiple of kAttentionBlock.
struct ScoreTask {
  const float* queries = nullptr;  // [group][dim]
  int64_t slot = 0, head = 0;
  int64_t first = 0, last = 0;
  float* scores = nullptr;  // [blocks][group][kAttentionBlock]
};

// The column sums of a prefill's attention, in two moves. Norms: {maximum, 1 / sum} of every query row of the task, in
// the units of 2^(score − maximum). Columns: rows [first, last) grow by the weights of the task's tokens, in their
// order; norms are those of the whole run.
struct ColumnTask {
  PrefillTask tokens;
  float* norms = nullptr;  // [tokens · group][2]
  int64_t first = 0, last = 0;
  float* sums = nullptr;  // [last]
};

// Quantised entries (kv/store_view.h) have no elements of their own; these name a byte of their codes.
struct Int8 {
  uint8_t code;
};
struct Int4 {
  uint8_t codes;
};

// What one task does, for entries of one stored type (attention_typed-inl.h). Each needs scratch_floats of its rows.
template <class T>
struct AttentionOf {
  static void Decode(const AttentionPlan& plan, const DecodeTask& task, float* scratch);
  static void Prefill(const AttentionPlan& plan, const PrefillTask& task, float* scratch);
  static void Score(const AttentionPlan& plan, const ScoreTask& task, float* scratch);
  static void Norms(const AttentionPlan& plan, const ColumnTask& task, float* scratch);
  static void Columns(const AttentionPlan& plan, const ColumnTask& task, float* scratch);
};

// Calls f with the functions of the stored type.
template <class F>
void WithAttentionOf(StoreType type, F&& f) {
  switch (type) {
    case StoreType::kF32:
      return f(AttentionOf<float>());
    case StoreType::kF16:
      return f(AttentionOf<F16>());
    case StoreType::kBF16:
      return f(AttentionOf<BF16>());
    case StoreType::kInt8:
      return f(AttentionOf<Int8>());
    case StoreType::kInt4:
      return f(AttentionOf<Int4>());
  }
}

}  // namespace infinigen
