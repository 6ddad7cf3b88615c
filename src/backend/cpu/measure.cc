// SelectExact, MeasureMass and SumAttention, which need true scores and so read every key.
#include <algorithm>
#include <cmath>

#include "backend/cpu/attention_plan.h"
#include "backend/cpu/select.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/measure.cc"
#include <hwy/foreach_target.h>
// After foreach_target.
#include <hwy/highway.h>

#include "backend/cpu/attention-inl.h"
#include "backend/cpu/choose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace infinigen::HWY_NAMESPACE {

// Turns the scores of query head g into weights e^(score − maximum); returns their sum.
HWY_INLINE double WeighScores(float* scores, int64_t group, int64_t g, int64_t visible) {
  const DF d;
  const auto block = [&](int64_t b) { return scores + (b * group + g) * kScoreBlock; };
  const int64_t blocks = ScoreBlocks(visible);
  std::fill(block(blocks - 1) + (visible - 1) % kScoreBlock + 1, block(blocks - 1) + kScoreBlock, kMinusInfinity);
  VF largest = hn::Set(d, kMinusInfinity);
  for (int64_t b = 0; b < blocks; ++b)
    for (int64_t v = 0; v < kScoreBlock; v += kLanes) largest = hn::Max(largest, hn::Load(d, block(b) + v));
  largest = hn::MaxOfLanes(d, largest);
  double total = 0;
  for (int64_t b = 0; b < blocks; ++b) {
    VF sum = hn::Zero(d);
    for (int64_t v = 0; v < kScoreBlock; v += kLanes) {
      const VF weight = Exp(d, hn::Sub(hn::Load(d, block(b) + v), largest));
      hn::Store(weight, d, block(b) + v);
      sum = hn::Add(sum, weight);
    }
    total += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, sum)));
  }
  return total;
}

void FindMaxima(const ScoredRows& rows, int64_t group) {
  Maxima maxima(rows.maxima, group, 0);  // ScoreEntries applies the soft cap
  for (int64_t start = rows.first; start < rows.last; start += kScoreBlock)
    maxima.Add(rows.scores + (start - rows.first) * group, std::min(kScoreBlock, rows.last - start));
}

// The share of query head g's attention that falls on the listed rows. Turns its scores into weights.
double ShareInside(float* scores, int64_t group, int64_t g, int64_t visible, const int32_t* rows, int64_t count) {
  const double total = WeighScores(scores, group, g, visible);
  double inside = 0;
  for (int64_t j = 0; j < count; ++j)
    inside += static_cast<double>(scores[(rows[j] / kScoreBlock * group + g) * kScoreBlock + rows[j] % kScoreBlock]);
  const double share = inside / total;
  return share > 0 ? std::min(share, 1.0) : 0.0;  // NaN counts as 0
}

// Adds the weights of all query heads of a group to the priorities of rows [0, visible).
void AddShares(float* scores, int64_t group, int64_t visible, float* priorities) {
  for (int64_t g = 0; g < group; ++g) {
    const float share = static_cast<float>(1.0 / WeighScores(scores, group, g, visible));
    for (int64_t start = 0; start < visible; start += kScoreBlock) {
      const float* weights = scores + (start / kScoreBlock * group + g) * kScoreBlock;
      for (int64_t j = 0; j < std::min(kScoreBlock, visible - start); ++j) priorities[start + j] += weights[j] * share;
    }
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace infinigen::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace infinigen {
namespace {

HWY_EXPORT(FindMaxima);
HWY_EXPORT(ShareInside);
HWY_EXPORT(AddShares);

void CheckQueries(const ConstTensor& queries, int64_t tokens, const AttentionShape& shape,
                  const LayerEntries& entries) {
  const EntryLayout& layout = entries.layout;
  CHECK(shape.heads % layout.kv_heads == 0 && layout.head_dim <= kMaxHeadDim);
  CHECK(queries.type == DType::kF32 && queries.cols == shape.heads * layout.head_dim && queries.rows >= tokens);
}

// True scores of rows [first, last): scores [blocks][group][64]. scratch [scratch_floats(group)].
void ScoreEntries(const AttentionPlan& plan, const ConstTensor& queries, const TokenBatch& batch, int64_t token,
                  int64_t head, int64_t first, int64_t last, float* scores, float* scratch) {
  static_assert(kScoreBlock == kAttentionBlock);
  const ScoreTask task{.queries = queries.as<float>(token) + head * plan.group * plan.dim,
                       .slot = batch.slots[token],
                       .head = head,
                       .first = first,
                       .last = last,
                       .scores = scores};
  WithAttentionOf(plan.entries.layout.type, [&](auto typed) { typed.Score(plan, task, scratch); });
}

}  // namespace

void CpuBackend::SelectExact(Queue, const ConstTensor& queries, const TokenBatch& batch, const SelectCall& call,
                             const AttentionShape& shape, const LayerEntries& entries, const Selection& selection) {
  CheckQueries(queries, batch.count, shape, entries);
  const AttentionPlan plan(entries, shape);
  const auto score = [&](int64_t token, int64_t head, const ScoredRows& rows, float* scratch) {
    ScoreEntries(plan, queries, batch, token, head, rows.first, rows.last, rows.scores, scratch);
    HWY_DYNAMIC_DISPATCH(FindMaxima)(rows, plan.group);
  };
  SelectBy(batch, call, entries.layout.kv_heads, plan.group, selection, plan.scratch_floats(plan.group), score,
           NoTail());
}

void CpuBackend::MeasureMass(Queue, const ConstTensor& queries, const TokenBatch& batch, const Selection& selection,
                             const AttentionShape& shape, const LayerEntries& entries, MassTotals* mass) {
  CheckQueries(queries, batch.count, shape, entries);
  const AttentionPlan plan(entries, shape);
  const int64_t heads = entries.layout.kv_heads, tasks = batch.count * heads;
  CHECK(selection.kv_heads == heads);
  auto* shares = reinterpret_cast<double*>(shared_.Reserve(2 * tasks * plan.group));
  pool_.Run(tasks, [&](int64_t task, int thread) {
    const int64_t token = task / heads, head = task % heads, visible = batch.rows[token] + 1;
    float* scores = private_[static_cast<size_t>(thread)].Reserve(plan.group * ScoreBlocks(visible) * kScoreBlock +
                                                                  plan.scratch_floats(plan.group));
    float* scratch = scores + plan.group * ScoreBlocks(visible) * kScoreBlock;
    ScoreEntries(plan, queries, batch, token, head, 0, visible, scores, scratch);
    for (int64_t g = 0; g < plan.group; ++g)
      shares[task * plan.group + g] = HWY_DYNAMIC_DISPATCH(ShareInside)(
          scores, plan.group, g, visible, selection.Rows(token, head), selection.Count(token, head));
  });
  for (int64_t i = 0; i < tasks * plan.group; ++i) {
    ++mass->count;
    mass->sum += shares[i];
    ++mass->bins[static_cast<int>(shares[i] * MassTotals::kBins)];
  }
}

void CpuBackend::SumAttention(Queue, const ConstTensor& queries, const TokenBatch& batch, const AttentionShape& shape,
                              const LayerCache& cache) {
  CheckQueries(queries, batch.count, shape, cache.entries);
  const AttentionPlan plan(cache.entries, shape);
  const int64_t heads = cache.entries.layout.kv_heads;
  pool_.Run(batch.count * heads, [&](int64_t task, int thread) {
    const int64_t token = task / heads, head = task % heads, visible = batch.rows[token] + 1;
    float* scores = private_[static_cast<size_t>(thread)].Reserve(plan.group * ScoreBlocks(visible) * kScoreBlock +
                                                                  plan.scratch_floats(plan.group));
    float* scratch = scores + plan.group * ScoreBlocks(visible) * kScoreBlock;
    ScoreEntries(plan, queries, batch, token, head, 0, visible, scores, scratch);
    HWY_DYNAMIC_DISPATCH(AddShares)(scores, plan.group, visible, cache.retained.Priorities(batch.slots[token], head));
  });
}

}  // namespace infinigen
#endif  // HWY_ONCE
