// AttendPrefill and AttendDecode: how attention is cut into tasks. The arithmetic is that of attention_plan.h for both.
#include <algorithm>

#include "backend/cpu/attention_plan.h"
#include "backend/cpu/cpu_backend.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/attention.cc"
#include <hwy/foreach_target.h>
// After foreach_target.
#include <hwy/highway.h>

#include "backend/cpu/attention-inl.h"

HWY_BEFORE_NAMESPACE();
namespace infinigen::HWY_NAMESPACE {

// Blocks of one chunk, ascending, into rows whose states were reset. Entries up to `ahead` will be read after it.
template <class T>
void AttendChunkOf(const AttentionPlan& plan, const QueryRows& q, int64_t slot, int64_t head, int64_t begin,
                   int64_t end, int64_t ahead, float* keys, float* values) {
  const bool in_place = q.rows == q.group && ReadsInPlace<T>(plan);
  for (int64_t start = begin; start < end; start += kAttentionBlock) {
    const EntryBlock<T> block = BlockAt<T>(plan, slot, head, start, end);
    if (in_place) {
      const int64_t after = start + kAttentionBlock;
      const NextBlock next{after < ahead ? plan.entries.Entry(slot, head, after) : nullptr};
      AttendBlockInPlace(plan, q, block, next, start);
    } else {
      AttendBlock(plan, q, block, start, keys, values);
    }
  }
}
void AttendChunk(const AttentionPlan& plan, const QueryRows& q, int64_t slot, int64_t head, int64_t begin, int64_t end,
                 int64_t ahead, float* keys, float* values) {
  switch (plan.entries.layout.type) {
    case DType::kF32:
      return AttendChunkOf<float>(plan, q, slot, head, begin, end, ahead, keys, values);
    case DType::kF16:
      return AttendChunkOf<F16>(plan, q, slot, head, begin, end, ahead, keys, values);
    case DType::kBF16:
      return AttendChunkOf<BF16>(plan, q, slot, head, begin, end, ahead, keys, values);
  }
}
// Whether AttendChunk leaves the states of `rows` rows in paired order.
bool IsPaired(const AttentionPlan& plan, int64_t rows) {
  return plan.entries.layout.type == DType::kBF16 && rows == plan.group && ReadsInPlace<BF16>(plan);
}

// Chunks [first, last) of `length` entries for the query heads of one KV head. queries [group·dim]; parts
// [last - first][group] get the chunks' states.
void DecodeChunks(const AttentionPlan& plan, const float* queries, int64_t slot, int64_t head, int64_t first,
                  int64_t last, int64_t length, float* parts, float* scratch) {
  float* scaled = scratch;
  float* keys = scaled + plan.group * plan.padded_dim;
  float* values = keys + kAttentionBlock * plan.padded_dim;
  for (int64_t g = 0; g < plan.group; ++g)
    ScaleQuery(queries + g * plan.dim, plan.dim, plan.scale, scaled + g * plan.padded_dim);
  const int64_t task_end = std::min(last * kAttentionChunk, length);
  // Each block asks for the one after it; the first has nobody before it.
  const int64_t first_rows = std::min(kAttentionBlock, task_end - first * kAttentionChunk);
  NextBlock{plan.entries.Entry(slot, head, first * kAttentionChunk)}.Prefetch(
      0, first_rows * static_cast<int64_t>(plan.entries.layout.entry_bytes()) / 64);
  for (int64_t chunk = first; chunk < last; ++chunk, parts += plan.group * plan.state_floats()) {
    for (int64_t g = 0; g < plan.group; ++g) ResetState(parts + g * plan.state_floats(), plan.padded_dim);
    const QueryRows q{scaled, parts, plan.group, plan.group, length};
    const int64_t begin = chunk * kAttentionChunk;
    AttendChunk(plan, q, slot, head, begin, std::min(begin + kAttentionChunk, length), task_end, keys, values);
  }
}

// One query head's parts, `chunks` of them `stride` floats apart, merged in order into out [dim]. `total` is scratch.
void MergeChunks(const AttentionPlan& plan, const float* parts, int64_t chunks, int64_t stride, float* total,
                 float* out) {
  ResetState(total, plan.padded_dim);
  for (int64_t chunk = 0; chunk < chunks; ++chunk) MergeState(total, parts + chunk * stride, plan.padded_dim);
  Finish(total, plan.dim, IsPaired(plan, plan.group), out);
}

// `tokens` consecutive tokens, the first of which sees `first_length` entries, for one KV head. queries and out point
// at this KV head's first query head of the first token.
void PrefillTokens(const AttentionPlan& plan, const float* queries, int64_t query_stride, int64_t slot, int64_t head,
                   int64_t tokens, int64_t first_length, float* out, int64_t out_stride, float* scratch) {
  const int64_t rows = tokens * plan.group, state = plan.state_floats();
  float* scaled = scratch;
  float* parts = scaled + rows * plan.padded_dim;
  float* totals = parts + rows * state;
  float* keys = totals + rows * state;
  float* values = keys + kAttentionBlock * plan.padded_dim;
  for (int64_t r = 0; r < rows; ++r) {
    const float* query = queries + r / plan.group * query_stride + r % plan.group * plan.dim;
    ScaleQuery(query, plan.dim, plan.scale, scaled + r * plan.padded_dim);
    ResetState(totals + r * state, plan.padded_dim);
  }
  const QueryRows q{scaled, parts, rows, plan.group, first_length};
  const int64_t length = q.Length(rows - 1);
  for (int64_t begin = 0; begin < length; begin += kAttentionChunk) {
    for (int64_t r = 0; r < rows; ++r) ResetState(parts + r * state, plan.padded_dim);
    AttendChunk(plan, q, slot, head, begin, std::min(begin + kAttentionChunk, length), 0, keys, values);
    for (int64_t r = 0; r < rows; ++r)
      if (q.Length(r) > begin) MergeState(totals + r * state, parts + r * state, plan.padded_dim);
  }
  for (int64_t r = 0; r < rows; ++r)
    Finish(totals + r * state, plan.dim, IsPaired(plan, rows),
           out + r / plan.group * out_stride + r % plan.group * plan.dim);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace infinigen::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace infinigen {
namespace {

HWY_EXPORT(DecodeChunks);
HWY_EXPORT(MergeChunks);
HWY_EXPORT(PrefillTokens);

void CheckOperands(const ConstTensor& queries, int64_t tokens, const AttentionShape& shape, const LayerEntries& entries,
                   const Tensor& out) {
  const EntryLayout& layout = entries.layout;
  CHECK(shape.heads % layout.kv_heads == 0 && layout.head_dim <= kMaxHeadDim);
  CHECK(queries.type == DType::kF32 && queries.cols == shape.heads * layout.head_dim && queries.rows >= tokens);
  CHECK(out.type == DType::kF32 && out.cols == queries.cols && out.rows >= tokens);
}

int64_t ChunkCount(int64_t length) { return (length + kAttentionChunk - 1) / kAttentionChunk; }

}  // namespace

void CpuBackend::AttendPrefill(Queue, const ConstTensor& queries, const TokenRun& run, const AttentionShape& shape,
                               const LayerEntries& entries, const Tensor& out) {
  CheckOperands(queries, run.count, shape, entries, out);
  const AttentionPlan plan(entries, shape);
  const int64_t heads = entries.layout.kv_heads;
  // A whole number of tokens per task, and enough tasks for the team.
  const int64_t fair = std::max<int64_t>(1, run.count * heads / (4 * threads()));
  const int64_t tokens = std::min(std::max<int64_t>(1, kPrefillRows / plan.group), fair);
  const int64_t tasks_per_head = (run.count + tokens - 1) / tokens;
  pool_.Run(tasks_per_head * heads, [&](int64_t task, int thread) {
    // Late tokens see more: they go first, so that the team ends on short tasks.
    const int64_t first = (tasks_per_head - 1 - task / heads) * tokens, head = task % heads;
    const int64_t count = std::min(tokens, run.count - first);
    const int64_t column = head * plan.group * plan.dim;
    float* scratch = private_[static_cast<size_t>(thread)].Reserve(plan.scratch_floats(count * plan.group));
    HWY_DYNAMIC_DISPATCH(PrefillTokens)
    (plan, queries.as<float>(first) + column, queries.stride, run.slot.value(), head, count, run.first_row + first + 1,
     out.as<float>(first) + column, out.stride, scratch);
  });
}

void CpuBackend::AttendDecode(Queue, const ConstTensor& queries, const TokenBatch& batch, int64_t max_rows,
                              const AttentionShape& shape, const LayerEntries& entries, const Tensor& out) {
  CheckOperands(queries, batch.count, shape, entries, out);
  const AttentionPlan plan(entries, shape);
  const int64_t heads = entries.layout.kv_heads, chunks = ChunkCount(max_rows);
  // Parts: [token][head][chunk][group][state]. A task is a run of chunks of one (token, head): the longer, the better
  // the prefetch, but the team wants several each. Runs past the end of a short sequence are empty.
  const int64_t part = plan.group * plan.state_floats();
  float* parts = shared_.Reserve(batch.count * heads * chunks * part);
  const int64_t run = std::clamp<int64_t>(batch.count * heads * chunks / (8 * threads()), 1, chunks);
  pool_.Run((chunks + run - 1) / run * batch.count * heads, [&](int64_t task, int thread) {
    const int64_t first = task / (batch.count * heads) * run, token = task / heads % batch.count, head = task % heads;
    const int64_t length = batch.rows[token] + 1, last = std::min(first + run, ChunkCount(length));
    DCHECK(length <= max_rows);
    if (first >= last) return;
    float* scratch = private_[static_cast<size_t>(thread)].Reserve(plan.scratch_floats(plan.group));
    HWY_DYNAMIC_DISPATCH(DecodeChunks)
    (plan, queries.as<float>(token) + head * plan.group * plan.dim, batch.slots[token], head, first, last, length,
     parts + ((token * heads + head) * chunks + first) * part, scratch);
  });
  ForRows(batch.count * shape.heads, chunks * plan.padded_dim, [&](int64_t first, int64_t count) {
    alignas(64) float total[kStateHead + kMaxHeadDim];
    for (int64_t row = first; row < first + count; ++row) {
      const int64_t token = row / shape.heads, query_head = row % shape.heads;
      const int64_t head = query_head / plan.group, g = query_head % plan.group;
      HWY_DYNAMIC_DISPATCH(MergeChunks)
      (plan, parts + (token * heads + head) * chunks * part + g * plan.state_floats(),
       ChunkCount(batch.rows[token] + 1), part, total, out.as<float>(token) + query_head * plan.dim);
    }
  });
}

}  // namespace infinigen
#endif  // HWY_ONCE
