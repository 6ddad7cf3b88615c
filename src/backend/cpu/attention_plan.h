// Shapes and tasks shared by the attention kernels and their callers.
//
// The arithmetic of one query head, on every path:
//   * From entry 0 on, entries are divided into blocks of kAttentionBlock, and blocks into chunks of kAttentionChunk
//     entries.
//   * score = Σ over head_dim, ascending, of (query · scale · log2 e) · key; a soft cap, times log2 e, is applied to
//   it.
//   * With a window, the blocks that hold entries of the window take part; entries before the window have weight 0.
//   * A block gives its maximum, Σ 2^(score - maximum) and, in ascending entry order, Σ 2^(score - maximum) · value.
//   * The blocks of a chunk are merged in ascending order, then the chunks.
// Any thread can compute a chunk, and the result does not depend on the number of threads.
#pragma once

#include <cstdint>

#include "backend/backend.h"

namespace infinigen {

// Unit of work of a split decode. 1,024 entries of 256 bytes are 256 KB, about 25 µs of one core's memory bandwidth:
// enough to hide the start of a task, and a context of 2K with 8 KV heads still gives 16 tasks.
inline constexpr int64_t kAttentionChunk = 1024;
static_assert(kAttentionChunk % kAttentionBlock == 0 && kExtentTokens % kAttentionBlock == 0);

// Query rows that share a widened block in prefill. (The query heads of one token that read one KV head are consecutive
// rows.) Widening then costs 3 % of the block's arithmetic, and the rows' states stay in L2.
inline constexpr int64_t kPrefillRows = 128;

// State of the running softmax of one query row: {maximum, sum, unused..., value[padded_dim]}.
inline constexpr int64_t kStateHead = 16;  // floats before the value; keeps it aligned

inline int64_t ChunkCount(int64_t length) { return (length + kAttentionChunk - 1) / kAttentionChunk; }

struct AttentionPlan {
  AttentionPlan(const LayerEntries& e, const AttentionShape& shape)
      : entries(e),
        group(shape.heads / e.layout.kv_heads),
        scale(shape.scale),
        soft_cap(shape.soft_cap),
        window(shape.window),
        dim(e.layout.head_dim),
        padded_dim((e.layout.head_dim + 15) / 16 * 16) {}

  int64_t state_floats() const { return kStateHead + padded_dim; }
  // First entry that a token with `length` entries attends to.
  int64_t First(int64_t length) const { return window > 0 && length > window ? length - window : 0; }
  // Scratch of one thread that works on `rows` query rows.
  int64_t scratch_floats(int64_t rows) const {
    return rows * (padded_dim + 2 * state_floats()) + 2 * kAttentionBlock * padded_dim;
  }
  // Partial results of `tokens` tokens that attend to at most `longest` entries.
  int64_t parts_floats(int64_t tokens, int64_t longest) const {
    return tokens * entries.layout.kv_heads * ChunkCount(longest) * group * state_floats();
  }

  LayerEntries entries;
  int64_t group;  // query heads per KV head
  float scale;
  float soft_cap;  // 0: none
  int64_t window;  // 0: none
  int64_t dim;
  int64_t padded_dim;  // dim in whole vectors of the widest target
};

// Decode: some chunks of one (token, KV head).
struct DecodeTask {
  const float* queries = nullptr;  // [group][dim]
  int64_t slot = 0, head = 0;
  int64_t length = 0;             // entries in total
  const int32_t* rows = nullptr;  // [length], ascending; null: rows [0, length)
  int64_t first = 0, last = 0;    // range of chunks
  float* parts = nullptr;         // output: [last - first][group][state_floats]
};

// Prefill: consecutive tokens of one KV head. The first attends to `first_length` entries. queries and out point to the
// first token's first query head of this KV head.
struct PrefillTask {
  const float* queries = nullptr;
  int64_t query_stride = 0;  // floats from token to token
  int64_t slot = 0, head = 0;
  int64_t tokens = 0, first_length = 0;
  float* out = nullptr;
  int64_t out_stride = 0;
};

// True scores of rows [first, last) of one (token, KV head); `first` is a multiple of kAttentionBlock.
struct ScoreTask {
  const float* queries = nullptr;  // [group][dim]
  int64_t slot = 0, head = 0;
  int64_t first = 0, last = 0;
  float* scores = nullptr;  // [blocks][group][kAttentionBlock]
};

// Column sums of a prefill's attention, in two steps. Norms: {maximum, 1 / sum} of every query row of the task, where
// sum is Σ 2^(score − maximum). Columns: adds the weights of the task's tokens, in order, to the sums of rows [first,
// last); norms are those of the whole run.
struct ColumnTask {
  PrefillTask tokens;
  float* norms = nullptr;  // [tokens · group][2]
  int64_t first = 0, last = 0;
  float* sums = nullptr;  // [last]
};

// Element types of quantised entries (kv/view.h): one byte of codes.
struct Int8 {
  uint8_t code;
};
struct Int4 {
  uint8_t codes;
};

// The functions that execute a task, for entries of one stored type (attention_typed-inl.h). Each needs scratch_floats
// of its rows.
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
    case StoreType::kInt6:  // not a type of entries
      break;
  }
}

}  // namespace infinigen
