// Eviction: the rows of new tokens, priorities after selections and attention, survivors of a prefill. kv/retain.h
// defines them. Simple loops over the rows of a head, because this touches few bytes per row and step compared with
// sketches and entries.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "backend/cpu/attention_plan.h"
#include "backend/cpu/cpu_backend.h"

namespace infinigen {
namespace {

// The unprotected row with the smallest priority; ties go to the oldest.
int64_t Victim(const int32_t* positions, const float* priorities, int64_t rows, const Protection& protection) {
  int64_t victim = -1;
  float least = std::numeric_limits<float>::infinity();
  for (int64_t row = 0; row < rows; ++row) {
    const float priority = ComparablePriority(priorities[row]);
    if (priority > least || protection.Covers(positions[row])) continue;
    if (victim >= 0 && priority == least && positions[row] > positions[victim]) continue;
    victim = row;
    least = priority;
  }
  CHECK(victim >= 0);
  return victim;
}

void PriorityRows(const RetainRule& rule, const SelectRule& select, int64_t position, const int32_t* rows,
                  int64_t count, const int32_t* positions, float* priorities, int64_t all) {
  const bool counts = rule.on_select == PriorityUpdate::kCount;
  float largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t of = positions[rows[i]];
    if (of < select.sinks || of >= position - select.window) continue;
    float& priority = priorities[rows[i]];
    priority = counts ? priority + 1 : static_cast<float>(position);
    largest = std::max(largest, priority);
  }
  if (counts && largest > kPriorityLimit)
    for (int64_t row = 0; row < all; ++row) priorities[row] = std::floor(priorities[row] / 2);
}

// Writes the rows of [0, rows) that survive, ascending, to stay [quota]. order [rows] is scratch.
void PickSurvivors(const float* priorities, int64_t rows, int64_t quota, const RetainRule& rule, int32_t* order,
                   int32_t* stay) {
  const Protection protection(rows, quota, rule.sinks);
  int32_t* end = order;
  int64_t kept = 0;
  for (int32_t row = 0; row < rows; ++row) {
    if (protection.Covers(row))
      stay[kept++] = row;
    else
      *end++ = row;
  }
  const int64_t others = quota - kept;
  const auto before = [&](int32_t a, int32_t b) {
    const float ma = ComparablePriority(priorities[a]), mb = ComparablePriority(priorities[b]);
    return ma != mb ? ma > mb : a > b;
  };
  if (order + others < end) std::nth_element(order, order + others, end, before);
  std::copy_n(order, others, stay + kept);
  std::sort(stay, stay + quota);
}

}  // namespace

void CpuBackend::AssignRows(Queue, const TokenBatch& batch, const RetainRule& rule, const LayerCache& cache,
                            int32_t* own_rows) {
  const EvictionState& retained = cache.retained;
  ForRows(batch.count * retained.kv_heads, retained.capacity, [&](int64_t first, int64_t count) {
    for (int64_t i = first; i < first + count; ++i) {
      const int64_t t = i / retained.kv_heads, head = i % retained.kv_heads;
      const int64_t slot = batch.slots[t], position = batch.Position(t), quota = retained.quotas[slot];
      int32_t* positions = retained.Positions(slot, head);
      float* priorities = retained.Priorities(slot, head);
      const int64_t row =
          position < quota ? position : Victim(positions, priorities, quota, Protection(position, quota, rule.sinks));
      positions[row] = static_cast<int32_t>(position);
      priorities[row] = PriorityAtAppend(rule.on_append, positions[row], head);
      if (cache.sketches)
        VoidSketch(cache.sketches.layout, cache.sketches.Block(slot, head, row / kSketchBlock), row % kSketchBlock);
      own_rows[i] = static_cast<int32_t>(row);
    }
  });
}

void CpuBackend::UpdatePriorities(Queue, const TokenBatch& batch, const RetainRule& rule, const SelectCall& call,
                                  const Selection& selection) {
  if (rule.on_select == PriorityUpdate::kKeep) return;
  ForRows(selection.kv_heads, batch.count * call.max_rows / 8, [&](int64_t first, int64_t count) {
    for (int64_t head = first; head < first + count; ++head) {
      for (int64_t t = 0; t < batch.count; ++t) {
        const int64_t slot = batch.slots[t];
        PriorityRows(rule, call.rules[slot], batch.Position(t), selection.Rows(t, head), selection.Count(t, head),
                     call.retained.Positions(slot, head), call.retained.Priorities(slot, head), batch.rows[t] + 1);
      }
    }
  });
}

void CpuBackend::SumColumns(Queue, const ConstTensor& queries, const TokenRun& run, const AttentionShape& shape,
                            const LayerCache& cache) {
  const LayerEntries& entries = cache.entries;
  const AttentionPlan plan(entries, shape);
  const int64_t heads = entries.layout.kv_heads, length = run.first_row + run.count;
  CHECK(queries.type == DType::kF32 && queries.cols == shape.heads * plan.dim && queries.rows >= run.count);
  float* norms = shared_.Reserve(heads * run.count * plan.group * 2);  // [heads][tokens · group][2]
  const int64_t tokens = std::max<int64_t>(1, kPrefillRows / plan.group), parts = (run.count + tokens - 1) / tokens;
  const auto task_of = [&](int64_t head, int64_t part) {
    const int64_t first = part * tokens;
    return ColumnTask{
        .tokens = {.queries = queries.as<float>(first) + head * plan.group * plan.dim,
                   .query_stride = queries.stride,
                   .slot = run.slot.value(),
                   .head = head,
                   .tokens = std::min(tokens, run.count - first),
                   .first_length = run.first_row + first + 1},
        .norms = norms + (head * run.count + first) * plan.group * 2,
    };
  };
  const auto scratch_of = [&](int thread) {
    return private_[static_cast<size_t>(thread)].Reserve(plan.scratch_floats(tokens * plan.group));
  };
  pool_.Run(heads * parts, [&](int64_t index, int thread) {
    const ColumnTask task = task_of(index % heads, index / heads);
    WithAttentionOf(entries.layout.type, [&](auto typed) { typed.Norms(plan, task, scratch_of(thread)); });
  });
  // A task owns a range of columns and adds the tokens to them in order.
  const int64_t columns = kAttentionChunk, runs = (length + columns - 1) / columns;
  pool_.Run(heads * runs, [&](int64_t index, int thread) {
    for (int64_t part = 0; part < parts; ++part) {
      ColumnTask task = task_of(index % heads, part);
      task.first = index / heads * columns;
      task.last = std::min(task.first + columns, length);
      task.sums = cache.retained.Priorities(run.slot.value(), index % heads);
      WithAttentionOf(entries.layout.type, [&](auto typed) { typed.Columns(plan, task, scratch_of(thread)); });
    }
  });
}

void CpuBackend::CopySurvivors(Queue, const RetainRule& rule, const LayerCache& from, int64_t rows, SeqSlot to_slot,
                               const LayerCache& to) {
  const int64_t slot = to_slot.value(), quota = std::min<int64_t>(rows, to.retained.quotas[slot]);
  const size_t entry_bytes = from.entries.layout.entry_bytes();
  pool_.Run(from.retained.kv_heads, [&](int64_t head, int thread) {
    auto* order = reinterpret_cast<int32_t*>(private_[static_cast<size_t>(thread)].Reserve(rows));
    int32_t* stay = to.retained.Positions(slot, head);  // until now, row = position
    const float* priorities = from.retained.Priorities(0, head);
    PickSurvivors(priorities, rows, quota, rule, order, stay);
    for (int64_t row = 0; row < quota; ++row) {
      const int64_t source = stay[row];
      std::memcpy(to.entries.Entry(slot, head, row), from.entries.Entry(0, head, source), entry_bytes);
      if (from.sketches)
        CopySketch(from.sketches.layout, from.sketches.Block(0, head, source / kSketchBlock), source % kSketchBlock,
                   to.sketches.Block(slot, head, row / kSketchBlock), row % kSketchBlock);
      to.retained.Priorities(slot, head)[row] = priorities[source];
    }
  });
}

}  // namespace infinigen
