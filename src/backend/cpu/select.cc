// Select and SumTails: scores of sketches (sketch_score-inl.h) and tails (tail-inl.h); and the choice of rows from
// scores, for all select operations.
#include "backend/cpu/select.h"

#include <cmath>
#include <limits>

#include "backend/cpu/sketch_query.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/select.cc"
#include <hwy/foreach_target.h>
// After foreach_target.
#include <hwy/highway.h>

#include "backend/cpu/choose-inl.h"
#include "backend/cpu/sketch_score-inl.h"
#include "backend/cpu/tail-inl.h"

HWY_BEFORE_NAMESPACE();
namespace infinigen::HWY_NAMESPACE {

Chosen ChooseScoredHere(const Choice& choice, const ChoiceScratch& scratch, int32_t* rows, int64_t capacity) {
  return Chooser(choice, scratch).Choose(rows, capacity);
}
int64_t ChooseLateHere(const Choice& choice, const ChoiceScratch& scratch, int64_t late, int32_t* rows) {
  return Chooser(choice, scratch).ChooseLate(late, rows);
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
    for (int64_t g = 0; g < query.group && HWY_UNLIKELY(rows.levels != nullptr); ++g)
      for (int64_t i = 0; i < kScoreBlock; ++i) scores[g * kScoreBlock + i] += rows.levels[g];
    maxima.Add(scores, std::min(kScoreBlock, rows.last - start));
    block += block_bytes;
    scores += query.group * kScoreBlock;
  }
}

void SumTailRowsHere(const SketchLayout& layout, const std::byte* head, int64_t group, int64_t first, int64_t last,
                     int64_t complete, float* scores, float* parts) {
  SumTailRows(layout, head, group, first, last, complete, scores, parts);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace infinigen::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace infinigen {
namespace {

HWY_EXPORT(ChooseScoredHere);
HWY_EXPORT(ChooseLateHere);
HWY_EXPORT(CountScoredHere);
HWY_EXPORT(ScoreSketchRows);
HWY_EXPORT(SumTailRowsHere);

}  // namespace

void LeaveOutSelected(const int32_t* rows, int64_t count, int64_t first, int64_t last, int64_t group, float* scores) {
  const int32_t* row = std::lower_bound(rows, rows + count, static_cast<int32_t>(first));
  for (; row < rows + count && *row < last; ++row) {
    const int64_t at = *row - first;
    float* of_row = scores + at / kScoreBlock * group * kScoreBlock + at % kScoreBlock;
    for (int64_t g = 0; g < group; ++g) of_row[g * kScoreBlock] = std::numeric_limits<float>::quiet_NaN();
  }
}

void MergeTails(const float* parts, std::optional<int64_t> chunks, int64_t group, bool levels, const TailView& tail,
                int64_t token, int64_t query_head) {
  const int64_t floats = tail.sums_floats();
  for (int64_t g = 0; g < group; ++g) {
    float* to = tail.Sums(token, query_head + g);
    std::fill_n(to, floats, 0.0f);
    to[0] = -std::numeric_limits<float>::infinity();
    if (!chunks) to[1] = TailView::kNoTail;
    for (int64_t chunk = 0; chunk < chunks.value_or(0); ++chunk) {
      const float* part = parts + (chunk * group + g) * floats;
      if (!(part[1] > 0)) continue;
      const float joint = std::max(to[0], part[0]);
      const float keep = std::exp(to[0] - joint), add = std::exp(part[0] - joint);
      for (int64_t i = 1; i < floats; ++i) to[i] = to[i] * keep + part[i] * add;
      to[0] = joint;
    }
    if (levels) to[0] += tail.Levels(token)[query_head + g];
  }
}

Chosen ChooseScored(const Choice& choice, const ChoiceScratch& scratch, int32_t* rows, int64_t capacity) {
  return HWY_DYNAMIC_DISPATCH(ChooseScoredHere)(choice, scratch, rows, capacity);
}
int64_t ChooseLateScored(const Choice& choice, const ChoiceScratch& scratch, int64_t late, int32_t* rows) {
  return HWY_DYNAMIC_DISPATCH(ChooseLateHere)(choice, scratch, late, rows);
}
int64_t CountScored(const Choice& choice, const ChoiceScratch& scratch) {
  return HWY_DYNAMIC_DISPATCH(CountScoredHere)(choice, scratch);
}

namespace {

// Calls run(score, tail) with the functions that SelectBy takes.
template <class Run>
void WithSketches(const ConstTensor& sketch_queries, const TokenBatch& batch, const LayerSketches& sketches, bool vnni,
                  Run&& run) {
  const SketchLayout& layout = sketches.layout;
  const int64_t group = sketch_queries.cols / layout.dims / layout.kv_heads;
  const auto score = [&](int64_t token, int64_t head, const ScoredRows& rows, float* scratch) {
    const SketchQuery query(layout, group, sketch_queries.as<float>(token) + head * group * layout.dims, scratch);
    HWY_DYNAMIC_DISPATCH(ScoreSketchRows)(query, sketches.Head(batch.slots[token], head), vnni, rows);
  };
  const auto tail = [&](int64_t token, int64_t head, int64_t first, int64_t last, float* scores, float* parts) {
    HWY_DYNAMIC_DISPATCH(SumTailRowsHere)
    (layout, sketches.Head(batch.slots[token], head), group, first, last, CompleteRows(batch.rows[token]), scores,
     parts);
  };
  run(score, tail);
}

// Merges late rows, which `items` holds, into a selection. Both ascend. The items become indices in `all`.
void MergeLate(const int32_t* rows, int32_t count, int32_t* items, int64_t late, int32_t* all) {
  int32_t at = 0;
  int64_t next = 0;
  const auto take_late = [&] {
    all[at] = items[next];
    items[next++] = at++;
  };
  for (int32_t i = 0; i < count; ++i) {
    while (next < late && items[next] < rows[i]) take_late();
    all[at++] = rows[i];
  }
  while (next < late) take_late();
}

}  // namespace

void CpuBackend::Select(Queue, const ConstTensor& sketch_queries, const TokenBatch& batch, const SelectCall& call,
                        const LayerSketches& sketches, const Selection& selection) {
  const SketchLayout& layout = sketches.layout;
  CHECK(layout.dims % kSketchDimStep == 0 && layout.dims <= kMaxHeadDim);
  CHECK(sketch_queries.type == DType::kF32 && sketch_queries.cols % (layout.kv_heads * layout.dims) == 0 &&
        sketch_queries.rows >= batch.count);
  const int64_t group = sketch_queries.cols / layout.dims / layout.kv_heads;
  WithSketches(sketch_queries, batch, sketches, vnni_, [&](auto&& score, auto&& tail) {
    SelectBy(batch, call, layout.kv_heads, group, selection, SketchQuery::Floats(layout, group), score, tail);
  });
}

// The late rows need the maxima over all rows, so the scores of a (token, KV head) are kept as in a selection.
void CpuBackend::SumLateTails(const ConstTensor& sketch_queries, const TokenBatch& batch, const SelectCall& call,
                              const LayerSketches& sketches, const Selection& selection) {
  const SketchLayout& layout = sketches.layout;
  const int64_t group = sketch_queries.cols / layout.dims / layout.kv_heads;
  const LateSelection& late = call.late;
  const auto choose = [&](const Choice& choice, const ChoiceScratch& scratch, int64_t token, int64_t head) {
    const int32_t* rows = selection.Rows(token, head);
    const int32_t count = selection.Count(token, head);
    LeaveOutSelected(rows, count, 0, choice.visible, group, scratch.scores);
    int32_t* items = late.Items(token, head);  // first the rows
    const int64_t most = std::min<int64_t>(choice.rule.LateRows(), choice.visible);
    CHECK(most <= late.capacity);
    const int64_t found = ChooseLateScored(choice, scratch, most, items);
    CHECK(count + found <= late.all.capacity);
    MergeLate(rows, count, items, found, late.all.Rows(token, head));
    late.Count(token, head) = static_cast<int32_t>(found);
    late.all.Count(token, head) = count + static_cast<int32_t>(found);
    return Chosen{found, found};
  };
  WithSketches(sketch_queries, batch, sketches, vnni_, [&](auto&& score, auto&& tail) {
    ChooseBy(batch, call, layout.kv_heads, group, late.all, SketchQuery::Floats(layout, group), score, tail, choose);
  });
}

void CpuBackend::SumTails(Queue, const ConstTensor& sketch_queries, const TokenBatch& batch, const SelectCall& call,
                          const LayerSketches& sketches, const Selection& selection) {
  if (call.late) return SumLateTails(sketch_queries, batch, call, sketches, selection);
  const SketchLayout& layout = sketches.layout;
  const int64_t heads = layout.kv_heads, group = sketch_queries.cols / layout.dims / heads;
  const int64_t part_floats = group * call.tail.sums_floats(), most = TailChunks(call.max_rows);
  float* parts = shared_.Reserve(batch.count * heads * most * part_floats);
  const auto chunks_of = [&](int64_t token) {
    return call.rules[batch.slots[token]].tail ? std::optional(TailChunks(call.Visible(batch.rows[token])))
                                               : std::nullopt;
  };
  const int64_t query_floats = SketchQuery::Floats(layout, group), padded = (query_floats + 15) / 16 * 16;
  pool_.Run(batch.count * heads * most, [&](int64_t index, int thread) {
    const int64_t token = index / (heads * most), head = index / most % heads, chunk = index % most;
    if (chunk >= chunks_of(token).value_or(0)) return;
    const int64_t first = chunk * kTailChunk, last = std::min(first + kTailChunk, call.Visible(batch.rows[token]));
    float* scratch = private_[static_cast<size_t>(thread)].Reserve(padded + group * (kTailChunk + 16));
    float* scores = scratch + padded;
    const float* levels = call.soft_cap > 0 ? call.tail.Levels(token) + head * group : nullptr;
    const SketchQuery query(layout, group, sketch_queries.as<float>(token) + head * group * layout.dims, scratch);
    HWY_DYNAMIC_DISPATCH(ScoreSketchRows)
    (query, sketches.Head(batch.slots[token], head), vnni_,
     ScoredRows{first, last, scores, scores + group * kTailChunk, call.soft_cap, levels});
    LeaveOutSelected(selection.Rows(token, head), selection.Count(token, head), first, last, group, scores);
    HWY_DYNAMIC_DISPATCH(SumTailRowsHere)
    (layout, sketches.Head(batch.slots[token], head), group, first, last, CompleteRows(batch.rows[token]), scores,
     parts + index * part_floats);
  });
  for (int64_t token = 0; token < batch.count; ++token)
    for (int64_t head = 0; head < heads; ++head)
      MergeTails(parts + (token * heads + head) * most * part_floats, chunks_of(token), group, call.soft_cap == 0,
                 call.tail, token, head * group);
}

}  // namespace infinigen
#endif  // HWY_ONCE
