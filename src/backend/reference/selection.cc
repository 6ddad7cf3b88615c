// Sketches, page bounds and selection of the oracle: applies the host definitions in kv/index.h and kv/select.h to
// every token and head.
#include <algorithm>
#include <numeric>
#include <span>
#include <vector>

#include "backend/reference/reference_backend.h"
#include "kv/index.h"
#include "kv/page_sums.h"
#include "kv/select.h"
#include "kv/store.h"
#include "kv/tail.h"

namespace infinigen {
namespace {

// x · matrix − offset.                                    x [rows], matrix [rows][cols]; offset [cols] or null
std::vector<float> Project(const float* x, const float* matrix, const float* offset, int64_t rows, int64_t cols) {
  std::vector<float> out(static_cast<size_t>(cols));
  for (int64_t c = 0; c < cols; ++c) {
    float sum = 0;
    for (int64_t i = 0; i < rows; ++i) sum += x[i] * matrix[i * cols + c];
    out[static_cast<size_t>(c)] = offset == nullptr ? sum : sum - offset[c];
  }
  return out;
}

// Selects rows for every token and KV head. scores_of(token, head, g, rows) returns the scores of query head g of the
// group for rows [0, rows).
template <class ScoresOf>
void SelectBy(const TokenBatch& batch, const SelectCall& call, int64_t heads, int64_t group, const Selection& selection,
              const ScoresOf& scores_of) {
  for (int64_t t = 0; t < batch.count; ++t) {
    const int64_t slot = batch.slots[t], n = batch.rows[t] + 1;
    const int64_t visible = call.Visible(n - 1);
    const SelectRule rule = call.RuleFor(slot, n - 1);
    std::vector<std::vector<float>> relative;
    std::vector<int64_t> passing;
    for (int64_t head = 0; head < heads; ++head) {
      std::vector<float> scores;
      for (int64_t g = 0; g < group; ++g) {
        const float level = call.tail && call.soft_cap > 0 ? call.tail.Levels(t)[head * group + g] : 0;
        for (const float score : scores_of(t, head, g, visible))
          scores.push_back(SoftCapped(score + level, call.soft_cap));
      }
      relative.push_back(RelativeScores(scores, group));
      passing.push_back(rule.mass > 0 ? CountForMass(scores, group, rule.mass)
                                      : CountPassing(relative.back(), rule.alpha));
    }
    if (call.mean_counts)
      std::fill(passing.begin(), passing.end(), std::accumulate(passing.begin(), passing.end(), int64_t{0}) / heads);
    SelectionTotals& totals = call.totals[slot];
    for (int64_t head = 0; head < heads; ++head) {
      const size_t h = static_cast<size_t>(head);
      const SelectedRows selected =
          ChooseRows(relative[h], rule, ChosenCount(rule, passing[h], visible, n, call.page),
                     {n, batch.Position(t), call.retained ? call.retained.Positions(slot, head) : nullptr}, call.page);
      std::copy(selected.rows.begin(), selected.rows.end(), selection.Rows(t, head));
      selection.Count(t, head) = static_cast<int32_t>(selected.rows.size());
      totals.chosen += static_cast<uint64_t>(selected.chosen);
      totals.attended += selected.rows.size();
      totals.retained += static_cast<uint64_t>(n);
    }
  }
}

// Writes a selection and its late rows to call.late. Returns all of them.
std::span<int32_t> AddLateRows(const TokenBatch& batch, const SelectCall& call, int64_t token, int64_t head,
                               const std::vector<float>& relative, std::span<const int32_t> selected) {
  const int64_t slot = batch.slots[token];
  const std::vector<int32_t> rows = ChooseLateRows(
      relative, selected, call.rules[slot].LateRows(),
      {batch.rows[token] + 1, batch.Position(token), call.retained ? call.retained.Positions(slot, head) : nullptr});
  const LateSelection& late = call.late;
  CHECK(std::ssize(rows) <= late.capacity);
  MergeLateRows(selected, rows, late.all.Rows(token, head), late.Items(token, head));
  late.Count(token, head) = static_cast<int32_t>(rows.size());
  late.all.Count(token, head) = static_cast<int32_t>(selected.size() + rows.size());
  call.totals[slot].chosen += rows.size();
  call.totals[slot].attended += rows.size();
  call.totals[slot].late += rows.size();
  return {late.all.Rows(token, head), selected.size() + rows.size()};
}

}  // namespace

void ReferenceBackend::AppendSketches(Queue, const TokenBatch& batch, const ConstTensor& keys, const SketchBasis& basis,
                                      const LayerSketches& sketches) {
  const int64_t heads = sketches.layout.kv_heads;
  for (int64_t t = 0; t < batch.count; ++t) {
    const int64_t slot = batch.slots[t];
    for (int64_t head = 0; head < heads; ++head) {
      const int64_t row = batch.OwnRow(t, head);
      StoreSketch(sketches.layout, sketches.Block(slot, head, row / kSketchBlock), row % kSketchBlock,
                  Project(keys.as<float>(t) + head * basis.head_dim, basis.Key(slot, head), basis.KeyOffset(slot, head),
                          basis.head_dim, basis.dims));
    }
  }
}

void ReferenceBackend::SketchQueries(Queue, const ConstTensor& queries, const TokenBatch& batch,
                                     const AttentionShape& shape, const SketchBasis& basis, const Tensor& out) {
  const int64_t group = shape.heads / basis.kv_heads;
  for (int64_t t = 0; t < batch.count; ++t) {
    for (int64_t head = 0; head < shape.heads; ++head) {
      const std::vector<float> sketch =
          Project(queries.as<float>(t) + head * basis.head_dim, basis.Query(batch.slots[t], head / group), nullptr,
                  basis.head_dim, basis.dims);
      for (int64_t c = 0; c < basis.dims; ++c)
        out.as<float>(t)[head * basis.dims + c] = sketch[static_cast<size_t>(c)] * shape.scale;
    }
  }
}

void ReferenceBackend::Select(Queue queue, const ConstTensor& sketch_queries, const TokenBatch& batch,
                              const SelectCall& call, const LayerSketches& sketches, const Selection& selection) {
  const SketchLayout& layout = sketches.layout;
  const int64_t group = sketch_queries.cols / layout.dims / layout.kv_heads;
  SelectBy(batch, call, layout.kv_heads, group, selection, [&](int64_t t, int64_t head, int64_t g, int64_t rows) {
    const std::span query(sketch_queries.as<float>(t) + (head * group + g) * layout.dims,
                          static_cast<size_t>(layout.dims));
    return ScoreSketches(layout, sketches.Head(batch.slots[t], head), rows, query);
  });
  if (call.tail) SumTails(queue, sketch_queries, batch, call, sketches, selection);
}

void ReferenceBackend::AppendValueSketches(Queue, const TokenBatch& batch, const ConstTensor& values,
                                           const TailBasis& basis, const LayerSketches& sketches) {
  for (int64_t t = 0; t < batch.count; ++t) {
    for (int64_t head = 0; head < sketches.layout.kv_heads; ++head) {
      const int64_t row = batch.OwnRow(t, head);
      StoreValueSketch(sketches.layout, sketches.Block(batch.slots[t], head, row / kSketchBlock), row % kSketchBlock,
                       Project(values.as<float>(t) + head * basis.head_dim, basis.Value(head), basis.ValueOffset(head),
                               basis.head_dim, basis.value_dims));
    }
  }
}

void ReferenceBackend::AppendBlockMeans(Queue, const TokenBatch& batch, const LayerEntries& entries,
                                        const TailBasis& basis, const LayerSketches& sketches) {
  const size_t d = static_cast<size_t>(basis.head_dim);
  std::vector<float> values(kSketchBlock * d);
  for (int64_t t = 0; t < batch.count; ++t) {
    const int64_t slot = batch.slots[t], last = batch.rows[t];
    if (!CompletesBlock(last)) continue;
    for (int64_t head = 0; head < sketches.layout.kv_heads; ++head) {
      for (int64_t i = 0; i < kSketchBlock; ++i)
        LoadRow(entries.layout.value_type(),
                entries.Entry(slot, head, last + 1 - kSketchBlock + i) + entries.layout.key_bytes(),
                std::span(values).subspan(static_cast<size_t>(i) * d, d));
      StoreBlockMean(sketches.layout, sketches.Block(slot, head, last / kSketchBlock), values,
                     {basis.ValueMean(head), d});
    }
  }
}

void ReferenceBackend::QueryLevels(Queue, const ConstTensor& queries, const TokenBatch& batch,
                                   const AttentionShape& shape, const TailView& tail) {
  const TailBasis& basis = tail.basis;
  const int64_t group = shape.heads / basis.kv_heads;
  for (int64_t t = 0; t < batch.count; ++t)
    for (int64_t head = 0; head < shape.heads; ++head)
      tail.Levels(t)[head] = Project(queries.as<float>(t) + head * basis.head_dim, basis.KeyMean(head / group), nullptr,
                                     basis.head_dim, 1)[0] *
                             shape.scale;
}

void ReferenceBackend::SumTails(Queue, const ConstTensor& sketch_queries, const TokenBatch& batch,
                                const SelectCall& call, const LayerSketches& sketches, const Selection& selection) {
  const SketchLayout& layout = sketches.layout;
  const int64_t group = sketch_queries.cols / layout.dims / layout.kv_heads;
  for (int64_t t = 0; t < batch.count; ++t) {
    const int64_t slot = batch.slots[t], visible = call.Visible(batch.rows[t]);
    const int64_t complete = (batch.rows[t] + 1) / kSketchBlock * kSketchBlock;
    for (int64_t kv_head = 0; kv_head < layout.kv_heads; ++kv_head) {
      const std::byte* blocks = sketches.Head(slot, kv_head);
      // Without a level, which all scores of a query head have in common, scores are exact integers times scales.
      std::vector<float> plain;  // [group][visible]
      for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
        const float level = call.soft_cap > 0 ? call.tail.Levels(t)[head] : 0;
        for (const float score :
             ScoreSketches(layout, blocks, visible,
                           {sketch_queries.as<float>(t) + head * layout.dims, static_cast<size_t>(layout.dims)}))
          plain.push_back(SoftCapped(score + level, call.soft_cap));
      }
      std::span selected(selection.Rows(t, kv_head), static_cast<size_t>(selection.Count(t, kv_head)));
      if (call.late) selected = AddLateRows(batch, call, t, kv_head, RelativeScores(plain, group), selected);
      for (int64_t g = 0; g < group; ++g) {
        const int64_t head = kv_head * group + g;
        std::vector<float> scores(plain.begin() + g * visible, plain.begin() + (g + 1) * visible);
        for (float& score : scores) score += call.soft_cap > 0 ? 0 : call.tail.Levels(t)[head];
        if (!call.rules[slot].tail) scores.clear();
        const TailSums tail = SumTail(layout, blocks, scores, selected, complete);
        float* to = call.tail.Sums(t, head);
        to[0] = tail.maximum;
        to[1] = call.rules[slot].tail ? tail.sum : TailView::kNoTail;
        std::copy(tail.means.begin(), tail.means.end(), std::copy(tail.values.begin(), tail.values.end(), to + 2));
      }
    }
  }
}

void ReferenceBackend::AppendBounds(Queue, const TokenBatch& batch, const ConstTensor& keys,
                                    const LayerPageBounds& bounds) {
  const size_t d = static_cast<size_t>(bounds.layout.head_dim);
  for (int64_t t = 0; t < batch.count; ++t)
    for (int64_t head = 0; head < bounds.layout.kv_heads; ++head)
      AddToBounds({bounds.Page(batch.slots[t], head, batch.rows[t] / kPageRows), 2 * d}, batch.rows[t],
                  {keys.as<float>(t) + head * bounds.layout.head_dim, d});
}

void ReferenceBackend::SelectPages(Queue, const ConstTensor& queries, const TokenBatch& batch, const SelectCall& call,
                                   const AttentionShape& shape, const LayerPageBounds& bounds,
                                   const Selection& selection) {
  const PageBoundsLayout& layout = bounds.layout;
  const int64_t group = shape.heads / layout.kv_heads;
  SelectBy(batch, call, layout.kv_heads, group, selection, [&](int64_t t, int64_t head, int64_t g, int64_t rows) {
    const float* numbers = queries.as<float>(t) + (head * group + g) * layout.head_dim;
    std::vector<float> query(static_cast<size_t>(layout.head_dim)), scores;
    std::transform(numbers, numbers + layout.head_dim, query.begin(), [&](float x) { return x * shape.scale; });
    for (int64_t row = 0; row < rows; ++row)
      scores.push_back(PageScore({bounds.Page(batch.slots[t], head, row / kPageRows), 2 * query.size()}, query));
    return scores;
  });
}

void ReferenceBackend::AppendPageSums(Queue, const TokenBatch& batch, const ConstTensor& keys,
                                      const LayerPageSums& sums) {
  const size_t d = static_cast<size_t>(sums.layout.head_dim);
  for (int64_t t = 0; t < batch.count; ++t)
    for (int64_t head = 0; head < sums.layout.kv_heads; ++head)
      AddToPageSum({sums.Page(batch.slots[t], head, batch.rows[t] / kPageRows), d}, batch.rows[t],
                   {keys.as<float>(t) + head * sums.layout.head_dim, d});
}

void ReferenceBackend::SelectPageMeans(Queue, const ConstTensor& queries, const TokenBatch& batch,
                                       const SelectCall& call, const AttentionShape& shape, const LayerPageSums& sums,
                                       const Selection& selection) {
  const PageSumsLayout& layout = sums.layout;
  const int64_t group = shape.heads / layout.kv_heads;
  SelectBy(batch, call, layout.kv_heads, group, selection, [&](int64_t t, int64_t head, int64_t g, int64_t rows) {
    const float* numbers = queries.as<float>(t) + (head * group + g) * layout.head_dim;
    std::vector<float> query(static_cast<size_t>(layout.head_dim)), scores;
    std::transform(numbers, numbers + layout.head_dim, query.begin(), [&](float x) { return x * shape.scale; });
    for (int64_t row = 0; row < rows; ++row)
      scores.push_back(PageMeanScore({sums.Page(batch.slots[t], head, row / kPageRows), query.size()}, query));
    return scores;
  });
}

void ReferenceBackend::SelectExact(Queue, const ConstTensor& queries, const TokenBatch& batch, const SelectCall& call,
                                   const AttentionShape& shape, const LayerEntries& entries,
                                   const Selection& selection) {
  const EntryLayout& layout = entries.layout;
  const int64_t group = shape.heads / layout.kv_heads;
  std::vector<float> key(static_cast<size_t>(layout.head_dim));
  SelectBy(batch, call, layout.kv_heads, group, selection, [&](int64_t t, int64_t head, int64_t g, int64_t rows) {
    const float* query = queries.as<float>(t) + (head * group + g) * layout.head_dim;
    std::vector<float> scores;
    for (int64_t row = 0; row < rows; ++row) {
      float score = 0;
      LoadRow(layout.key_type(), entries.Entry(batch.slots[t], head, row), key);
      for (size_t i = 0; i < key.size(); ++i) score += query[i] * key[i];
      scores.push_back(score * shape.scale);
    }
    return scores;
  });
}

}  // namespace infinigen
