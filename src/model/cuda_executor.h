// The executor for a GPU, and the properties of the GPU. In a build without CUDA every function that can fail returns
// kUnsupported (no_cuda_executor.cc).
#pragma once

#include <memory>

#include "backend/gpu.h"
#include "base/result.h"
#include "model/executor.h"

namespace infinigen {

// GPU memory that the driver and libraries use: not part of a plan, but counted against the limit.
inline constexpr uint64_t kGpuMarginBytes = uint64_t{768} << 20;
// Host memory that the CUDA driver, its libraries and the recorded steps take (docs/cuda.md).
inline constexpr uint64_t kDriverHostBytes = uint64_t{384} << 20;

Result<GpuInfo> FindGpu();
Result<GpuCeilings> MeasureGpu();

// kUnsupported, with the reason, if the GPU's attention cannot read entries of this layout.
Status CheckGpuLayout(const EntryLayout& layout);

// The largest size of a hot set.
struct HotSetLimit {
  uint64_t bytes = 0;
  double selections = 0;  // cells per list, as a multiple of the largest selection; 0: no such limit
};
// Cells of each (sequence, layer, KV head) in the largest hot set within the limit; 0 when that could not hold one
// selection. `options` are those of the run, without a hot set.
int64_t HotRows(const ModelConfig& config, const ExecutorOptions& options, const HotSetLimit& limit);

MemoryPlan PlanCudaMemory(const ModelConfig& config, const ExecutorOptions& options, uint64_t weights_bytes);
Result<std::unique_ptr<Executor>> MakeCudaExecutor(const ModelConfig& config, const Weights& weights,
                                                   const ExecutorOptions& options, SketchSource sketches);

}  // namespace infinigen
