// Attention of the oracle: every form of it is attention to a list of rows.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <vector>

#include "backend/reference/reference_backend.h"
#include "kv/select.h"
#include "kv/store.h"
#include "kv/tail.h"

namespace infinigen {

std::vector<float> AttentionWeights(const float* query, int64_t slot, int64_t head, std::span<const int32_t> rows,
                                    const AttentionShape& shape, const LayerEntries& entries, SoftmaxNorm* norm) {
  const EntryLayout& layout = entries.layout;
  std::vector<float> weights, key(static_cast<size_t>(layout.head_dim));
  float largest = -INFINITY;
  for (const int32_t row : rows) {
    LoadRow(layout.key_type(), entries.Entry(slot, head, row), key);
    float score = 0;
    for (size_t i = 0; i < key.size(); ++i) score += query[i] * key[i];
    weights.push_back(SoftCapped(score * shape.scale, shape.soft_cap));
    largest = std::max(largest, weights.back());
  }
  float sum = 0;
  for (float& weight : weights) sum += weight = std::exp(weight - largest);
  for (float& weight : weights) weight /= sum;
  if (norm != nullptr) *norm = {largest, sum};
  return weights;
}

SoftmaxNorm AttendHead(const float* query, int64_t slot, int64_t head, std::span<const int32_t> rows,
                       const AttentionShape& shape, const LayerEntries& entries, float* out) {
  const EntryLayout& layout = entries.layout;
  SoftmaxNorm norm;
  const std::vector<float> weights = AttentionWeights(query, slot, head, rows, shape, entries, &norm);
  std::vector<float> value(static_cast<size_t>(layout.head_dim));
  std::fill_n(out, layout.head_dim, 0.0f);
  for (size_t j = 0; j < rows.size(); ++j) {
    LoadRow(layout.value_type(), entries.Entry(slot, head, rows[j]) + layout.key_bytes(), value);
    for (size_t i = 0; i < value.size(); ++i) out[i] += weights[j] * value[i];
  }
  return norm;
}

void AttendToTail(const TailView& tail, int64_t token, int64_t query_head, const SoftmaxNorm& norm, float* out) {
  const float* sums = tail.Sums(token, query_head);
  if (sums[1] < 0) return;
  const float* means = sums + 2 + tail.basis.value_dims;
  const TailSums of_head{sums[0], sums[1], {sums + 2, means}, {means, means + tail.mean_dims}};
  const int64_t kv_head = query_head / (tail.heads / tail.basis.kv_heads);
  const float share =
      AddTail(of_head, tail.basis, kv_head, norm.largest, norm.sum, {out, static_cast<size_t>(tail.basis.head_dim)});
  tail.mass->Add(static_cast<double>(share));
}

namespace {

// Rows [0, length), or the last `window` of them.
std::vector<int32_t> AllRows(int64_t length, int64_t window = 0) {
  const int64_t first = window > 0 ? std::max<int64_t>(0, length - window) : 0;
  std::vector<int32_t> rows(static_cast<size_t>(length - first));
  std::iota(rows.begin(), rows.end(), static_cast<int32_t>(first));
  return rows;
}

void AttendToken(const float* queries, int64_t slot, int64_t length, const AttentionShape& shape,
                 const LayerEntries& entries, float* out) {
  const int64_t group = shape.heads / entries.layout.kv_heads;
  const std::vector<int32_t> rows = AllRows(length, shape.window);
  for (int64_t head = 0; head < shape.heads; ++head) {
    const int64_t offset = head * entries.layout.head_dim;
    AttendHead(queries + offset, slot, head / group, rows, shape, entries, out + offset);
  }
}

}  // namespace

void ReferenceBackend::AttendPrefill(Queue, const ConstTensor& queries, const TokenRun& run,
                                     const AttentionShape& shape, const LayerEntries& entries, const Tensor& out) {
  for (int64_t t = 0; t < run.count; ++t)
    AttendToken(queries.as<float>(t), run.slot.value(), run.first_row + t + 1, shape, entries, out.as<float>(t));
}

void ReferenceBackend::AttendDecode(Queue, const ConstTensor& queries, const TokenBatch& batch, int64_t,
                                    const AttentionShape& shape, const LayerEntries& entries, const Tensor& out) {
  for (int64_t t = 0; t < batch.count; ++t)
    AttendToken(queries.as<float>(t), batch.slots[t], batch.rows[t] + 1, shape, entries, out.as<float>(t));
}

void ReferenceBackend::AttendSelected(Queue, const ConstTensor& queries, const TokenBatch& batch,
                                      const Selection& selection, const TailView& tail, const AttentionShape& shape,
                                      const LayerEntries& entries, const Tensor& out) {
  const int64_t group = shape.heads / entries.layout.kv_heads, dim = entries.layout.head_dim;
  for (int64_t t = 0; t < batch.count; ++t) {
    for (int64_t head = 0; head < shape.heads; ++head) {
      const int64_t kv_head = head / group;
      const std::span rows(selection.Rows(t, kv_head), static_cast<size_t>(selection.Count(t, kv_head)));
      float* const to = out.as<float>(t) + head * dim;
      const SoftmaxNorm norm =
          AttendHead(queries.as<float>(t) + head * dim, batch.slots[t], kv_head, rows, shape, entries, to);
      if (tail) AttendToTail(tail, t, head, norm, to);
    }
  }
}

void ReferenceBackend::MeasureMass(Queue, const ConstTensor& queries, const TokenBatch& batch,
                                   const Selection& selection, const AttentionShape& shape, const LayerEntries& entries,
                                   MassTotals* mass) {
  const int64_t group = shape.heads / entries.layout.kv_heads, dim = entries.layout.head_dim;
  for (int64_t t = 0; t < batch.count; ++t) {
    const std::vector<int32_t> all = AllRows(batch.rows[t] + 1);
    for (int64_t head = 0; head < shape.heads; ++head) {
      const int64_t kv_head = head / group;
      const std::vector<float> weights =
          AttentionWeights(queries.as<float>(t) + head * dim, batch.slots[t], kv_head, all, shape, entries);
      double inside = 0;
      for (int64_t j = 0; j < selection.Count(t, kv_head); ++j)
        inside += weights[static_cast<size_t>(selection.Rows(t, kv_head)[j])];
      inside = std::clamp(inside, 0.0, 1.0);
      mass->Add(inside);
    }
  }
}

}  // namespace infinigen
