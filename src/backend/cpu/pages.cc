// AppendBounds and SelectPages: page bounds (kv/index.h) and the scores of pages.
//
// The bounds of a page are one vector of 2 · head_dim numbers (least, greatest); its score is the dot product with
// (negative parts, positive parts) of the query. Four pages are scored for up to four query heads at a time, so that
// every bound is read and widened once. The order of additions is fixed: number i goes to lane i mod kLanes, ascending,
// and lanes are summed by the tree of SumLanesOfFour. It does not depend on which pages or heads are scored together.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/select.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/pages.cc"
#include <hwy/foreach_target.h>
// After foreach_target.
#include <hwy/highway.h>

#include "backend/cpu/choose-inl.h"
#include "backend/cpu/vector-inl.h"

#ifndef INFINIGEN_CPU_PAGE_QUERY_
#define INFINIGEN_CPU_PAGE_QUERY_
namespace infinigen {
// The queries of one KV head, scaled and split by sign.
struct PageQuery {
  int64_t group = 0;
  int64_t numbers = 0;     // numbers per page
  int64_t stride = 0;      // from head to head, a multiple of every target's lanes
  float* parts = nullptr;  // [group][stride]: negative parts, positive parts, zeros

  static int64_t Stride(const PageBoundsLayout& layout) { return (layout.page_numbers() + 15) / 16 * 16; }
};
}  // namespace infinigen
#endif

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

// Four pages and kHeads queries; scores[h · kScoreBlock + page].
template <int kHeads>
HWY_INLINE void ScoreFour(const PageQuery& query, int64_t first, const BF16* const (&pages)[4], float* scores) {
  const DF d;
  VF sums[kHeads][4];
  INFINIGEN_UNROLL for (int h = 0; h < kHeads; ++h) INFINIGEN_UNROLL for (int p = 0; p < 4; ++p) sums[h][p] =
      hn::Zero(d);
  const float* parts = query.parts + first * query.stride;
  int64_t i = 0;
  const auto add = [&](const VF(&numbers)[4]) HWY_ATTR {
    INFINIGEN_UNROLL for (int h = 0; h < kHeads; ++h) {
      const VF part = hn::LoadU(d, parts + h * query.stride + i);
      INFINIGEN_UNROLL for (int p = 0; p < 4; ++p) sums[h][p] = hn::MulAdd(part, numbers[p], sums[h][p]);
    }
  };
  for (; i + kLanes <= query.numbers; i += kLanes) {
    VF numbers[4];
    INFINIGEN_UNROLL for (int p = 0; p < 4; ++p) numbers[p] = LoadF32(d, pages[p] + i);
    add(numbers);
  }
  if (i < query.numbers) {
    VF numbers[4];
    INFINIGEN_UNROLL for (int p = 0; p < 4; ++p) numbers[p] = LoadTail(d, pages[p] + i, query.numbers - i);
    add(numbers);
  }
  INFINIGEN_UNROLL for (int h = 0; h < kHeads; ++h)
      hn::StoreU(SumLanesOfFour(d, sums[h][0], sums[h][1], sums[h][2], sums[h][3]), D4(), scores + h * kScoreBlock);
}

// rows.first and rows.last count pages; `head` is the first page.
void ScorePages(const PageQuery& query, const BF16* head, const ScoredRows& rows) {
  // 16 accumulators fit only into the registers of AVX-512.
  constexpr int kMostHeads = kLanes == 16 ? 4 : 2;
  constexpr int64_t kAhead = 16;  // pages prefetched ahead; about the latency of memory
  float* scores = rows.scores;
  Maxima maxima(rows.maxima, query.group);
  for (int64_t start = rows.first; start < rows.last; start += kScoreBlock, scores += query.group * kScoreBlock) {
    const int64_t count = std::min(kScoreBlock, rows.last - start);
    for (int64_t page = 0; page < count; page += 4) {
      const BF16* pages[4];
      for (int64_t p = 0; p < 4; ++p) {  // the last page repeats in place of missing ones
        pages[p] = head + std::min(start + page + p, rows.last - 1) * query.numbers;
        for (int64_t byte = 0; byte < query.numbers * 2; byte += 64)
          PrefetchL2(reinterpret_cast<const std::byte*>(pages[p] + kAhead * query.numbers) + byte);
      }
      int64_t h = 0;
      if constexpr (kMostHeads == 4)
        for (; h + 4 <= query.group; h += 4) ScoreFour<4>(query, h, pages, scores + h * kScoreBlock + page);
      for (; h + 2 <= query.group; h += 2) ScoreFour<2>(query, h, pages, scores + h * kScoreBlock + page);
      if (h < query.group) ScoreFour<1>(query, h, pages, scores + h * kScoreBlock + page);
    }
    maxima.Add(scores, count);
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace infinigen::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace infinigen {
namespace {

HWY_EXPORT(WidenBounds);
HWY_EXPORT(ScorePages);

PageQuery SplitQueries(const float* queries, const PageBoundsLayout& layout, int64_t group, float scale,
                       float* scratch) {
  const PageQuery query{group, layout.page_numbers(), PageQuery::Stride(layout), scratch};
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
    HWY_DYNAMIC_DISPATCH(ScorePages)(query, bounds.Page(batch.slots[token], head, 0), pages);
  };
  SelectBy(batch, call, layout.kv_heads, group, selection, group * PageQuery::Stride(layout), score);
}

}  // namespace infinigen
#endif  // HWY_ONCE
