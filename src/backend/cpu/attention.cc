// AttendPrefill, AttendDecode and AttendSelected: the division of attention into tasks. attention_plan.h defines the
// arithmetic of all three. Listed rows are treated as if their entries were consecutive.
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

// Merges the partial results of chunks [first, last) of one query head, `stride` floats apart, in order into out [dim].
// `total` is scratch.
void MergeChunks(const AttentionPlan& plan, const float* parts, int64_t first, int64_t last, int64_t stride,
                 float* total, float* out) {
  ResetState(total, plan.padded_dim);
  for (int64_t chunk = first; chunk < last; ++chunk) MergeState(total, parts + chunk * stride, plan.padded_dim);
  Finish(total, plan.dim, IsPaired(plan, plan.group), out);
}

// Adds the tail `sums` of one query head to its attention `out` [dim], whose state {maximum, sum} is `total`. Returns
// the tail's share of the attention.
float AddTailSums(const float* total, const float* sums, const TailView& tail, int64_t kv_head, float* out) {
  const TailBasis& basis = tail.basis;
  const float maximum = sums[0] * kLog2E, joint = std::max(total[0], maximum);
  const DT d;
  TileNumbers factors;
  factors.at[0] = total[0] - joint;
  factors.at[1] = maximum - joint;
  hn::Store(Exp2NonPositive(d, hn::Load(d, factors.at)), d, factors.at);
  const float inside = total[1] * factors.at[0], all = inside + sums[1] * factors.at[1];
  const float keep = inside / all, add = factors.at[1] / all;
  const float* mean = basis.ValueMean(kv_head);
  const float* columns = basis.Value(kv_head);
  // What the means of blocks have in the directions of the sketches is left to the sketches.
  const float* means = sums + 2 + basis.value_dims;
  float sketch[kMostValueDims];
  std::copy_n(sums + 2, basis.value_dims, sketch);
  for (int64_t i = 0; i < tail.mean_dims; ++i)
    for (int64_t c = 0; c < basis.value_dims; ++c) sketch[c] -= columns[i * basis.value_dims + c] * means[i];
  for (int64_t i = 0; i < basis.head_dim; ++i, columns += basis.value_dims) {
    float value = sums[1] * mean[i] + (tail.mean_dims > 0 ? means[i] : 0.0f);
    for (int64_t c = 0; c < basis.value_dims; ++c) value += columns[c] * sketch[c];
    out[i] = out[i] * keep + value * add;
  }
  return sums[1] * add;
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace infinigen::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace infinigen {
namespace {

HWY_EXPORT(MergeChunks);
HWY_EXPORT(AddTailSums);

void CheckOperands(const ConstTensor& queries, int64_t tokens, const AttentionShape& shape, const LayerEntries& entries,
                   const Tensor& out) {
  const EntryLayout& layout = entries.layout;
  CHECK(shape.heads % layout.kv_heads == 0 && layout.head_dim <= kMaxHeadDim);
  CHECK(queries.type == DType::kF32 && queries.cols == shape.heads * layout.head_dim && queries.rows >= tokens);
  CHECK(out.type == DType::kF32 && out.cols == queries.cols && out.rows >= tokens);
}

// The first chunk with entries of the window; listed rows have none.
int64_t FirstChunk(const AttentionPlan& plan, const DecodeTask& task) {
  return task.rows == nullptr ? plan.First(task.length) / kAttentionChunk : 0;
}

}  // namespace

void CpuBackend::AttendPrefill(Queue, const ConstTensor& queries, const TokenRun& run, const AttentionShape& shape,
                               const LayerEntries& entries, const Tensor& out) {
  CheckOperands(queries, run.count, shape, entries, out);
  const AttentionPlan plan(entries, shape);
  const int64_t heads = entries.layout.kv_heads;
  // Each task has whole tokens, and there are enough tasks for all threads.
  const int64_t fair = std::max<int64_t>(1, run.count * heads / (4 * threads()));
  const int64_t tokens = std::min(std::max<int64_t>(1, kPrefillRows / plan.group), fair);
  const int64_t tasks_per_head = (run.count + tokens - 1) / tokens;
  pool_.Run(tasks_per_head * heads, [&](int64_t index, int thread) {
    // Late tokens have more work and go first, so that the last tasks are short.
    const int64_t first = (tasks_per_head - 1 - index / heads) * tokens, head = index % heads;
    const int64_t count = std::min(tokens, run.count - first);
    const int64_t column = head * plan.group * plan.dim;
    float* scratch = private_[static_cast<size_t>(thread)].Reserve(plan.scratch_floats(count * plan.group));
    const PrefillTask task{.queries = queries.as<float>(first) + column,
                           .query_stride = queries.stride,
                           .slot = run.slot.value(),
                           .head = head,
                           .tokens = count,
                           .first_length = run.first_row + first + 1,
                           .out = out.as<float>(first) + column,
                           .out_stride = out.stride};
    WithAttentionOf(entries.layout.type, [&](auto typed) { typed.Prefill(plan, task, scratch); });
  });
}

template <class TaskOf>
void CpuBackend::AttendInChunks(const AttentionPlan& plan, int64_t tokens, int64_t longest, TaskOf&& task_of,
                                const TailView& tail, const Tensor& out) {
  const int64_t heads = plan.entries.layout.kv_heads, chunks = ChunkCount(longest);
  // Partial results: [token][head][chunk][group][state]. A task is a run of chunks of one (token, head). Longer runs
  // prefetch better, but each thread should get several tasks. Runs past the end of a short sequence are empty.
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
    task.first = std::max(task.first, FirstChunk(plan, task));
    if (task.first >= task.last) return;
    task.parts = parts + ((token * heads + head) * chunks + task.first) * part;
    float* scratch = private_[static_cast<size_t>(thread)].Reserve(plan.scratch_floats(plan.group));
    WithAttentionOf(plan.entries.layout.type, [&](auto typed) { typed.Decode(plan, task, scratch); });
  });
  const int64_t query_heads = heads * plan.group;
  ForRows(tokens * query_heads, chunks * plan.padded_dim, [&](int64_t first, int64_t count) {
    alignas(64) float total[kStateHead + kMaxHeadDim];
    for (int64_t row = first; row < first + count; ++row) {
      const int64_t token = row / query_heads, query_head = row % query_heads;
      const int64_t head = query_head / plan.group, g = query_head % plan.group;
      const DecodeTask task = task_of(token, head);
      HWY_DYNAMIC_DISPATCH(MergeChunks)
      (plan, parts + (token * heads + head) * chunks * part + g * plan.state_floats(), FirstChunk(plan, task),
       ChunkCount(task.length), part, total, out.as<float>(token) + query_head * plan.dim);
      if (!tail) continue;
      float* sums = tail.Sums(token, query_head);
      if (sums[1] < 0) continue;
      // Where the largest score was, the share stays until all are counted.
      sums[0] = sums[1] == 0 ? 0.0f
                             : HWY_DYNAMIC_DISPATCH(AddTailSums)(total, sums, tail, head,
                                                                 out.as<float>(token) + query_head * plan.dim);
    }
  });
  for (int64_t i = 0; i < tokens * query_heads && tail; ++i) {
    const float* sums = tail.Sums(i / query_heads, i % query_heads);
    if (sums[1] >= 0) tail.mass->Add(static_cast<double>(sums[0]));
  }
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
  AttendInChunks(plan, batch.count, max_rows, task_of, {}, out);
}

void CpuBackend::AttendSelected(Queue, const ConstTensor& queries, const TokenBatch& batch, const Selection& selection,
                                const TailView& tail, const AttentionShape& shape, const LayerEntries& entries,
                                const Tensor& out) {
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
  AttendInChunks(plan, batch.count, longest, task_of, tail, out);
}

}  // namespace infinigen
#endif  // HWY_ONCE
