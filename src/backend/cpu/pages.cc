// AppendBounds and SelectPages: page bounds (kv/index.h) and the scores of pages.
//
// The bounds of a page are one vector of 2 · head_dim numbers (least, greatest); its score is the dot product with
// (negative parts, positive parts) of the query (backend/cpu/page_score-inl.h).
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/page_query.h"
#include "backend/cpu/select.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/pages.cc"
#include <hwy/foreach_target.h>
// After foreach_target.
#include <hwy/highway.h>

#include "backend/cpu/page_score-inl.h"

HWY_BEFORE_NAMESPACE();
namespace infinigen::HWY_NAMESPACE {

// ---- Bounds

// The least bf16 that is not below x, as f32; x is finite.
HWY_INLINE float RoundUp(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t carry = static_cast<uint32_t>(~static_cast<int32_t>(bits) >> 31) & 0xffffu;  // for numbers ≥ 0
  constexpr float kLargest = 0x1.fep127f;
  const float up = std::bit_cast<float>((bits + carry) & 0xffff0000u);
  return up < kLargest ? up : kLargest;
}

// Extends the bounds of one KV head by all tokens of the batch. key: the first token's; stride: floats from token to
// token.
void WidenBounds(const TokenBatch& batch, const float* key, int64_t stride, const LayerPageBounds& bounds,
                 int64_t head) {
  const int64_t d = bounds.layout.head_dim;
  for (int64_t t = 0; t < batch.count; ++t, key += stride) {
    const int64_t row = batch.rows[t];
    uint16_t* least = &bounds.Page(batch.slots[t], head, row / kPageRows)->bits;
    uint16_t* largest = least + d;
    if (row % kPageRows == 0) {
      std::fill_n(least, d, uint16_t{0x7f80});    // infinity
      std::fill_n(largest, d, uint16_t{0xff80});  // -infinity
    }
    for (int64_t i = 0; i < d; ++i) {
      const float number = std::fabs(key[i]) <= std::numeric_limits<float>::max() ? key[i] : 0.0f;
      const float down = -RoundUp(-number), up = RoundUp(number);
      const float low = std::bit_cast<float>(static_cast<uint32_t>(least[i]) << 16);
      const float high = std::bit_cast<float>(static_cast<uint32_t>(largest[i]) << 16);
      least[i] = static_cast<uint16_t>(std::bit_cast<uint32_t>(down < low ? down : low) >> 16);
      largest[i] = static_cast<uint16_t>(std::bit_cast<uint32_t>(up > high ? up : high) >> 16);
    }
  }
}

// ---- Scores

void ScoreBounds(const PageQuery& query, const BF16* head, const ScoredRows& rows) { ScorePages(query, head, rows); }

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace infinigen::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace infinigen {
namespace {

HWY_EXPORT(WidenBounds);
HWY_EXPORT(ScoreBounds);

PageQuery SplitQueries(const float* queries, const PageBoundsLayout& layout, int64_t group, float scale,
                       float* scratch) {
  const PageQuery query{group, layout.page_numbers(), PageQuery::Stride(layout.page_numbers()), scratch};
  for (int64_t g = 0; g < group; ++g) {
    float* parts = scratch + g * query.stride;
    for (int64_t i = 0; i < layout.head_dim; ++i) {
      const float number = queries[g * layout.head_dim + i] * scale;
      const bool positive = number > 0;
      parts[i] = positive ? 0.0f : number;  // NaN goes here
      parts[layout.head_dim + i] = positive ? number : 0.0f;
    }
    std::fill(parts + query.numbers, parts + query.stride, 0.0f);
  }
  return query;
}

}  // namespace

void CpuBackend::AppendBounds(Queue, const TokenBatch& batch, const ConstTensor& keys, const LayerPageBounds& bounds) {
  const PageBoundsLayout& layout = bounds.layout;
  CHECK(keys.type == DType::kF32 && keys.cols == layout.kv_heads * layout.head_dim && keys.rows >= batch.count);
  // One task per head: the rows of a page are in order.
  ForRows(layout.kv_heads, batch.count * layout.head_dim, [&](int64_t first, int64_t count) {
    for (int64_t head = first; head < first + count; ++head)
      HWY_DYNAMIC_DISPATCH(WidenBounds)(batch, keys.as<float>(0) + head * layout.head_dim, keys.stride, bounds, head);
  });
}

void CpuBackend::SelectPages(Queue, const ConstTensor& queries, const TokenBatch& batch, const SelectCall& call,
                             const AttentionShape& shape, const LayerPageBounds& bounds, const Selection& selection) {
  const PageBoundsLayout& layout = bounds.layout;
  CHECK(call.page == kPageRows && shape.heads % layout.kv_heads == 0 && layout.head_dim <= kMaxHeadDim);
  CHECK(queries.type == DType::kF32 && queries.cols == shape.heads * layout.head_dim && queries.rows >= batch.count);
  const int64_t group = shape.heads / layout.kv_heads;
  const auto score = [&](int64_t token, int64_t head, const ScoredRows& pages, float* scratch) {
    const PageQuery query =
        SplitQueries(queries.as<float>(token) + head * group * layout.head_dim, layout, group, shape.scale, scratch);
    HWY_DYNAMIC_DISPATCH(ScoreBounds)(query, bounds.Page(batch.slots[token], head, 0), pages);
  };
  SelectBy(batch, call, layout.kv_heads, group, selection, group * PageQuery::Stride(layout.page_numbers()), score,
           NoTail());
}

}  // namespace infinigen
#endif  // HWY_ONCE
