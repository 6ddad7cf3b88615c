// AttendPrefill, AttendDecode and AttendSelected: how attention is cut into tasks. The arithmetic is that of
// attention_plan.h for all of them; a list of rows is walked as if the listed entries were consecutive.
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

// ---- Where a task's blocks come from. Ahead(start, end) names the block at `start` as what will be read next, and
// must have done so before Block(start, end) is asked for; past the end it names nothing.

template <class E>
class Consecutive {
 public:
  using T = E;
  Consecutive(const AttentionPlan& plan, int64_t slot, int64_t head, const int32_t*)
      : plan_(plan), slot_(slot), head_(head) {}
  EntryRun<T> Block(int64_t start, int64_t end) const {
    return {reinterpret_cast<const T*>(plan_.entries.Entry(slot_, head_, start)), 2 * plan_.dim,
            std::min(kAttentionBlock, end - start), plan_.dim};
  }
  RunNext Ahead(int64_t start, int64_t end) const {
    if (start >= end) return {nullptr, nullptr};
    const std::byte* first = plan_.entries.Entry(slot_, head_, start);
    return {first,
            first + std::min(kAttentionBlock, end - start) * static_cast<int64_t>(plan_.entries.layout.entry_bytes())};
  }

 private:
  const AttentionPlan& plan_;
  int64_t slot_, head_;
};

template <class E>
class Listed {
 public:
  using T = E;
  Listed(const AttentionPlan& plan, int64_t slot, int64_t head, const int32_t* rows)
      : plan_(plan), slot_(slot), head_(head), rows_(rows) {}
  EntryList<T> Block(int64_t start, int64_t end) const {
    return {reinterpret_cast<const T* const*>(Place(start)), std::min(kAttentionBlock, end - start), plan_.dim};
  }
  ListNext Ahead(int64_t start, int64_t end) {
    const LayerEntries& entries = plan_.entries;
    const int64_t count = std::max<int64_t>(0, std::min(kAttentionBlock, end - start));
    const int64_t entry_bytes = static_cast<int64_t>(entries.layout.entry_bytes());
    const std::byte** at = Place(start);
    const int32_t* rows = rows_ + start;
    // Rows ascend, so that those of one extent follow each other.
    for (int64_t j = 0; j < count;) {
      const int64_t extent = rows[j] / kExtentTokens, limit = (extent + 1) * kExtentTokens;
      const std::byte* head = entries.HeadInExtent(slot_, extent, head_);
      do {
        at[j] = head + (rows[j] - extent * kExtentTokens) * entry_bytes;
      } while (++j < count && rows[j] < limit);
    }
    // An entry that starts inside a line ends in one more.
    return {at, at + count, (entry_bytes + 63) / 64 + (entry_bytes % 64 != 0 ? 1 : 0)};
  }

 private:
  const std::byte** Place(int64_t start) { return at_[start / kAttentionBlock % 2]; }
  const std::byte* const* Place(int64_t start) const { return at_[start / kAttentionBlock % 2]; }

  const AttentionPlan& plan_;
  int64_t slot_, head_;
  const int32_t* rows_;
  const std::byte* at_[2][kAttentionBlock];  // this block's entries and the next one's
};

// Blocks of one chunk, ascending, into rows whose states were reset. Entries up to `ahead` will be read after it.
template <class Source>
HWY_INLINE void AttendChunk(const AttentionPlan& plan, const QueryRows& q, Source& source, int64_t begin, int64_t end,
                            int64_t ahead, float* keys, float* values) {
  const bool in_place = q.rows == q.group && ReadsInPlace<typename Source::T>(plan);
  for (int64_t start = begin; start < end; start += kAttentionBlock) {
    const auto block = source.Block(start, end);
    const auto next = source.Ahead(start + kAttentionBlock, ahead);
    if (in_place)
      AttendBlockInPlace(plan, q, block, next, start);
    else
      AttendBlock(plan, q, block, start, keys, values);
  }
}
// Whether AttendChunk leaves the states of `rows` rows in paired order.
bool IsPaired(const AttentionPlan& plan, int64_t rows) {
  return plan.entries.layout.type == DType::kBF16 && rows == plan.group && ReadsInPlace<BF16>(plan);
}

// Chunks [task.first, task.last) for the query heads of one KV head.
template <class Source>
HWY_INLINE void DecodeChunksFrom(const AttentionPlan& plan, const DecodeTask& task, float* scratch) {
  float* scaled = scratch;
  float* keys = scaled + plan.group * plan.padded_dim;
  float* values = keys + kAttentionBlock * plan.padded_dim;
  for (int64_t g = 0; g < plan.group; ++g)
    ScaleQuery(task.queries + g * plan.dim, plan.dim, plan.scale, scaled + g * plan.padded_dim);
  const int64_t task_end = std::min(task.last * kAttentionChunk, task.length);
  Source source(plan, task.slot, task.head, task.rows);
  // Each block asks for the one after it; the first has nobody before it.
  auto first_block = source.Ahead(task.first * kAttentionChunk, task_end);
  first_block.Ask(kAttentionBlock * static_cast<int64_t>(plan.entries.layout.entry_bytes()) / 64);
  float* parts = task.parts;
  for (int64_t chunk = task.first; chunk < task.last; ++chunk, parts += plan.group * plan.state_floats()) {
    for (int64_t g = 0; g < plan.group; ++g) ResetState(parts + g * plan.state_floats(), plan.padded_dim);
    const QueryRows q{scaled, parts, plan.group, plan.group, task.length};
    const int64_t begin = chunk * kAttentionChunk;
    AttendChunk(plan, q, source, begin, std::min(begin + kAttentionChunk, task.length), task_end, keys, values);
  }
}
template <class T>
void DecodeChunksOf(const AttentionPlan& plan, const DecodeTask& task, float* scratch) {
  if (task.rows == nullptr)
    DecodeChunksFrom<Consecutive<T>>(plan, task, scratch);
  else
    DecodeChunksFrom<Listed<T>>(plan, task, scratch);
}
void DecodeChunks(const AttentionPlan& plan, const DecodeTask& task, float* scratch) {
  switch (plan.entries.layout.type) {
    case DType::kF32:
      return DecodeChunksOf<float>(plan, task, scratch);
    case DType::kF16:
      return DecodeChunksOf<F16>(plan, task, scratch);
    case DType::kBF16:
      return DecodeChunksOf<BF16>(plan, task, scratch);
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
template <class T>
HWY_NOINLINE void PrefillTokensOf(const AttentionPlan& plan, const float* queries, int64_t query_stride, int64_t slot,
                                  int64_t head, int64_t tokens, int64_t first_length, float* out, int64_t out_stride,
                                  float* scratch) {
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
  Consecutive<T> source(plan, slot, head, nullptr);
  const int64_t length = q.Length(rows - 1);
  for (int64_t begin = 0; begin < length; begin += kAttentionChunk) {
    for (int64_t r = 0; r < rows; ++r) ResetState(parts + r * state, plan.padded_dim);
    AttendChunk(plan, q, source, begin, std::min(begin + kAttentionChunk, length), 0, keys, values);
    for (int64_t r = 0; r < rows; ++r)
      if (q.Length(r) > begin) MergeState(totals + r * state, parts + r * state, plan.padded_dim);
  }
  for (int64_t r = 0; r < rows; ++r)
    Finish(totals + r * state, plan.dim, IsPaired(plan, rows),
           out + r / plan.group * out_stride + r % plan.group * plan.dim);
}
void PrefillTokens(const AttentionPlan& plan, const float* queries, int64_t query_stride, int64_t slot, int64_t head,
                   int64_t tokens, int64_t first_length, float* out, int64_t out_stride, float* scratch) {
  const auto prefill = plan.entries.layout.type == DType::kF32   ? PrefillTokensOf<float>
                       : plan.entries.layout.type == DType::kF16 ? PrefillTokensOf<F16>
                                                                 : PrefillTokensOf<BF16>;
  prefill(plan, queries, query_stride, slot, head, tokens, first_length, out, out_stride, scratch);
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

template <class TaskOf>
void CpuBackend::AttendInChunks(const AttentionPlan& plan, int64_t tokens, int64_t longest, TaskOf&& task_of,
                                const Tensor& out) {
  const int64_t heads = plan.entries.layout.kv_heads, chunks = ChunkCount(longest);
  // Parts: [token][head][chunk][group][state]. A task is a run of chunks of one (token, head): the longer, the better
  // the prefetch, but the team wants several each. Runs past the end of a short one are empty.
  const int64_t part = plan.group * plan.state_floats();
  float* parts = shared_.Reserve(plan.parts_floats(tokens, longest));
  const int64_t run = std::clamp<int64_t>(tokens * heads * chunks / (8 * threads()), 1, chunks);
  pool_.Run((chunks + run - 1) / run * tokens * heads, [&](int64_t index, int thread) {
    const int64_t token = index / heads % tokens, head = index % heads;
    DecodeTask task = task_of(token, head);
    DCHECK(task.length <= longest);
    task.head = head;
    task.first = index / (tokens * heads) * run;
    task.last = std::min(task.first + run, ChunkCount(task.length));
    if (task.first >= task.last) return;
    task.parts = parts + ((token * heads + head) * chunks + task.first) * part;
    float* scratch = private_[static_cast<size_t>(thread)].Reserve(plan.scratch_floats(plan.group));
    HWY_DYNAMIC_DISPATCH(DecodeChunks)(plan, task, scratch);
  });
  const int64_t query_heads = heads * plan.group;
  ForRows(tokens * query_heads, chunks * plan.padded_dim, [&](int64_t first, int64_t count) {
    alignas(64) float total[kStateHead + kMaxHeadDim];
    for (int64_t row = first; row < first + count; ++row) {
      const int64_t token = row / query_heads, query_head = row % query_heads;
      const int64_t head = query_head / plan.group, g = query_head % plan.group;
      HWY_DYNAMIC_DISPATCH(MergeChunks)
      (plan, parts + (token * heads + head) * chunks * part + g * plan.state_floats(),
       ChunkCount(task_of(token, head).length), part, total, out.as<float>(token) + query_head * plan.dim);
    }
  });
}

void CpuBackend::AttendDecode(Queue, const ConstTensor& queries, const TokenBatch& batch, int64_t max_rows,
                              const AttentionShape& shape, const LayerEntries& entries, const Tensor& out) {
  CheckOperands(queries, batch.count, shape, entries, out);
  const AttentionPlan plan(entries, shape);
  const auto task_of = [&](int64_t token, int64_t head) {
    return DecodeTask{.queries = queries.as<float>(token) + head * plan.group * plan.dim,
                      .slot = batch.slots[token],
                      .length = batch.rows[token] + 1};
  };
  AttendInChunks(plan, batch.count, max_rows, task_of, out);
}

void CpuBackend::AttendSelected(Queue, const ConstTensor& queries, const TokenBatch& batch, const Selection& selection,
                                const AttentionShape& shape, const LayerEntries& entries, const Tensor& out) {
  CheckOperands(queries, batch.count, shape, entries, out);
  CHECK(selection.kv_heads == entries.layout.kv_heads);
  const AttentionPlan plan(entries, shape);
  int64_t longest = 0;
  for (int64_t i = 0; i < batch.count * selection.kv_heads; ++i)
    longest = std::max<int64_t>(longest, selection.counts[i]);
  const auto task_of = [&](int64_t token, int64_t head) {
    return DecodeTask{.queries = queries.as<float>(token) + head * plan.group * plan.dim,
                      .slot = batch.slots[token],
                      .length = selection.Count(token, head),
                      .rows = selection.Rows(token, head)};
  };
  AttendInChunks(plan, batch.count, longest, task_of, out);
}

}  // namespace infinigen
#endif  // HWY_ONCE
