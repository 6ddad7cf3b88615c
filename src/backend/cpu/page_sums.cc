// AppendPageSums and SelectPageMeans: sums of pages (kv/page_sums.h), and the scores of pages by them.
//
// A sum is a chain of additions in the order of rows, one chain for each dimension: the bits of the host form, on every
// SIMD target. The score is the dot product with the query, which carries scale and the division by 16
// (backend/cpu/page_score-inl.h).
#include <algorithm>
#include <cmath>
#include <limits>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/page_query.h"
#include "backend/cpu/select.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/page_sums.cc"
#include <hwy/foreach_target.h>
// After foreach_target.
#include <hwy/highway.h>

#include "backend/cpu/page_score-inl.h"
#include "backend/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace infinigen::HWY_NAMESPACE {

// Numbers that are not finite count as zero.
HWY_INLINE VF FiniteOrZero(DF d, VF v) {
  return hn::IfThenElseZero(hn::Le(hn::Abs(v), hn::Set(d, std::numeric_limits<float>::max())), v);
}

// sum += key, or sum = key where `starts`.                 both [dims]
HWY_INLINE void AddKey(const float* key, int64_t dims, bool starts, float* sum) {
  const DF d;
  const auto added = [&](VF before, VF number) HWY_ATTR {
    return starts ? FiniteOrZero(d, number) : hn::Add(before, FiniteOrZero(d, number));
  };
  int64_t i = 0;
  for (; i + kLanes <= dims; i += kLanes) hn::StoreU(added(hn::LoadU(d, sum + i), hn::LoadU(d, key + i)), d, sum + i);
  if (i < dims) StoreTail(d, added(LoadTail(d, sum + i, dims - i), LoadTail(d, key + i, dims - i)), sum + i, dims - i);
}

// All tokens of the batch, one KV head. key: of the first token; stride: floats from token to token.
void AddKeys(const TokenBatch& batch, const float* key, int64_t stride, const LayerPageSums& sums, int64_t head) {
  for (int64_t t = 0; t < batch.count; ++t, key += stride) {
    const int64_t row = batch.rows[t];
    AddKey(key, sums.layout.head_dim, row % kPageRows == 0, sums.Page(batch.slots[t], head, row / kPageRows));
  }
}

void ScoreSums(const PageQuery& query, const float* head, const ScoredRows& rows) { ScorePages(query, head, rows); }

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace infinigen::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace infinigen {
namespace {

HWY_EXPORT(AddKeys);
HWY_EXPORT(ScoreSums);

// The queries [group][head_dim] of one KV head, scaled; scratch [group][Stride].
PageQuery ScaleQueries(const float* queries, int64_t head_dim, int64_t group, float scale, float* scratch) {
  const PageQuery query{group, head_dim, PageQuery::Stride(head_dim), scratch};
  for (int64_t g = 0; g < group; ++g) {
    float* parts = scratch + g * query.stride;
    for (int64_t i = 0; i < head_dim; ++i) parts[i] = queries[g * head_dim + i] * scale;
    std::fill(parts + head_dim, parts + query.stride, 0.0f);
  }
  return query;
}

}  // namespace

void CpuBackend::AppendPageSums(Queue, const TokenBatch& batch, const ConstTensor& keys, const LayerPageSums& sums) {
  const PageSumsLayout& layout = sums.layout;
  CHECK(keys.type == DType::kF32 && keys.cols == layout.kv_heads * layout.head_dim && keys.rows >= batch.count);
  // A task is a head: the rows of a page follow each other.
  ForRows(layout.kv_heads, batch.count * layout.head_dim, [&](int64_t first, int64_t count) {
    for (int64_t head = first; head < first + count; ++head)
      HWY_DYNAMIC_DISPATCH(AddKeys)(batch, keys.as<float>(0) + head * layout.head_dim, keys.stride, sums, head);
  });
}

void CpuBackend::SelectPageMeans(Queue, const ConstTensor& queries, const TokenBatch& batch, const SelectCall& call,
                                 const AttentionShape& shape, const LayerPageSums& sums, const Selection& selection) {
  const PageSumsLayout& layout = sums.layout;
  CHECK(call.page == kPageRows && shape.heads % layout.kv_heads == 0 && layout.head_dim <= kMaxHeadDim);
  CHECK(queries.type == DType::kF32 && queries.cols == shape.heads * layout.head_dim && queries.rows >= batch.count);
  const int64_t group = shape.heads / layout.kv_heads;
  const float scale = shape.scale / static_cast<float>(kPageRows);
  const auto score = [&](int64_t token, int64_t head, const ScoredRows& pages, float* scratch) {
    const PageQuery query =
        ScaleQueries(queries.as<float>(token) + head * group * layout.head_dim, layout.head_dim, group, scale, scratch);
    HWY_DYNAMIC_DISPATCH(ScoreSums)(query, sums.Page(batch.slots[token], head, 0), pages);
  };
  SelectBy(batch, call, layout.kv_heads, group, selection, group * PageQuery::Stride(layout.head_dim), score, NoTail());
}

}  // namespace infinigen
#endif  // HWY_ONCE
