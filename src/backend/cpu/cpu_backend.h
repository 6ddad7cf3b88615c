// The fast CPU backend: Highway SIMD, selected at run time, and a thread pool. Weights are read in their stored type.
// One thread, the engine's, calls it; every operation is done when it returns.
//
// Each output element has one order of additions, fixed by the shape alone: not by the number of rows in the call, the
// number of threads or the division into chunks. On one machine, a prompt prefilled in any chunks gives the same bits
// as its tokens decoded one by one. Results differ between SIMD widths, except products with quantised weights.
// docs/cpu-backend.md describes the orders.
//
// Scratch grows on the first call with a larger shape and is then kept: steady decoding allocates nothing.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "backend/host_backend.h"
#include "base/check.h"
#include "base/thread_pool.h"
#include "tensor/buffer.h"

namespace infinigen {

struct AttentionPlan;
struct BlockKernels;
struct BlockPlan;
struct CpuMatMulPlan;

// Working memory of one operation, kept for the next ones and grown on demand. Contents do not survive Reserve. Not
// thread-safe: there is one per thread, plus one that the calling thread reserves before it starts the others.
class Scratch {
 public:
  explicit Scratch(Allocator& memory) : memory_(&memory) {}

  // At least `floats` floats, 64-byte aligned, contents undefined. Grows to twice the need, so that a sequence that
  // grows by one token per step reallocates rarely. Throws std::bad_alloc, as operator new does.
  float* Reserve(int64_t floats) {
    const size_t bytes = static_cast<size_t>(floats) * sizeof(float);
    if (buffer_.bytes() < bytes && !Grow(std::max(2 * bytes, kSmallestBytes)).ok()) throw std::bad_alloc();
    return reinterpret_cast<float*>(buffer_.data());
  }
  // Later calls of Reserve for up to `floats` floats allocate nothing.
  Status ReserveAhead(int64_t floats) {
    const size_t bytes = static_cast<size_t>(floats) * sizeof(float);
    return buffer_.bytes() < bytes ? Grow(bytes) : Ok();
  }

 private:
  Status Grow(size_t bytes) {
    buffer_ = Buffer();
    ASSIGN_OR_RETURN(buffer_, Buffer::Make(*memory_, bytes));
    return Ok();
  }

  static constexpr size_t kSmallestBytes = size_t{64} << 10;

  Allocator* memory_;
  Buffer buffer_;
};

class CpuBackend : public HostBackend {
 public:
  static constexpr int64_t kChunkTokens = 512;

  explicit CpuBackend(int threads);

  int threads() const { return pool_.threads(); }
  // The SIMD target in use, as Highway names it: "AVX3", "AVX2", "EMU128".
  const char* simd_target() const;

  Status Reserve(int64_t max_tokens, int64_t max_batch, int64_t heads, int64_t kv_heads, int64_t head_dim);

  // Accepts every stored type.
  static Status CheckWeight(WeightType type);
  using HostBackend::Load;
  Result<WeightView> Load(const WeightView& weight);

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

 private:
  // Calls body(first_row, count) for parts of [0, rows). Uses several threads only if the work is worth waking them.
  // `row_work` is the number of elements touched per row.
  template <class Body>
  void ForRows(int64_t rows, int64_t row_work, Body&& body);

  template <class Body>
  void ForTokensOfHeads(int64_t tokens, int64_t heads, int64_t token_work, Body&& body);

  // The activations of a MatMul call, as the kernels of plain and of quantised weights read them.
  void PackActivations(CpuMatMulPlan& plan, float* memory);
  void QuantiseActivations(const ConstTensor& x, const BlockPlan& plan);

  // Attention of `tokens` tokens, with one task per (token, KV head, run of chunks). task_of(token, head) describes
  // what a task reads.
  template <class TaskOf>
  void AttendInChunks(const AttentionPlan& plan, int64_t tokens, int64_t longest, TaskOf&& task_of,
                      const TailView& tail, const Tensor& out);

  // SumTails with late rows.
  void SumLateTails(const ConstTensor& sketch_queries, const TokenBatch& batch, const SelectCall& call,
                    const LayerSketches& sketches, const Selection& selection);

  // Selection by scores. score(token, head, ScoredRows, scratch) writes the scores and maxima of some rows of one KV
  // head. tail(token, head, first, last, scores, parts), if call.tail is not null, sums the tail of rows [first, last)
  // from their scores (select.h).
  template <class Score, class Tail>
  void SelectBy(const TokenBatch& batch, const SelectCall& call, int64_t heads, int64_t group,
                const Selection& selection, int64_t scratch_floats, Score&& score, Tail&& tail);

  // The same with choose(Choice, ChoiceScratch, token, head), which writes the attended rows to `selection` and returns
  // by how many rows the totals grow.
  template <class Score, class Tail, class Choose>
  void ChooseBy(const TokenBatch& batch, const SelectCall& call, int64_t heads, int64_t group,
                const Selection& selection, int64_t scratch_floats, Score&& score, Tail&& tail, Choose&& choose);

  ThreadPool pool_;
  const bool vnni_;                    // score integer sketches with AVX512-VNNI (sketch_query.h)
  const BlockKernels& block_kernels_;  // products with quantised weights
  Scratch shared_;                     // packed activations; partial results of attention
  std::vector<Scratch> private_;       // [threads]
};

static_assert(Backend<CpuBackend>);

// Waking the threads costs 1-5 µs; one thread is faster below this many element operations.
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
