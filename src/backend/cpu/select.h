// Selection in two steps: scores of all visible rows of a KV head go to scratch, then rows are chosen from them. Where
// the method has a tail, a third step sums the tail from the same scores. kv/select.h defines the choice, kv/tail.h the
// tail. Private to the CPU backend.
//
// Scores are [blocks][group][64]: a block's scores of all query heads are adjacent, so that choosing reads forward
// once. They pass through L2 (16 bytes per row at group 4) rather than being computed twice: a relative score needs the
// maxima over all rows, and maxima estimated from a sample are too inaccurate to filter by.
//
// If rows are selected by pages, a page takes the place of a row everywhere below, until its rows are written.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "backend/cpu/cpu_backend.h"
#include "kv/index_view.h"
#include "kv/selection_view.h"

namespace infinigen {

inline constexpr int64_t kScoreBlock = kSketchBlock;
inline constexpr int64_t kLeastSampled = 1024;  // with fewer rows, all are candidates
inline constexpr int64_t kMostSample = 2048;    // relative scores in the sample that the floor is estimated from
inline constexpr int64_t kChoiceBins = 1024;

// Rows whose tail is summed at once. Chunks are merged in ascending order, so that the number of threads does not
// matter.
inline constexpr int64_t kTailChunk = 1024;

// Rows per task, at least, when several threads compute the scores of one head.
inline constexpr int64_t kLeastSegment = 4096;

inline constexpr int64_t kTailBlocks = kTailChunk / kSketchBlock;

// Blocks of a sequence before this row are complete, so they have a mean. row: of the newest entry.
inline int64_t CompleteRows(int64_t row) { return (row + 1) / kSketchBlock * kSketchBlock; }
inline int64_t TailChunks(int64_t rows) { return (rows + kTailChunk - 1) / kTailChunk; }
inline int64_t ScoreBlocks(int64_t visible) { return (visible + kScoreBlock - 1) / kScoreBlock; }

// Working memory of one choice, inside a Scratch.
struct ChoiceScratch {
  static int64_t Floats(int64_t group, int64_t visible, int64_t segments) {
    const int64_t padded = ScoreBlocks(visible) * kScoreBlock + kScoreBlock;
    return group * (padded + 16 * segments) + 4 * padded + kMostSample + kChoiceBins;
  }
  ChoiceScratch(float* memory, int64_t group, int64_t visible, int64_t segments) {
    const int64_t padded = ScoreBlocks(visible) * kScoreBlock + kScoreBlock;
    const auto take = [&](int64_t floats) {
      float* part = memory;
      memory += (floats + 15) / 16 * 16;
      return part;
    };
    scores = take(group * padded);
    maxima = take(group * 16 * segments);
    relative = take(padded);
    rows = reinterpret_cast<int32_t*>(take(padded));
    ties = take(2 * padded);
    sample = take(kMostSample);
    bins = reinterpret_cast<uint32_t*>(take(kChoiceBins));
  }

  float* scores;    // [blocks][group][64]
  float* maxima;    // [segments][group][16 lanes] of scores; during a choice [group]
  float* relative;  // relative scores of the candidates
  int32_t* rows;    // rows of the candidates
  float* ties;      // (relative score, row) pairs
  float* sample;    // [kMostSample]
  uint32_t* bins;   // [kChoiceBins]
};

// The choice for one (token, KV head).
struct Choice {
  SelectRule rule;
  int64_t group = 0;
  int64_t segments = 1;  // runs of blocks that were scored separately
  int64_t visible = 0;   // rows, or pages, that have a score
  int64_t current = 0;   // the current row; n = current + 1
  // In layers that evict: the position of every row and of the current token.
  const int32_t* positions = nullptr;
  int64_t position = 0;
  int64_t passing = -1;  // rows that pass the threshold, if mean counts set it; -1: count here
  int64_t page = 1;      // rows per page
};
struct Chosen {
  int64_t chosen = 0;    // by score
  int64_t attended = 0;  // rows written
};

// Output of scoring rows (or pages) [first, last) of one KV head. `first` is a multiple of 64; the range may be empty.
struct ScoredRows {
  int64_t first = 0, last = 0;
  float* scores = nullptr;  // [blocks][group][64], NaN from `last` on
  float* maxima = nullptr;  // [group][16]: the largest score per lane
  float soft_cap = 0;       // applied to the scores; 0: none
  // [group] Added to the scores before the soft cap; null: nothing. Without a soft cap, a tail adds the level later.
  const float* levels = nullptr;
};

// Counts of one (token, KV head), kept until the totals are added up.
struct Tally {
  int64_t passing = -1;
  Chosen chosen;
};
inline constexpr int64_t kTallyFloats = static_cast<int64_t>(sizeof(Tally) / sizeof(float));

// Writes the attended rows, ascending, to rows [capacity]. scratch holds the scores and the segments' maxima.
Chosen ChooseScored(const Choice& choice, const ChoiceScratch& scratch, int32_t* rows, int64_t capacity);
// The number of rows that pass the threshold, or that hold the rule's mass.
int64_t CountScored(const Choice& choice, const ChoiceScratch& scratch);

// For selections without a tail.
struct NoTail {
  void operator()(int64_t, int64_t, int64_t, int64_t, float*, float*) const {}
};
// Chooses late rows, ascending, from rows whose score is not NaN. Returns their number.
int64_t ChooseLateScored(const Choice& choice, const ChoiceScratch& scratch, int64_t late, int32_t* rows);
// Sets the scores [blocks][group][64] of selected rows in [first, last) to NaN. rows [count] ascends.
void LeaveOutSelected(const int32_t* rows, int64_t count, int64_t first, int64_t last, int64_t group, float* scores);
// Merges the tails of chunks, parts [chunks][group][sums_floats], in order into the sums of a token's query heads
// from `query_head` on. No chunks: the token has no tail. `levels`: add the levels to the largest scores.
void MergeTails(const float* parts, std::optional<int64_t> chunks, int64_t group, bool levels, const TailView& tail,
                int64_t token, int64_t query_head);

template <class Score, class Tail>
void CpuBackend::SelectBy(const TokenBatch& batch, const SelectCall& call, int64_t heads, int64_t group,
                          const Selection& selection, int64_t scratch_floats, Score&& score, Tail&& tail) {
  ChooseBy(batch, call, heads, group, selection, scratch_floats, score, tail,
           [&](const Choice& choice, const ChoiceScratch& scratch, int64_t token, int64_t head) {
             const Chosen chosen = ChooseScored(choice, scratch, selection.Rows(token, head), selection.capacity);
             selection.Count(token, head) = static_cast<int32_t>(chosen.attended);
             return chosen;
           });
}

template <class Score, class Tail, class Choose>
void CpuBackend::ChooseBy(const TokenBatch& batch, const SelectCall& call, int64_t heads, int64_t group,
                          const Selection& selection, int64_t scratch_floats, Score&& score, Tail&& tail,
                          Choose&& choose) {
  CHECK(selection.kv_heads == heads);
  const int64_t tasks = batch.count * heads;
  if (tasks == 0) return;
  // If there are more threads than tasks, several threads score one head in segments, in shared memory.
  const int64_t segments =
      std::clamp<int64_t>(call.max_rows / kLeastSegment, 1, std::max<int64_t>(1, threads() / tasks));
  // Sized by max_rows, not by the token's own length, so that all threads' scratch grows at once.
  const int64_t most = (call.max_rows + call.page - 1) / call.page;
  const int64_t segment_rows = (ScoreBlocks(most) + segments - 1) / segments * kScoreBlock;
  const int64_t floats = ChoiceScratch::Floats(group, most, segments);
  const int64_t part_floats = call.tail ? group * call.tail.sums_floats() : 0;  // of a chunk's tail
  const int64_t tail_floats = TailChunks(call.max_rows) * part_floats;
  float* shared = shared_.Reserve(tasks * (kTallyFloats + tail_floats) + 32 + (segments > 1 ? tasks * floats : 0));
  float* tail_parts = shared + (tasks * kTallyFloats + 15) / 16 * 16;
  float* scored = tail_parts + (tasks * tail_floats + 15) / 16 * 16;
  auto* tallies = reinterpret_cast<Tally*>(shared);
  std::fill_n(tallies, tasks, Tally{});

  const auto choice_of = [&](int64_t task) {
    const int64_t token = task / heads, head = task % heads, slot = batch.slots[token], current = batch.rows[token];
    DCHECK(current < call.max_rows);
    return Choice{.rule = call.RuleFor(slot, current),
                  .group = group,
                  .segments = segments,
                  .visible = call.Visible(current) / call.page,
                  .current = current,
                  .positions = call.retained ? call.retained.Positions(slot, head) : nullptr,
                  .position = batch.Position(token),
                  .passing = tallies[task].passing,
                  .page = call.page};
  };
  const auto score_segment = [&](int64_t task, int64_t segment, const ChoiceScratch& scratch, float* query) {
    const int64_t first = segment * segment_rows;
    const int64_t last = std::min(first + segment_rows, choice_of(task).visible);
    score(task / heads, task % heads,
          ScoredRows{first, last, scratch.scores + first * group, scratch.maxima + segment * group * 16, call.soft_cap,
                     call.tail && call.soft_cap > 0 ? call.tail.Levels(task / heads) + task % heads * group : nullptr},
          query);
  };
  // The tails of chunks [first, last) of a task, whose rows are chosen.
  const auto sum_chunks = [&](int64_t task, int64_t first, int64_t last, const ChoiceScratch& scratch) {
    const int64_t token = task / heads, head = task % heads, visible = choice_of(task).visible;
    for (int64_t chunk = first; chunk < last; ++chunk) {
      const int64_t row = chunk * kTailChunk, end = std::min(row + kTailChunk, visible);
      float* scores = scratch.scores + row * group;
      LeaveOutSelected(selection.Rows(token, head), selection.Count(token, head), row, end, group, scores);
      tail(token, head, row, end, scores, tail_parts + task * tail_floats + chunk * part_floats);
    }
  };
  const auto has_tail = [&](int64_t task) { return call.tail && call.rules[batch.slots[task / heads]].tail; };
  const auto merge_chunks = [&](int64_t task) {
    MergeTails(tail_parts + task * tail_floats,
               has_tail(task) ? std::optional(TailChunks(choice_of(task).visible)) : std::nullopt, group,
               call.soft_cap == 0, call.tail, task / heads, task % heads * group);
  };
  // Scores every (token, head), then calls finish for it.
  const auto run = [&](auto&& finish) {
    if (segments == 1) {
      pool_.Run(tasks, [&](int64_t task, int thread) {
        float* memory = private_[static_cast<size_t>(thread)].Reserve(floats + scratch_floats);
        const ChoiceScratch scratch(memory, group, most, 1);
        score_segment(task, 0, scratch, memory + floats);
        finish(choice_of(task), scratch, task);
      });
      return;
    }
    const auto scratch_of = [&](int64_t task) { return ChoiceScratch(scored + task * floats, group, most, segments); };
    pool_.Run(tasks * segments, [&](int64_t index, int thread) {
      float* query = private_[static_cast<size_t>(thread)].Reserve(scratch_floats);
      score_segment(index / segments, index % segments, scratch_of(index / segments), query);
    });
    pool_.Run(tasks, [&](int64_t task, int) { finish(choice_of(task), scratch_of(task), task); });
  };
  if (call.mean_counts && !call.late) {
    run([&](const Choice& choice, const ChoiceScratch& scratch, int64_t task) {
      tallies[task].passing = CountScored(choice, scratch);
    });
    for (int64_t token = 0; token < batch.count; ++token) {
      Tally* of_token = tallies + token * heads;
      int64_t sum = 0;
      for (int64_t head = 0; head < heads; ++head) sum += of_token[head].passing;
      for (int64_t head = 0; head < heads; ++head) of_token[head].passing = sum / heads;
    }
  }
  run([&](const Choice& choice, const ChoiceScratch& scratch, int64_t task) {
    tallies[task].chosen = choose(choice, scratch, task / heads, task % heads);
    if (segments == 1 && has_tail(task)) sum_chunks(task, 0, TailChunks(choice.visible), scratch);
  });
  if (call.tail && segments > 1) {
    pool_.Run(tasks * segments, [&](int64_t index, int) {
      const int64_t task = index / segments, part = index % segments, chunks = TailChunks(choice_of(task).visible);
      if (has_tail(task))
        sum_chunks(task, chunks * part / segments, chunks * (part + 1) / segments,
                   ChoiceScratch(scored + task * floats, group, most, segments));
    });
  }
  for (int64_t task = 0; task < tasks && call.tail; ++task) merge_chunks(task);
  for (int64_t task = 0; task < tasks; ++task) {
    const int64_t token = task / heads;
    SelectionTotals& totals = call.totals[batch.slots[token]];
    totals.chosen += static_cast<uint64_t>(tallies[task].chosen.chosen);
    totals.attended += static_cast<uint64_t>(tallies[task].chosen.attended);
    // Late rows join a selection that has been counted.
    if (call.late)
      totals.late += static_cast<uint64_t>(tallies[task].chosen.chosen);
    else
      totals.retained += static_cast<uint64_t>(batch.rows[token] + 1);
  }
}

}  // namespace infinigen
