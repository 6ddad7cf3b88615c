// The oracle: each operation of backend.h as the simplest possible loop, in f32, on one thread. It is never optimised;
// the tests compare every other backend with it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "backend/host_backend.h"

namespace infinigen {

class ReferenceBackend : public HostBackend {
 public:
  static constexpr int64_t kChunkTokens = 64;  // small, so that tests cross chunk boundaries

  Status Reserve(int64_t, int64_t, int64_t, int64_t, int64_t) { return Ok(); }
  // Accepts every stored type: DecodeRow decodes them all.
  static Status CheckWeight(WeightType) { return Ok(); }
  using HostBackend::Load;
  Result<WeightView> Load(const WeightView& weight) { return weight; }

  void Embed(Queue, const TokenBatch& batch, const WeightView& table, const Tensor& out);
  void AddPositions(Queue, const TokenBatch& batch, const WeightView& table, int64_t offset, const Tensor& x);
  void RmsNorm(Queue, const Tensor& x, const ConstTensor& weight, float eps, const Tensor& out);
  void LayerNorm(Queue, const Tensor& x, const ConstTensor& weight, const ConstTensor& bias, float eps,
                 const Tensor& out);
  void MatMul(Queue, const Tensor& x, std::span<const Projection> projections);
  void RopeTable(Queue, const TokenBatch& batch, const ConstTensor& frequencies, float factor, const Tensor& table);
  void Rope(Queue, const ConstTensor& table, const RopeShape& shape, const Tensor& x);
  void TurnHeads(Queue, const ConstTensor& x, int64_t head_dim, const Tensor& out);
  void SiluMul(Queue, const Tensor& gate, const Tensor& up);
  void GeluMul(Queue, const Tensor& gate, const Tensor& up);
  void Add(Queue, const ConstTensor& y, const Tensor& x);
  void Scale(Queue, float factor, const Tensor& x);
  void SoftCap(Queue, float cap, const Tensor& x);
  void Append(Queue, const TokenBatch& batch, const ConstTensor& keys, const ConstTensor& values,
              const LayerEntries& entries);
  void AttendPrefill(Queue, const ConstTensor& queries, const TokenRun& run, const AttentionShape& shape,
                     const LayerEntries& entries, const Tensor& out);
  void AttendDecode(Queue, const ConstTensor& queries, const TokenBatch& batch, int64_t max_rows,
                    const AttentionShape& shape, const LayerEntries& entries, const Tensor& out);

  void AppendSketches(Queue, const TokenBatch& batch, const ConstTensor& keys, const SketchBasis& basis,
                      const LayerSketches& sketches);
  void SketchQueries(Queue, const ConstTensor& queries, const TokenBatch& batch, const AttentionShape& shape,
                     const SketchBasis& basis, const Tensor& out);
  void Select(Queue, const ConstTensor& sketch_queries, const TokenBatch& batch, const SelectCall& call,
              const LayerSketches& sketches, const Selection& selection);
  void AppendValueSketches(Queue, const TokenBatch& batch, const ConstTensor& values, const TailBasis& basis,
                           const LayerSketches& sketches);
  void AppendBlockMeans(Queue, const TokenBatch& batch, const LayerEntries& entries, const TailBasis& basis,
                        const LayerSketches& sketches);
  void QueryLevels(Queue, const ConstTensor& queries, const TokenBatch& batch, const AttentionShape& shape,
                   const TailView& tail);
  void SumTails(Queue, const ConstTensor& sketch_queries, const TokenBatch& batch, const SelectCall& call,
                const LayerSketches& sketches, const Selection& selection);
  void AppendBounds(Queue, const TokenBatch& batch, const ConstTensor& keys, const LayerPageBounds& bounds);
  void SelectPages(Queue, const ConstTensor& queries, const TokenBatch& batch, const SelectCall& call,
                   const AttentionShape& shape, const LayerPageBounds& bounds, const Selection& selection);
  void AppendPageSums(Queue, const TokenBatch& batch, const ConstTensor& keys, const LayerPageSums& sums);
  void SelectPageMeans(Queue, const ConstTensor& queries, const TokenBatch& batch, const SelectCall& call,
                       const AttentionShape& shape, const LayerPageSums& sums, const Selection& selection);
  void SelectExact(Queue, const ConstTensor& queries, const TokenBatch& batch, const SelectCall& call,
                   const AttentionShape& shape, const LayerEntries& entries, const Selection& selection);
  void AttendSelected(Queue, const ConstTensor& queries, const TokenBatch& batch, const Selection& selection,
                      const TailView& tail, const AttentionShape& shape, const LayerEntries& entries,
                      const Tensor& out);
  void MeasureMass(Queue, const ConstTensor& queries, const TokenBatch& batch, const Selection& selection,
                   const AttentionShape& shape, const LayerEntries& entries, MassTotals* mass);

  void AssignRows(Queue, const TokenBatch& batch, const RetainRule& rule, const LayerCache& cache, int32_t* own_rows);
  void UpdatePriorities(Queue, const TokenBatch& batch, const RetainRule& rule, const SelectCall& call,
                        const Selection& selection);
  void SumAttention(Queue, const ConstTensor& queries, const TokenBatch& batch, const AttentionShape& shape,
                    const LayerCache& cache);
  void SumColumns(Queue, const ConstTensor& queries, const TokenRun& run, const AttentionShape& shape,
                  const LayerCache& cache);
  void CopySurvivors(Queue, const RetainRule& rule, const LayerCache& from, int64_t rows, SeqSlot slot,
                     const LayerCache& to);

  void ClearFetched(Queue, const FetchBuffer& buffer, SeqSlot slot);
  void AssignCells(Queue, const TokenBatch& batch, const Selection& selection, const FetchBuffer& buffer,
                   double forced_hits, const FetchList& list, FetchTotals* totals);
  void AssignLate(Queue, const TokenBatch& batch, const LateSelection& late, const FetchBuffer& buffer,
                  const FetchList& list, const FetchList& late_list, FetchTotals* totals);
  void FetchMisses(Queue, const TokenBatch& batch, const Selection& selection, const LayerEntries& entries,
                   const FetchBuffer& buffer, const FetchList& list, FetchClock* clock);
  void AppendFetched(Queue, const TokenBatch& batch, const ConstTensor& keys, const ConstTensor& values,
                     const FetchBuffer& buffer, const FetchList& list);
  void AttendFetched(Queue, const ConstTensor& queries, const TokenBatch& batch, const Selection& selection,
                     const TailView& tail, const AttentionShape& shape, const LayerEntries& entries,
                     const FetchBuffer& buffer, const FetchList& list, const Tensor& out);
};

static_assert(FetchingBackend<ReferenceBackend>);

// The largest score of some rows, and Σ e^{score − largest}.
struct SoftmaxNorm {
  float largest = 0, sum = 0;
};
// softmax(query · keys · scale) over the listed rows of one KV head. `norm` may be null.
std::vector<float> AttentionWeights(const float* query, int64_t slot, int64_t head, std::span<const int32_t> rows,
                                    const AttentionShape& shape, const LayerEntries& entries,
                                    SoftmaxNorm* norm = nullptr);
// The output of one query head: the values of the listed rows, weighted by AttentionWeights.
SoftmaxNorm AttendHead(const float* query, int64_t slot, int64_t head, std::span<const int32_t> rows,
                       const AttentionShape& shape, const LayerEntries& entries, float* out);
// Adds the tail of a token's query head to `out`, and its share of the attention to tail.mass.
void AttendToTail(const TailView& tail, int64_t token, int64_t query_head, const SoftmaxNorm& norm, float* out);

}  // namespace infinigen
