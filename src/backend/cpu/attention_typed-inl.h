// Executes attention tasks over entries of one stored type, compiled once per SIMD target. The file of each type
// defines INFINIGEN_ENTRY_TYPE and includes this one. They are separate compilation units because together they take
// minutes.
#include <algorithm>

#include "backend/cpu/attention_plan.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/attention_typed-inl.h"
#include <hwy/foreach_target.h>
// After foreach_target.
#include <hwy/highway.h>

#include "backend/cpu/attention-inl.h"
#include "backend/cpu/attention_quantised-inl.h"

HWY_BEFORE_NAMESPACE();
namespace infinigen::HWY_NAMESPACE {
namespace {

using Element = INFINIGEN_ENTRY_TYPE;

// The blocks of a task. Ahead(start, end) prepares the block at `start` and returns its prefetch; it must be called
// before Block(start, end). Past the end it returns an empty prefetch.
class EntrySource {
 public:
  // `rows` are ascending; null: all rows.
  EntrySource(const AttentionPlan& plan, int64_t slot, int64_t head, const int32_t* rows)
      : plan_(plan), slot_(slot), head_(head), rows_(rows) {}

  EntryBlock<Element> Block(int64_t start, int64_t end) const {
    return {reinterpret_cast<const Element* const*>(at_[Half(start)]), std::min(kAttentionBlock, end - start),
            plan_.dim};
  }
  EntryPrefetch Ahead(int64_t start, int64_t end) {
    if (start >= end) return {};
    const int64_t entry_bytes = static_cast<int64_t>(plan_.entries.layout.entry_bytes());
    const int64_t count = std::min(kAttentionBlock, end - start);
    const std::byte** at = at_[Half(start)];
    if (rows_ == nullptr)
      PointAtRun(start, count, entry_bytes, at);
    else
      PointAtListed(rows_ + start, count, entry_bytes, at);
    for (int64_t j = count; j % kLanes != 0; ++j) at[j] = at[count - 1];
    if (rows_ == nullptr) return {.data = at[0], .end = at[count - 1] + entry_bytes};
    // An unaligned entry touches one line more.
    return {.at = at, .at_end = at + count, .entry_lines = (entry_bytes + 63) / 64 + (entry_bytes % 64 != 0 ? 1 : 0)};
  }

 private:
  static int64_t Half(int64_t start) { return start / kAttentionBlock % 2; }
  void PointAtRun(int64_t start, int64_t count, int64_t entry_bytes, const std::byte** at) const {
    const std::byte* first = plan_.entries.Entry(slot_, head_, start);
    for (int64_t j = 0; j < count; ++j) at[j] = first + j * entry_bytes;
  }
  void PointAtListed(const int32_t* rows, int64_t count, int64_t entry_bytes, const std::byte** at) const {
    // Rows ascend, so the rows of an extent are consecutive.
    for (int64_t j = 0; j < count;) {
      const int64_t extent = rows[j] / kExtentTokens, limit = (extent + 1) * kExtentTokens;
      const std::byte* head = plan_.entries.HeadInExtent(slot_, extent, head_);
      do {
        at[j] = head + (rows[j] - extent * kExtentTokens) * entry_bytes;
      } while (++j < count && rows[j] < limit);
    }
  }

  const AttentionPlan& plan_;
  int64_t slot_, head_;
  const int32_t* rows_;
  const std::byte* at_[2][kAttentionBlock];  // entries of this block and the next one
};

// Processes the blocks of one chunk in ascending order, into rows whose states were reset. Prefetches entries up to
// `ahead`.
HWY_INLINE void AttendChunk(const AttentionPlan& plan, const QueryRows& q, EntrySource& source, int64_t begin,
                            int64_t end, int64_t ahead, float* keys, float* values) {
  const bool in_place = q.rows == q.group && ReadsInPlace<Element>(plan);
  for (int64_t start = begin; start < end; start += kAttentionBlock) {
    const auto block = source.Block(start, end);
    const auto next = source.Ahead(start + kAttentionBlock, ahead);
    if constexpr (kMayReadInPlace) {
      if (in_place) {
        AttendBlockInPlace(plan, q, block, next, start);
        continue;
      }
    }
    AttendBlock(plan, q, block, start, keys, values);
  }
}

HWY_INLINE int64_t BlockOf(int64_t row) { return row / kAttentionBlock * kAttentionBlock; }

// Chunks [task.first, task.last) for the query heads of one KV head.
void DecodeChunks(const AttentionPlan& plan, const DecodeTask& task, float* scratch) {
  float* scaled = scratch;
  float* keys = scaled + plan.group * plan.padded_dim;
  float* values = keys + kAttentionBlock * plan.padded_dim;
  for (int64_t g = 0; g < plan.group; ++g)
    ScaleQuery(task.queries + g * plan.dim, plan.dim, plan.scale, scaled + g * plan.padded_dim);
  const int64_t task_end = std::min(task.last * kAttentionChunk, task.length);
  const int64_t window = task.rows == nullptr ? plan.window : 0;
  const int64_t start = std::max(task.first * kAttentionChunk, BlockOf(window > 0 ? plan.First(task.length) : 0));
  EntrySource source(plan, task.slot, task.head, task.rows);
  // Each block prefetches the one after it; here is the prefetch of the first.
  auto first_block = source.Ahead(start, task_end);
  first_block.Prefetch(kAttentionBlock * static_cast<int64_t>(plan.entries.layout.entry_bytes()) / 64);
  float* parts = task.parts;
  for (int64_t chunk = task.first; chunk < task.last; ++chunk, parts += plan.group * plan.state_floats()) {
    for (int64_t g = 0; g < plan.group; ++g) ResetState(parts + g * plan.state_floats(), plan.padded_dim);
    const QueryRows q{scaled, parts, plan.group, plan.group, task.length, window};
    const int64_t begin = chunk * kAttentionChunk;
    AttendChunk(plan, q, source, std::max(begin, start), std::min(begin + kAttentionChunk, task.length), task_end, keys,
                values);
  }
}

void PrefillTokens(const AttentionPlan& plan, const PrefillTask& task, float* scratch) {
  const int64_t rows = task.tokens * plan.group, state = plan.state_floats();
  float* scaled = scratch;
  float* parts = scaled + rows * plan.padded_dim;
  float* totals = parts + rows * state;
  float* keys = totals + rows * state;
  float* values = keys + kAttentionBlock * plan.padded_dim;
  const auto offset = [&](int64_t r, int64_t stride) { return r / plan.group * stride + r % plan.group * plan.dim; };
  for (int64_t r = 0; r < rows; ++r) {
    ScaleQuery(task.queries + offset(r, task.query_stride), plan.dim, plan.scale, scaled + r * plan.padded_dim);
    ResetState(totals + r * state, plan.padded_dim);
  }
  const QueryRows q{scaled, parts, rows, plan.group, task.first_length, plan.window};
  const int64_t length = q.Length(rows - 1), start = BlockOf(q.First(0));
  EntrySource source(plan, task.slot, task.head, nullptr);
  source.Ahead(start, length);
  for (int64_t begin = start / kAttentionChunk * kAttentionChunk; begin < length; begin += kAttentionChunk) {
    const int64_t end = begin + kAttentionChunk;
    for (int64_t r = 0; r < rows; ++r) ResetState(parts + r * state, plan.padded_dim);
    AttendChunk(plan, q, source, std::max(begin, start), std::min(end, length), length, keys, values);
    for (int64_t r = 0; r < rows; ++r)
      if (q.Length(r) > begin && q.First(r) < end) MergeState(totals + r * state, parts + r * state, plan.padded_dim);
  }
  for (int64_t r = 0; r < rows; ++r)
    Finish(totals + r * state, plan.dim, IsPaired(plan, rows), task.out + offset(r, task.out_stride));
}

// True scores of rows [task.first, task.last).
void ScoreEntries(const AttentionPlan& plan, const ScoreTask& task, float* scratch) {
  for (int64_t g = 0; g < plan.group; ++g)
    for (int64_t i = 0; i < plan.dim; ++i)
      scratch[g * plan.padded_dim + i] = task.queries[g * plan.dim + i] * plan.scale;
  EntrySource source(plan, task.slot, task.head, nullptr);
  source.Ahead(task.first, task.last);
  float* keys = scratch + plan.group * plan.padded_dim;
  float* scores = task.scores;
  for (int64_t start = task.first; start < task.last; start += kAttentionBlock) {
    TransposeKeys(source.Block(start, task.last), keys);
    source.Ahead(start + kAttentionBlock, task.last);
    for (int64_t g = 0; g < plan.group; g += kOuterRows)
      Outer(std::min(kOuterRows, plan.group - g), scratch + g * plan.padded_dim, plan.padded_dim,
            StridedRows<float>{keys, kAttentionBlock}, plan.dim, kAttentionBlock, NoPrefetch{},
            StoreSums{scores + g * kAttentionBlock, kAttentionBlock});
    for (int64_t g = 0; g < plan.group && plan.soft_cap > 0; ++g)
      CapScores(scores + g * kAttentionBlock, plan.soft_cap);
    scores += plan.group * kAttentionBlock;
  }
}

// Computes the scores of the task's query rows for rows [begin, end) of the cache, one tile of query rows and one block
// at a time. Calls use(first query row, rows of the tile, block start, scores [rows][kAttentionBlock]); a score is −inf
// if the query row does not attend to the entry.
template <class Use>
HWY_INLINE void ScoreTiles(const AttentionPlan& plan, const PrefillTask& task, int64_t begin, int64_t end,
                           float* scratch, const Use& use) {
  const int64_t rows = task.tokens * plan.group;
  float* scaled = scratch;
  float* keys = scaled + rows * plan.padded_dim;
  for (int64_t r = 0; r < rows; ++r)
    ScaleQuery(task.queries + r / plan.group * task.query_stride + r % plan.group * plan.dim, plan.dim, plan.scale,
               scaled + r * plan.padded_dim);
  const QueryRows q{scaled, nullptr, rows, plan.group, task.first_length};
  const int64_t length = std::min(end, q.Length(rows - 1));
  EntrySource source(plan, task.slot, task.head, nullptr);
  source.Ahead(begin, length);
  for (int64_t start = begin; start < length; start += kAttentionBlock) {
    TransposeKeys(source.Block(start, length), keys);
    source.Ahead(start + kAttentionBlock, length);
    // Earlier query rows do not attend to any entry of the block.
    for (int64_t first = std::max<int64_t>(0, start + 1 - q.first_length) * q.group; first < rows;
         first += kOuterRows) {
      const int64_t count = std::min(kOuterRows, rows - first);
      HWY_ALIGN float scores[kOuterRows * kAttentionBlock];
      Outer(count, q.queries + first * plan.padded_dim, plan.padded_dim, StridedRows<float>{keys, kAttentionBlock},
            plan.dim, kAttentionBlock, NoPrefetch{}, StoreSums{scores, kAttentionBlock});
      int64_t visible[kOuterRows];
      q.Visible(first, count, start, visible);
      for (int64_t r = 0; r < count && plan.soft_cap > 0; ++r)
        CapScores(scores + r * kAttentionBlock, plan.soft_cap * kLog2E);
      for (int64_t r = 0; r < count; ++r)
        std::fill(scores + r * kAttentionBlock + std::min(visible[r], kAttentionBlock),
                  scores + (r + 1) * kAttentionBlock, kMinusInfinity);
      use(first, count, start, scores);
    }
  }
}

void ColumnNorms(const AttentionPlan& plan, const ColumnTask& task, float* scratch) {
  const int64_t rows = task.tokens.tokens * plan.group;
  for (int64_t r = 0; r < rows; ++r) {
    task.norms[2 * r] = kMinusInfinity;
    task.norms[2 * r + 1] = 0;
  }
  const auto use = [&](int64_t first, int64_t count, int64_t, float* scores) HWY_ATTR {
    for (int64_t r = 0; r < count; ++r) {
      float* norm = task.norms + 2 * (first + r);
      float* row = scores + r * kAttentionBlock;
      const float largest = hn::GetLane(hn::MaxOfLanes(DF(), LaneMaxima(row, 0, kAttentionBlock)));
      const float joint = std::max(norm[0], largest);
      const float sum = hn::GetLane(hn::SumOfLanes(DF(), WeighRow(row, joint)));
      const float kept = hn::GetLane(Exp2NonPositive(DF(), hn::Set(DF(), norm[0] - joint)));
      norm[1] = norm[1] * kept + sum;
      norm[0] = joint;
    }
  };
  ScoreTiles(plan, task.tokens, 0, INT64_MAX, scratch, use);
  for (int64_t r = 0; r < rows; ++r) task.norms[2 * r + 1] = 1.0f / task.norms[2 * r + 1];
}

void ColumnSums(const AttentionPlan& plan, const ColumnTask& task, float* scratch) {
  const auto use = [&](int64_t first, int64_t count, int64_t start, float* scores) HWY_ATTR {
    const DF d;
    const int64_t columns = std::min(kAttentionBlock, task.last - start);
    HWY_ALIGN float sums[kAttentionBlock] = {};
    std::copy_n(task.sums + start, columns, sums);
    for (int64_t r = 0; r < count; ++r) {
      const float* norm = task.norms + 2 * (first + r);
      float* row = scores + r * kAttentionBlock;
      WeighRow(row, norm[0]);
      const VF share = hn::Set(d, norm[1]);
      for (int64_t v = 0; v < kAttentionBlock; v += kLanes)
        hn::Store(hn::MulAdd(hn::Load(d, row + v), share, hn::Load(d, sums + v)), d, sums + v);
    }
    std::copy_n(sums, columns, task.sums + start);
  };
  ScoreTiles(plan, task.tokens, task.first, task.last, scratch, use);
}

}  // namespace
// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace infinigen::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace infinigen {
namespace {

HWY_EXPORT(DecodeChunks);
HWY_EXPORT(PrefillTokens);
HWY_EXPORT(ScoreEntries);
HWY_EXPORT(ColumnNorms);
HWY_EXPORT(ColumnSums);

}  // namespace

template <>
void AttentionOf<INFINIGEN_ENTRY_TYPE>::Decode(const AttentionPlan& plan, const DecodeTask& task, float* scratch) {
  HWY_DYNAMIC_DISPATCH(DecodeChunks)(plan, task, scratch);
}
template <>
void AttentionOf<INFINIGEN_ENTRY_TYPE>::Prefill(const AttentionPlan& plan, const PrefillTask& task, float* scratch) {
  HWY_DYNAMIC_DISPATCH(PrefillTokens)(plan, task, scratch);
}
template <>
void AttentionOf<INFINIGEN_ENTRY_TYPE>::Score(const AttentionPlan& plan, const ScoreTask& task, float* scratch) {
  HWY_DYNAMIC_DISPATCH(ScoreEntries)(plan, task, scratch);
}
template <>
void AttentionOf<INFINIGEN_ENTRY_TYPE>::Norms(const AttentionPlan& plan, const ColumnTask& task, float* scratch) {
  HWY_DYNAMIC_DISPATCH(ColumnNorms)(plan, task, scratch);
}
template <>
void AttentionOf<INFINIGEN_ENTRY_TYPE>::Columns(const AttentionPlan& plan, const ColumnTask& task, float* scratch) {
  HWY_DYNAMIC_DISPATCH(ColumnSums)(plan, task, scratch);
}

}  // namespace infinigen
#endif  // HWY_ONCE
