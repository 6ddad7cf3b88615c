// Scores of pages, once per SIMD target: the index of a page is one vector of numbers of type T, and its score the dot
// product with the parts of a query (backend/cpu/page_query.h).
//
// Four pages are scored against up to four query heads at a time, so that every number is read and widened once. One
// order of additions: number i goes to lane i mod kLanes, ascending, and lanes are summed by the tree of
// SumLanesOfFour; neither depends on which pages or heads are scored together.
#if defined(INFINIGEN_CPU_PAGE_SCORE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef INFINIGEN_CPU_PAGE_SCORE_INL_H_
#undef INFINIGEN_CPU_PAGE_SCORE_INL_H_
#else
#define INFINIGEN_CPU_PAGE_SCORE_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>

#include "backend/cpu/choose-inl.h"
#include "backend/cpu/page_query.h"
#include "backend/cpu/select.h"
#include "backend/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace infinigen::HWY_NAMESPACE {

// Four pages and kHeads queries; scores[h · kScoreBlock + page].
template <int kHeads, class T>
HWY_INLINE void ScoreFour(const PageQuery& query, int64_t first, const T* const (&pages)[4], float* scores) {
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

// rows.first and rows.last count pages, of which `head` is the first.
template <class T>
HWY_INLINE void ScorePages(const PageQuery& query, const T* head, const ScoredRows& rows) {
  // 16 accumulators fit into the registers of AVX-512 alone.
  constexpr int kMostHeads = kLanes == 16 ? 4 : 2;
  constexpr int64_t kAhead = 16;  // pages; about the time that memory takes to answer
  float* scores = rows.scores;
  Maxima maxima(rows.maxima, query.group, rows.soft_cap);
  for (int64_t start = rows.first; start < rows.last; start += kScoreBlock, scores += query.group * kScoreBlock) {
    const int64_t count = std::min(kScoreBlock, rows.last - start);
    for (int64_t page = 0; page < count; page += 4) {
      const T* pages[4];
      for (int64_t p = 0; p < 4; ++p) {  // the last one stands in for those that are not there
        pages[p] = head + std::min(start + page + p, rows.last - 1) * query.numbers;
        for (int64_t byte = 0; byte < query.numbers * static_cast<int64_t>(sizeof(T)); byte += 64)
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

#endif
