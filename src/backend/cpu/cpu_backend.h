// The fast CPU backend: Highway SIMD chosen at run time, one team of threads, weights read in the type they are stored
// in. One thread calls it (the engine's); every operation returns when it is done.
//
// Each output element has one order of additions, fixed by the shape alone: not by the number of rows in the call, the
// number of threads or the cut into chunks. So a prompt prefilled in any chunks and the same tokens decoded one by one
// give the same bits on one machine. docs/cpu-backend.md tells the orders; results differ between SIMD widths.
//
// Scratch grows on the first call of a larger shape and is then kept: a steady decode allocates nothing.
#pragma once

#include <vector>

#include "backend/backend.h"
#include "backend/cpu/scratch.h"
#include "backend/host_backend.h"
#include "base/thread_pool.h"

namespace infinigen {

struct AttentionPlan;

class CpuBackend : public HostBackend {
 public:
  static constexpr int64_t kChunkTokens = 512;

  explicit CpuBackend(int threads);

  int threads() const { return pool_.threads(); }
  // The SIMD target in use, in Highway's words: "AVX3", "AVX2", "EMU128".
  const char* simd_target() const;

  // Takes the scratch that steps of up to max_batch tokens with sequences of up to max_tokens rows need, so that none
  // of them allocates.
  Status Reserve(int64_t max_tokens, int64_t max_batch, int64_t heads, int64_t kv_heads, int64_t head_dim);

  // Plain types alone.
  static Status CheckWeight(WeightType type);
  using HostBackend::Load;
  Result<WeightView> Load(const WeightView& weight);

  void Embed(Queue, const TokenBatch& batch, const WeightView& table, const Tensor& out);
  void AddPositions(Queue, const TokenBatch& batch, const WeightView& table, int64_t offset, const Tensor& x);
  void RmsNorm(Queue, const Tensor& x, const ConstTensor& weight, float eps, const Tensor& out);
  void LayerNorm(Queue, const Tensor& x, const ConstTensor& weight, const ConstTensor& bias, float eps,
                 const Tensor& out);
  void MatMul(Queue, const Tensor& x, std::span<const Projection> projections);
  void RopeTable(Queue, const TokenBatch& batch, const ConstTensor& frequencies, const Tensor& table);
  void Rope(Queue, const ConstTensor& table, const Tensor& x);
  void SiluMul(Queue, const Tensor& gate, const Tensor& up);
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
  void AppendBounds(Queue, const TokenBatch& batch, const ConstTensor& keys, const LayerPageBounds& bounds);
  void SelectPages(Queue, const ConstTensor& queries, const TokenBatch& batch, const SelectCall& call,
                   const AttentionShape& shape, const LayerPageBounds& bounds, const Selection& selection);
  void AppendPageSums(Queue, const TokenBatch& batch, const ConstTensor& keys, const LayerPageSums& sums);
  void SelectPageMeans(Queue, const ConstTensor& queries, const TokenBatch& batch, const SelectCall& call,
                       const AttentionShape& shape, const LayerPageSums& sums, const Selection& selection);
  void SelectExact(Queue, const ConstTensor& queries, const TokenBatch& batch, const SelectCall& call,
                   const AttentionShape& shape, const LayerEntries& entries, const Selection& selection);
  void AttendSelected(Queue, const ConstTensor& queries, const TokenBatch& batch, const Selection& selection,
                      const AttentionShape& shape, const LayerEntries& entries, const Tensor& out);
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

 private:
  // body(first_row, count) over [0, rows), cut over the team only when the work is worth waking it for. `row_work` is
  // in elements touched per row.
  template <class Body>
  void ForRows(int64_t rows, int64_t row_work, Body&& body);

  // Attention of `tokens` tokens, one task per (token, KV head, run of chunks); task_of(token, head) names what it
  // reads.
  template <class TaskOf>
  void AttendInChunks(const AttentionPlan& plan, int64_t tokens, int64_t longest, TaskOf&& task_of, const Tensor& out);

  // Selection by scores: score(token, head, ScoredRows, scratch) writes scores and maxima of rows of one KV head
  // (select.h).
  template <class Score>
  void SelectBy(const TokenBatch& batch, const SelectCall& call, int64_t heads, int64_t group,
                const Selection& selection, int64_t scratch_floats, Score&& score);

  ThreadPool pool_;
  const bool vnni_;               // integer sketches are scored by byte products (sketch_score_vnni.h)
  Scratch shared_;                // packed activations, partials of split attention
  std::vector<Scratch> private_;  // [threads]
};

static_assert(Backend<CpuBackend>);

// Starting the team costs 1-5 µs; below this many element operations one thread is done sooner.
inline constexpr int64_t kSerialWork = 16384;

template <class Body>
void CpuBackend::ForRows(int64_t rows, int64_t row_work, Body&& body) {
  if (rows <= 1 || rows * row_work <= kSerialWork) {
    if (rows > 0) body(int64_t{0}, rows);
    return;
  }
  const int64_t per_task = std::max<int64_t>(1, rows / (4 * threads()));
  pool_.Run((rows + per_task - 1) / per_task, [&](int64_t task, int) {
    const int64_t first = task * per_task;
    body(first, std::min(per_task, rows - first));
  });
}

}  // namespace infinigen
