// Eviction of the oracle: applies the host definition in kv/retain.h to every token and head.
#include "kv/retain.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <vector>

#include "backend/reference/reference_backend.h"

namespace infinigen {
namespace {

// Adds the attention weights of one token over rows [0, length) to the priorities of these rows.
void AddWeights(const float* queries, int64_t slot, int64_t length, const AttentionShape& shape,
                const LayerCache& cache) {
  const int64_t group = shape.heads / cache.entries.layout.kv_heads, dim = cache.entries.layout.head_dim;
  std::vector<int32_t> rows(static_cast<size_t>(length));
  std::iota(rows.begin(), rows.end(), 0);
  for (int64_t head = 0; head < shape.heads; ++head) {
    float* priorities = cache.retained.Priorities(slot, head / group);
    const std::vector<float> weights =
        AttentionWeights(queries + head * dim, slot, head / group, rows, shape, cache.entries);
    for (size_t row = 0; row < weights.size(); ++row) priorities[row] += weights[row];
  }
}

}  // namespace

void ReferenceBackend::AssignRows(Queue, const TokenBatch& batch, const RetainRule& rule, const LayerCache& cache,
                                  int32_t* own_rows) {
  const EvictionState& retained = cache.retained;
  for (int64_t t = 0; t < batch.count; ++t) {
    const int64_t slot = batch.slots[t], position = batch.Position(t), quota = retained.quotas[slot];
    const size_t rows = static_cast<size_t>(std::min(position, quota));
    for (int64_t head = 0; head < retained.kv_heads; ++head) {
      int32_t* positions = retained.Positions(slot, head);
      float* priorities = retained.Priorities(slot, head);
      const int64_t row = AssignRow({positions, rows}, {priorities, rows}, rule, position, quota);
      positions[row] = static_cast<int32_t>(position);
      priorities[row] = PriorityAtAppend(rule.on_append, positions[row], head);
      if (cache.sketches)
        VoidSketch(cache.sketches.layout, cache.sketches.Block(slot, head, row / kSketchBlock), row % kSketchBlock);
      own_rows[t * retained.kv_heads + head] = static_cast<int32_t>(row);
    }
  }
}

void ReferenceBackend::UpdatePriorities(Queue, const TokenBatch& batch, const RetainRule& rule, const SelectCall& call,
                                        const Selection& selection) {
  for (int64_t t = 0; t < batch.count; ++t) {
    const int64_t slot = batch.slots[t];
    const size_t rows = static_cast<size_t>(batch.rows[t] + 1);
    for (int64_t head = 0; head < selection.kv_heads; ++head)
      infinigen::UpdatePriorities(rule, call.rules[slot], batch.Position(t),
                                  {selection.Rows(t, head), static_cast<size_t>(selection.Count(t, head))},
                                  {call.retained.Positions(slot, head), rows},
                                  {call.retained.Priorities(slot, head), rows});
  }
}

void ReferenceBackend::SumAttention(Queue, const ConstTensor& queries, const TokenBatch& batch,
                                    const AttentionShape& shape, const LayerCache& cache) {
  for (int64_t t = 0; t < batch.count; ++t)
    AddWeights(queries.as<float>(t), batch.slots[t], batch.rows[t] + 1, shape, cache);
}

void ReferenceBackend::SumColumns(Queue, const ConstTensor& queries, const TokenRun& run, const AttentionShape& shape,
                                  const LayerCache& cache) {
  for (int64_t t = 0; t < run.count; ++t)
    AddWeights(queries.as<float>(t), run.slot.value(), run.first_row + t + 1, shape, cache);
}

void ReferenceBackend::CopySurvivors(Queue, const RetainRule& rule, const LayerCache& from, int64_t rows,
                                     SeqSlot to_slot, const LayerCache& to) {
  const int64_t slot = to_slot.value();
  for (int64_t head = 0; head < from.retained.kv_heads; ++head) {
    const float* priorities = from.retained.Priorities(0, head);
    const std::vector<int32_t> stay =
        Survivors({priorities, static_cast<size_t>(rows)}, rule, std::min<int64_t>(rows, to.retained.quotas[slot]));
    for (int64_t row = 0; row < std::ssize(stay); ++row) {
      const int32_t source = stay[static_cast<size_t>(row)];
      std::copy_n(from.entries.Entry(0, head, source), from.entries.layout.entry_bytes(),
                  to.entries.Entry(slot, head, row));
      if (from.sketches)
        CopySketch(from.sketches.layout, from.sketches.Block(0, head, source / kSketchBlock), source % kSketchBlock,
                   to.sketches.Block(slot, head, row / kSketchBlock), row % kSketchBlock);
      to.retained.Positions(slot, head)[row] = source;
      to.retained.Priorities(slot, head)[row] = priorities[source];
    }
  }
}

}  // namespace infinigen
