#include "model/cuda_executor.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "backend/cuda/cuda_backend.h"
#include "model/decoder_executor.h"
#include "model/parameters.h"

namespace infinigen {

Result<GpuInfo> FindGpu() { return FindCudaDevice(); }
Result<GpuCeilings> MeasureGpu() { return MeasureCeilings(); }

Status CheckGpuLayout(const EntryLayout& layout) {
  if (layout.head_dim % 8 == 0 && layout.head_dim <= 256) return Ok();
  return Unsupported("head_dim {} is not supported on a GPU: it must be a multiple of 8 and at most 256",
                     layout.head_dim);
}

namespace {

// Counts matrices only, which are nearly all of a layer's bytes.
void AddStreamedWeights(const ModelConfig& config, const ExecutorOptions& options, uint64_t weights_bytes,
                        MemoryPlan& plan) {
  uint64_t largest = 0;
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    if (!IsStreamed(layer, config.layers, options.weights_on_device)) continue;
    int64_t numbers = 0;
    const LayerWeights weights;
    VisitLayer(layer, weights, [&](const Parameter& parameter, const auto&) {
      if (parameter.is_matrix()) numbers += ExpectedShape(config, parameter).count();
    });
    const uint64_t bytes = std::min(static_cast<uint64_t>(numbers) * SizeOf(options.activation),
                                    weights_bytes / static_cast<uint64_t>(config.layers));
    plan.host_weights_bytes += bytes;
    largest = std::max(largest, bytes);
  }
  plan.stage_bytes += 2 * largest;
}

}  // namespace

int64_t HotRows(const ModelConfig& config, const ExecutorOptions& options, const HotSetLimit& limit) {
  const PoolOptions pool = PoolFor<CudaBackend>(config, options);
  const WorkspaceShape shape =
      Decoder<CudaBackend>::ShapeOf(config, OwnedBy(config, options), pool, options, IsRemote(options));
  const int64_t layers = shape.method_layers();
  if (!shape.fetches || layers <= 0) return 0;
  const auto lists = static_cast<uint64_t>(layers * options.max_batch * shape.owned.kv_heads);
  const uint64_t table = static_cast<uint64_t>(shape.retained_rows()) * sizeof(int32_t);
  if (limit.bytes / lists <= table) return 0;
  const uint64_t rows = (limit.bytes / lists - table) / (pool.layout.entry_bytes() + 2 * sizeof(int32_t));
  const auto all = static_cast<double>(shape.retained_rows());
  const double asked = std::ceil(limit.selections * static_cast<double>(shape.selected_rows()));
  const auto most = static_cast<uint64_t>(asked > 0 ? std::min(asked, all) : all);
  const int64_t held = static_cast<int64_t>(std::min(rows, most));
  return held < shape.selected_rows() ? 0 : held;
}

MemoryPlan PlanCudaMemory(const ModelConfig& config, const ExecutorOptions& options, uint64_t weights_bytes) {
  MemoryPlan plan = PlanFor<CudaBackend>(config, options, weights_bytes);
  const PoolOptions pool = PoolFor<CudaBackend>(config, options);
  const WorkspaceShape shape =
      Decoder<CudaBackend>::ShapeOf(config, OwnedBy(config, options), pool, options, IsRemote(options));
  plan.has_device = true;
  plan.driver_bytes = kDriverHostBytes;
  plan.pool_on_device = options.pool_on_device;
  plan.workspace_bytes += CudaBackend::ReservedBytes(options.max_tokens, shape.select_tokens(), shape.owned.heads,
                                                     shape.owned.kv_heads, config.head_dim);
  // Vectors are stored twice, the second time in the activation type; small tensors are packed in blocks of some MiB.
  constexpr uint64_t kBlocksBytes = uint64_t{16} << 20;
  plan.workspace_bytes += kBlocksBytes + static_cast<uint64_t>(config.layers * (10 * config.hidden + 2 * config.ffn)) *
                                             SizeOf(options.activation);
  AddStreamedWeights(config, options, weights_bytes, plan);
  if (options.pool_on_device) return plan;
  // Layers on the device are dense layers, which never evict, and layers with a window.
  int64_t device_rows = 0;
  for (int64_t layer = 0; layer < config.layers; ++layer)
    if (pool.on_device(layer))
      device_rows += pool.has_window(layer) ? pool.RingRows(options.max_tokens) : options.max_tokens;
  plan.device_pool_bytes =
      static_cast<uint64_t>(options.max_batch * device_rows) * static_cast<uint64_t>(pool.layout.row_bytes());
  (options.hot_rows > 0 ? plan.hot_bytes : plan.stage_bytes) += shape.fetch_bytes();
  using Stage = LayerStage<CudaBackend>;
  plan.stage_bytes += Stage::TableBytes(pool);
  // Where steps read all rows, every sequence has memory on the stages; otherwise only prompts during their prefill.
  if (!options.method.selects())
    plan.stage_bytes += static_cast<uint64_t>(options.max_batch) * Stage::SlotBytes(pool, shape.stage_rows());
  for (const int64_t rows : {options.max_tokens, options.planned_side_tokens()})
    plan.stage_bytes += Decoder<CudaBackend>::PromptStageBytes(shape, rows);
  return plan;
}

Result<std::unique_ptr<Executor>> MakeCudaExecutor(const ModelConfig& config, const Weights& weights,
                                                   const ExecutorOptions& options, SketchSource sketches) {
  ASSIGN_OR_RETURN(const GpuInfo device, FindCudaDevice());
  RETURN_IF_ERROR(CheckGpuLayout(PoolFor<CudaBackend>(config, options).layout));
  // The limit includes the memory of driver and libraries, which the backend cannot control.
  const uint64_t limit = options.device_memory_bytes;
  ASSIGN_OR_RETURN(std::unique_ptr<CudaBackend> backend,
                   CudaBackend::Open({.activation = options.activation,
                                      .pool_on_device = options.pool_on_device,
                                      .memory_limit_bytes = limit - std::min(limit, kGpuMarginBytes)}));
  return MakeDecoderExecutor(config, weights, options, std::move(sketches), device.name, std::move(backend));
}

}  // namespace infinigen
