// Select: scores of sketches (sketch_score-inl.h); and the choice of rows from scores, for all select operations.
#include "backend/cpu/select.h"

#include "backend/cpu/sketch_query.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/select.cc"
#include <hwy/foreach_target.h>
// After foreach_target.
#include <hwy/highway.h>

#include "backend/cpu/choose-inl.h"
#include "backend/cpu/sketch_score-inl.h"

HWY_BEFORE_NAMESPACE();
namespace infinigen::HWY_NAMESPACE {

Chosen ChooseScoredHere(const Choice& choice, const ChoiceScratch& scratch, int32_t* rows, int64_t capacity) {
  return Chooser(choice, scratch).Choose(rows, capacity);
}
int64_t CountScoredHere(const Choice& choice, const ChoiceScratch& scratch) {
  return Chooser(choice, scratch).CountPassing();
}
void ScoreSketchRows(const SketchQuery& query, const std::byte* head, bool vnni, const ScoredRows& rows) {
  // Blocks prefetched ahead: scoring a block takes about the latency of memory, and the hardware does not predict the
  // order of blocks.
  constexpr int64_t kBlocksAhead = 4;
  const int64_t block_bytes = static_cast<int64_t>(query.layout.block_bytes());
  const std::byte* block = head + rows.first / kScoreBlock * block_bytes;
  float* scores = rows.scores;
  Maxima maxima(rows.maxima, query.group, rows.soft_cap);
  for (int64_t start = rows.first; start < rows.last; start += kScoreBlock) {
    for (int64_t byte = 0; byte < block_bytes; byte += 64) PrefetchL2(block + kBlocksAhead * block_bytes + byte);
    ScoreBlock(query, block, vnni, scores);
    maxima.Add(scores, std::min(kScoreBlock, rows.last - start));
    block += block_bytes;
    scores += query.group * kScoreBlock;
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace infinigen::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace infinigen {
namespace {

HWY_EXPORT(ChooseScoredHere);
HWY_EXPORT(CountScoredHere);
HWY_EXPORT(ScoreSketchRows);

}  // namespace

Chosen ChooseScored(const Choice& choice, const ChoiceScratch& scratch, int32_t* rows, int64_t capacity) {
  return HWY_DYNAMIC_DISPATCH(ChooseScoredHere)(choice, scratch, rows, capacity);
}
int64_t CountScored(const Choice& choice, const ChoiceScratch& scratch) {
  return HWY_DYNAMIC_DISPATCH(CountScoredHere)(choice, scratch);
}

void CpuBackend::Select(Queue, const ConstTensor& sketch_queries, const TokenBatch& batch, const SelectCall& call,
                        const LayerSketches& sketches, const Selection& selection) {
  const SketchLayout& layout = sketches.layout;
  CHECK(layout.dims % kSketchDimStep == 0 && layout.dims <= kMaxHeadDim);
  CHECK(sketch_queries.type == DType::kF32 && sketch_queries.cols % (layout.kv_heads * layout.dims) == 0 &&
        sketch_queries.rows >= batch.count);
  const int64_t group = sketch_queries.cols / layout.dims / layout.kv_heads;
  const auto score = [&](int64_t token, int64_t head, const ScoredRows& rows, float* scratch) {
    const SketchQuery query(layout, group, sketch_queries.as<float>(token) + head * group * layout.dims, scratch);
    HWY_DYNAMIC_DISPATCH(ScoreSketchRows)(query, sketches.Head(batch.slots[token], head), vnni_, rows);
  };
  SelectBy(batch, call, layout.kv_heads, group, selection, SketchQuery::Floats(layout, group), score);
}

}  // namespace infinigen
#endif  // HWY_ONCE
