// Sketches and selection of the oracle: the host form of kv/sketch.h and kv/selection.h, for every token and head.
#include "kv/selection.h"

#include <algorithm>
#include <span>
#include <vector>

#include "backend/reference/element.h"
#include "backend/reference/reference_backend.h"
#include "kv/page_bounds.h"
#include "kv/sketch.h"

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

// One token: `relative` has the relative scores of each KV head.
void SelectToken(const std::vector<std::vector<float>>& relative, const SelectCall& call, int64_t token, int64_t slot,
                 int64_t current, const Selection& selection) {
  const SelectRule rule = call.RuleFor(slot, current);
  const int64_t heads = static_cast<int64_t>(relative.size()), n = current + 1;
  std::vector<int64_t> passing;
  for (const std::vector<float>& r : relative) passing.push_back(CountPassing(r, rule.alpha));
  if (call.mean_counts) {
    int64_t sum = 0;
    for (const int64_t count : passing) sum += count;
    std::fill(passing.begin(), passing.end(), sum / heads);
  }
  SelectionTotals& totals = call.totals[slot];
  for (int64_t head = 0; head < heads; ++head) {
    const std::vector<float>& r = relative[static_cast<size_t>(head)];
    const int64_t count =
        ChosenCount(rule, passing[static_cast<size_t>(head)], static_cast<int64_t>(r.size()), n, call.page);
    const SelectedRows selected = ChooseRows(r, rule, count, current, call.page);
    std::copy(selected.rows.begin(), selected.rows.end(), selection.Rows(token, head));
    selection.Count(token, head) = static_cast<int32_t>(selected.rows.size());
    totals.chosen += static_cast<uint64_t>(selected.chosen);
    totals.attended += selected.rows.size();
    totals.retained += static_cast<uint64_t>(n);
  }
}

}  // namespace

void ReferenceBackend::AppendSketches(Queue, const TokenBatch& batch, const ConstTensor& keys, const SketchBasis& basis,
                                      const LayerSketches& sketches) {
  const int64_t heads = sketches.layout.kv_heads;
  for (int64_t t = 0; t < batch.count; ++t) {
    const int64_t slot = batch.slots[t], row = batch.rows[t];
    for (int64_t head = 0; head < heads; ++head)
      StoreSketch(sketches.layout, sketches.Block(slot, head, row / kSketchBlock), row % kSketchBlock,
                  Project(keys.as<float>(t) + head * basis.head_dim, basis.Key(slot, head), basis.KeyOffset(slot, head),
                          basis.head_dim, basis.dims));
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

void ReferenceBackend::Select(Queue, const ConstTensor& sketch_queries, const TokenBatch& batch, const SelectCall& call,
                              const LayerSketches& sketches, const Selection& selection) {
  const SketchLayout& layout = sketches.layout;
  const int64_t group = sketch_queries.cols / layout.dims / layout.kv_heads;
  for (int64_t t = 0; t < batch.count; ++t) {
    const int64_t visible = call.Visible(batch.rows[t]);
    std::vector<std::vector<float>> relative;
    for (int64_t head = 0; head < layout.kv_heads; ++head) {
      std::vector<float> scores;
      for (int64_t g = 0; g < group; ++g) {
        const std::span query(sketch_queries.as<float>(t) + (head * group + g) * layout.dims,
                              static_cast<size_t>(layout.dims));
        const std::vector<float> part = ScoreSketches(layout, sketches.Head(batch.slots[t], head), visible, query);
        scores.insert(scores.end(), part.begin(), part.end());
      }
      relative.push_back(RelativeScores(scores, group));
    }
    SelectToken(relative, call, t, batch.slots[t], batch.rows[t], selection);
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
  for (int64_t t = 0; t < batch.count; ++t) {
    std::vector<std::vector<float>> relative;
    for (int64_t head = 0; head < layout.kv_heads; ++head) {
      std::vector<float> scores;
      for (int64_t g = 0; g < group; ++g) {
        const float* numbers = queries.as<float>(t) + (head * group + g) * layout.head_dim;
        std::vector<float> query(numbers, numbers + layout.head_dim);
        for (float& number : query) number *= shape.scale;
        for (int64_t row = 0; row < call.Visible(batch.rows[t]); ++row)
          scores.push_back(PageScore({bounds.Page(batch.slots[t], head, row / kPageRows), 2 * query.size()}, query));
      }
      relative.push_back(RelativeScores(scores, group));
    }
    SelectToken(relative, call, t, batch.slots[t], batch.rows[t], selection);
  }
}

void ReferenceBackend::SelectExact(Queue, const ConstTensor& queries, const TokenBatch& batch, const SelectCall& call,
                                   const AttentionShape& shape, const LayerEntries& entries,
                                   const Selection& selection) {
  const EntryLayout& layout = entries.layout;
  const int64_t group = shape.heads / layout.kv_heads;
  for (int64_t t = 0; t < batch.count; ++t) {
    const int64_t visible = call.Visible(batch.rows[t]);
    std::vector<std::vector<float>> relative;
    for (int64_t head = 0; head < layout.kv_heads; ++head) {
      std::vector<float> scores;
      for (int64_t g = 0; g < group; ++g) {
        const float* query = queries.as<float>(t) + (head * group + g) * layout.head_dim;
        for (int64_t row = 0; row < visible; ++row) {
          float score = 0;
          const std::byte* key = entries.Entry(batch.slots[t], head, row);
          for (int64_t i = 0; i < layout.head_dim; ++i) score += query[i] * Load(key, layout.type, i);
          scores.push_back(score * shape.scale);
        }
      }
      relative.push_back(RelativeScores(scores, group));
    }
    SelectToken(relative, call, t, batch.slots[t], batch.rows[t], selection);
  }
}

}  // namespace infinigen
