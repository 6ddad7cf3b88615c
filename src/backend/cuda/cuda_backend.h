// The GPU backend: the operations of backend.h as CUDA kernels on four streams; matrix products use cuBLASLt. One
// thread, the engine's, calls it.
//
// The pool's entries lie in pinned host memory or in device memory; kernels read both through the same pointers.
// Weights are copied to the device in their stored type. Activations have one type; the residual stream is f32.
// Attention multiplies on tensor cores in the entries' own type, and in f16 for quantised and f32 entries.
//
// Including this header requires no CUDA header.
#pragma once

#include <array>
#include <memory>
#include <string_view>

#include "backend/backend.h"
#include "backend/gpu.h"

namespace infinigen {

class CudaContext;

// Describes the first GPU. kUnsupported, with the reason, if none can be used.
Result<GpuInfo> FindCudaDevice();

// Measures the peak speeds of device memory and link; takes about a second.
Result<GpuCeilings> MeasureCeilings();

// The kinds of work that step times are broken down by.
enum class CudaZone : uint8_t { kProducts, kAttention, kSelection, kEntries, kRowwise, kFetch, kWriteout, kWeights };
inline constexpr size_t kCudaZones = 8;
using ZoneTimes = std::array<double, kCudaZones>;  // milliseconds, by CudaZone

struct CudaOptions {
  DType activation = DType::kBF16;
  bool pool_on_device = false;
  uint64_t memory_limit_bytes = UINT64_MAX;  // limit on device memory
};

// Work that is left out so that the rest can be timed alone. Results are then meaningless.
struct SkippedWork {
  bool fetch = false;
  bool compute = false;  // products, attention and norms
};

class CudaBackend {
 public:
  // Tokens per prefill chunk: enough that a matrix product reads each weight for many tokens, few enough that other
  // requests wait only a few milliseconds.
  static constexpr int64_t kChunkTokens = 2048;

  // Precondition: FindCudaDevice() succeeded. kExhausted if the device has no memory for another process.
  static Result<std::unique_ptr<CudaBackend>> Open(const CudaOptions& options);
  ~CudaBackend();
  CudaBackend(const CudaBackend&) = delete;
  CudaBackend& operator=(const CudaBackend&) = delete;

  DType activation() const { return options_.activation; }
  Allocator& compute_memory();
  Allocator& pool_memory();
  Allocator& host_memory();
  bool pool_is_remote() const { return !options_.pool_on_device; }
  static Status CheckWeight(WeightType) { return Ok(); }  // every stored type
  Result<WeightView> Load(const WeightView& weight);
  Result<ConstTensor> Load(const ConstTensor& vector);
  Status Reserve(int64_t max_tokens, int64_t max_batch, int64_t heads, int64_t kv_heads, int64_t head_dim);
  // Device memory used by Reserve and by the libraries, in addition to the decoder's own.
  static size_t ReservedBytes(int64_t max_tokens, int64_t max_batch, int64_t heads, int64_t kv_heads, int64_t head_dim);
  void Upload(Queue queue, const void* host, size_t bytes, void* device);
  Ticket Download(Queue queue, const void* device, size_t bytes, void* host);
  void Move(Queue queue, std::span<const ByteMove> moves);
  void AwaitPool();

  Ticket Record(Queue queue);
  void Wait(Queue queue, Ticket ticket);
  void Synchronize(Ticket ticket);
  void NoteArrived(Queue queue, FetchClock* clock);
  void NoteReady(Queue queue, FetchClock* clock);
  void CountWaits(Queue queue, FetchClock* clocks, int64_t count);

  static constexpr std::array<std::string_view, kCudaZones> kZoneNames = {
      "products", "attention", "selection", "entries", "rowwise", "fetch", "writeout", "weights"};
  // TimeZones turns per-operation timing on or off. CollectZones returns the times since its last call and blocks the
  // host.
  void TimeZones(bool on);
  ZoneTimes CollectZones();

  // CUDA graphs. A step that enqueues the same operations every time, apart from the contents of device memory, is
  // recorded once and then replayed. `key` identifies its shapes. The protocol:
  //  * LaunchGraph(key) is true if it has launched the recorded graph of `key`: the step is done.
  //  * Otherwise the caller calls BeginGraph(key) and enqueues the operations. If BeginGraph was false, they run
  //    directly. (The first time they always do, so that libraries can prepare themselves.)
  //  * If BeginGraph was true, the operations are recorded, and EndGraph() launches the graph. If EndGraph is false,
  //    there was no memory for it: nothing has run, and the caller must enqueue the operations again.
  bool LaunchGraph(uint64_t key);
  bool BeginGraph(uint64_t key);
  bool EndGraph();

  // For measurements: leaves out some of the work from now on.
  void Skip(SkippedWork skipped) { skipped_ = skipped; }
  SkippedWork skipped() const { return skipped_; }

  // Plans of the library's products that are kept, a bounded number.
  size_t product_plans() const;
  // Device memory in use and its peak; time spent pinning host memory.
  uint64_t used_bytes() const;
  uint64_t peak_bytes() const;
  double pinning_s() const;

  void Embed(Queue queue, const TokenBatch& batch, const WeightView& table, const Tensor& out);
  void AddPositions(Queue queue, const TokenBatch& batch, const WeightView& table, int64_t offset, const Tensor& x);
  void RmsNorm(Queue queue, const Tensor& x, const ConstTensor& weight, float eps, const Tensor& out);
  void LayerNorm(Queue queue, const Tensor& x, const ConstTensor& weight, const ConstTensor& bias, float eps,
                 const Tensor& out);
  void MatMul(Queue queue, const Tensor& x, std::span<const Projection> projections);
  void RopeTable(Queue queue, const TokenBatch& batch, const ConstTensor& frequencies, float factor,
                 const Tensor& table);
  void Rope(Queue queue, const ConstTensor& table, const RopeShape& shape, const Tensor& x);
  void TurnHeads(Queue queue, const ConstTensor& x, int64_t head_dim, const Tensor& out);
  void Copy(Queue queue, const ConstTensor& x, const Tensor& out);
  void SiluMul(Queue queue, const Tensor& gate, const Tensor& up);
  void GeluMul(Queue queue, const Tensor& gate, const Tensor& up);
  void Add(Queue queue, const ConstTensor& y, const Tensor& x);
  void Scale(Queue queue, float factor, const Tensor& x);
  void SoftCap(Queue queue, float cap, const Tensor& x);
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
  void AppendValueSketches(Queue queue, const TokenBatch& batch, const ConstTensor& values, const TailBasis& basis,
                           const LayerSketches& sketches);
  void AppendBlockMeans(Queue queue, const TokenBatch& batch, const LayerEntries& entries, const TailBasis& basis,
                        const LayerSketches& sketches);
  void QueryLevels(Queue queue, const ConstTensor& queries, const TokenBatch& batch, const AttentionShape& shape,
                   const TailView& tail);
  void SumTails(Queue queue, const ConstTensor& sketch_queries, const TokenBatch& batch, const SelectCall& call,
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
                      const TailView& tail, const AttentionShape& shape, const LayerEntries& entries,
                      const Tensor& out);
  void MeasureMass(Queue queue, const ConstTensor& queries, const TokenBatch& batch, const Selection& selection,
                   const AttentionShape& shape, const LayerEntries& entries, MassTotals* mass);

  void AssignRows(Queue queue, const TokenBatch& batch, const RetainRule& rule, const LayerCache& cache,
                  int32_t* own_rows);
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
  void AssignLate(Queue queue, const TokenBatch& batch, const LateSelection& late, const FetchBuffer& buffer,
                  const FetchList& list, const FetchList& late_list, FetchTotals* totals);
  void FetchMisses(Queue queue, const TokenBatch& batch, const Selection& selection, const LayerEntries& entries,
                   const FetchBuffer& buffer, const FetchList& list, FetchClock* clock);
  void AppendFetched(Queue queue, const TokenBatch& batch, const ConstTensor& keys, const ConstTensor& values,
                     const FetchBuffer& buffer, const FetchList& list);
  void AttendFetched(Queue queue, const ConstTensor& queries, const TokenBatch& batch, const Selection& selection,
                     const TailView& tail, const AttentionShape& shape, const LayerEntries& entries,
                     const FetchBuffer& buffer, const FetchList& list, const Tensor& out);

 private:
  CudaBackend(const CudaOptions& options, std::unique_ptr<CudaContext> context);
  // Allocates device memory for a parameter; small parameters share a block.
  Result<std::byte*> TakeMemory(size_t bytes);
  static size_t ScratchBytes(int64_t max_tokens, int64_t max_batch, int64_t heads, int64_t kv_heads, int64_t head_dim);

  CudaOptions options_;
  SkippedWork skipped_;
  std::unique_ptr<CudaContext> context_;
};

static_assert(FetchingBackend<CudaBackend>);

}  // namespace infinigen
