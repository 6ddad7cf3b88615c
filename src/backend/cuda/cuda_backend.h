// The GPU backend: every operation of backend.h as CUDA kernels on four streams, matrix products by cuBLASLt. One
// thread calls it (the engine's).
//
// The pool's entries lie in pinned host memory or on the device; kernels reach both by the same pointers. Weights are
// copied to the device, in the type they are stored in. Activations have one type, the residual stream is f32.
// Attention multiplies on tensor cores in the entries' own type, quantised and f32 entries as f16.
//
// No CUDA header is needed to include this one.
#pragma once

#include <array>
#include <memory>
#include <string_view>

#include "backend/backend.h"
#include "backend/gpu.h"

namespace infinigen {

class CudaContext;

// The first GPU; kUnsupported when there is none that can be used, with the reason.
Result<GpuInfo> FindCudaDevice();

// Takes a second.
Result<GpuCeilings> MeasureCeilings();

// What an operation does, for those who ask where time goes.
enum class CudaZone : uint8_t { kProducts, kAttention, kSelection, kEntries, kRowwise, kFetch, kWriteout, kWeights };
inline constexpr size_t kCudaZones = 8;
using ZoneTimes = std::array<double, kCudaZones>;  // milliseconds, by CudaZone

struct CudaOptions {
  DType activation = DType::kBF16;
  bool pool_on_device = false;
  uint64_t memory_limit_bytes = UINT64_MAX;  // of the device
};

class CudaBackend {
 public:
  // Tokens of a prefill unit: enough that a matrix product reads each weight for many tokens, few enough that others
  // wait a few milliseconds.
  static constexpr int64_t kChunkTokens = 2048;

  // Precondition: FindCudaDevice() found one. kExhausted when it has no memory for a program more.
  static Result<std::unique_ptr<CudaBackend>> Open(const CudaOptions& options);
  ~CudaBackend();
  CudaBackend(const CudaBackend&) = delete;
  CudaBackend& operator=(const CudaBackend&) = delete;

  DType activation() const { return options_.activation; }
  Allocator& compute_memory();
  Allocator& pool_memory();
  Allocator& host_memory();
  bool pool_is_remote() const { return !options_.pool_on_device; }
  // Plain types alone.
  static Status CheckWeight(WeightType type);
  Result<WeightView> Load(const WeightView& weight);
  Result<ConstTensor> Load(const ConstTensor& vector);
  Status Reserve(int64_t max_tokens, int64_t max_batch, int64_t heads, int64_t kv_heads, int64_t head_dim);
  // What Reserve and the libraries take beside the decoder's memory.
  static size_t ReservedBytes(int64_t max_tokens, int64_t max_batch, int64_t heads, int64_t kv_heads, int64_t head_dim);
  void Upload(Queue queue, const void* host, size_t bytes, void* device);
  Ticket Download(Queue queue, const void* device, size_t bytes, void* host);
  void Move(Queue queue, std::span<const ByteMove> moves);
  // Pool memory that was taken is ready for kernels.
  void AwaitPool();

  Ticket Record(Queue queue);
  void Wait(Queue queue, Ticket ticket);
  void Synchronize(Ticket ticket);
  void NoteArrived(Queue queue, FetchClock* clock);
  void NoteReady(Queue queue, FetchClock* clock);
  void CountWaits(Queue queue, FetchClock* clocks, int64_t count);

  static constexpr std::array<std::string_view, kCudaZones> kZoneNames = {
      "products", "attention", "selection", "entries", "rowwise", "fetch", "writeout", "weights"};
  // Times operations from now on, or not; what was timed since the last call. The host waits.
  void TimeZones(bool on);
  ZoneTimes CollectZones();

  // A graph of operations that are the same in every step but for what lies in device memory: launched again if `key`
  // is known, which names the shapes. Else the operations follow: the first time as they are, so that what libraries
  // prepare is prepared; the second time they are recorded between BeginGraph, which says so, and EndGraph, which runs
  // them. If EndGraph says no, there was no memory for a graph: nothing has run, and they have to follow once more.
  bool LaunchGraph(uint64_t key);
  bool BeginGraph(uint64_t key);
  bool EndGraph();

  // For measurements: entries are not fetched, or products, attention and norms are left out, so that results mean
  // nothing; what is left takes the time that it would take alone.
  void Skip(SkippedWork skipped) { skipped_ = skipped; }
  SkippedWork skipped() const { return skipped_; }

  // Device memory in use, now and at most; time spent pinning host memory.
  uint64_t used_bytes() const;
  uint64_t peak_bytes() const;
  double pinning_s() const;

  void Embed(Queue queue, const TokenBatch& batch, const WeightView& table, const Tensor& out);
  void AddPositions(Queue queue, const TokenBatch& batch, const WeightView& table, int64_t offset, const Tensor& x);
  void RmsNorm(Queue queue, const Tensor& x, const ConstTensor& weight, float eps, const Tensor& out);
  void LayerNorm(Queue queue, const Tensor& x, const ConstTensor& weight, const ConstTensor& bias, float eps,
                 const Tensor& out);
  void MatMul(Queue queue, const Tensor& x, std::span<const Projection> projections);
  void RopeTable(Queue queue, const TokenBatch& batch, const ConstTensor& frequencies, const Tensor& table);
  void Rope(Queue queue, const ConstTensor& table, const Tensor& x);
  void Copy(Queue queue, const ConstTensor& x, const Tensor& out);
  void SiluMul(Queue queue, const Tensor& gate, const Tensor& up);
  void Append(Queue queue, const TokenBatch& batch, const ConstTensor& keys, const ConstTensor& values,
              const LayerEntries& entries);
  void AttendPrefill(Queue queue, const ConstTensor& queries, const TokenRun& run, const AttentionShape& shape,
                     const LayerEntries& entries, const Tensor& out);
  void AttendDecode(Queue queue, const ConstTensor& queries, const TokenBatch& batch, int64_t max_rows,
                    const AttentionShape& shape, const LayerEntries& entries, const Tensor& out);

  void AppendSketches(Queue queue, const TokenBatch& batch, const ConstTensor& keys, const SketchBasis& basis,
                      const LayerSketches& sketches);
  void SketchQueries(Queue queue, const ConstTensor& queries, const TokenBatch& batch, const AttentionShape& shape,
                     const SketchBasis& basis, const Tensor& out);
  void Select(Queue queue, const ConstTensor& sketch_queries, const TokenBatch& batch, const SelectCall& call,
              const LayerSketches& sketches, const Selection& selection);
  void AppendBounds(Queue queue, const TokenBatch& batch, const ConstTensor& keys, const LayerPageBounds& bounds);
  void SelectPages(Queue queue, const ConstTensor& queries, const TokenBatch& batch, const SelectCall& call,
                   const AttentionShape& shape, const LayerPageBounds& bounds, const Selection& selection);
  void AppendPageSums(Queue queue, const TokenBatch& batch, const ConstTensor& keys, const LayerPageSums& sums);
  void SelectPageMeans(Queue queue, const ConstTensor& queries, const TokenBatch& batch, const SelectCall& call,
                       const AttentionShape& shape, const LayerPageSums& sums, const Selection& selection);
  void SelectExact(Queue queue, const ConstTensor& queries, const TokenBatch& batch, const SelectCall& call,
                   const AttentionShape& shape, const LayerEntries& entries, const Selection& selection);
  void AttendSelected(Queue queue, const ConstTensor& queries, const TokenBatch& batch, const Selection& selection,
                      const AttentionShape& shape, const LayerEntries& entries, const Tensor& out);
  void MeasureMass(Queue queue, const ConstTensor& queries, const TokenBatch& batch, const Selection& selection,
                   const AttentionShape& shape, const LayerEntries& entries, MassTotals* mass);

  void AssignRows(Queue queue, const TokenBatch& batch, const RetainRule& rule, const LayerCache& cache, int32_t* own_rows);
  void UpdatePriorities(Queue queue, const TokenBatch& batch, const RetainRule& rule, const SelectCall& call,
                        const Selection& selection);
  void SumAttention(Queue queue, const ConstTensor& queries, const TokenBatch& batch, const AttentionShape& shape,
                    const LayerCache& cache);
  void SumColumns(Queue queue, const ConstTensor& queries, const TokenRun& run, const AttentionShape& shape,
                  const LayerCache& cache);
  void CopySurvivors(Queue queue, const RetainRule& rule, const LayerCache& from, int64_t rows, SeqSlot slot,
                     const LayerCache& to);

  void ClearFetched(Queue queue, const FetchBuffer& buffer, SeqSlot slot);
  void AssignCells(Queue queue, const TokenBatch& batch, const Selection& selection, const FetchBuffer& buffer,
                   double forced_hits, const FetchList& list, FetchTotals* totals);
  void FetchMisses(Queue queue, const TokenBatch& batch, const Selection& selection, const LayerEntries& entries,
                   const FetchBuffer& buffer, const FetchList& list, FetchClock* clock);
  void AppendFetched(Queue queue, const TokenBatch& batch, const ConstTensor& keys, const ConstTensor& values,
                     const FetchBuffer& buffer, const FetchList& list);
  void AttendFetched(Queue queue, const ConstTensor& queries, const TokenBatch& batch, const Selection& selection,
                     const AttentionShape& shape, const LayerEntries& entries, const FetchBuffer& buffer,
                     const FetchList& list, const Tensor& out);

 private:
  CudaBackend(const CudaOptions& options, std::unique_ptr<CudaContext> context);
  // Device memory for a parameter; small ones share a block.
  Result<std::byte*> TakeMemory(size_t bytes);
  static size_t ScratchBytes(int64_t max_tokens, int64_t max_batch, int64_t heads, int64_t kv_heads, int64_t head_dim);

  CudaOptions options_;
  SkippedWork skipped_;
  std::unique_ptr<CudaContext> context_;
};

static_assert(FetchingBackend<CudaBackend>);

}  // namespace infinigen
