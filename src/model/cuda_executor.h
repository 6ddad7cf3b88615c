// The executor of a GPU, and what a GPU is; where the build has no GPU backend, everything here says so.
#pragma once

#include <memory>

#include "backend/gpu.h"
#include "base/result.h"
#include "model/executor.h"

namespace infinigen {

// What the driver and the libraries take of a GPU's memory for themselves: in no plan, and part of any limit.
inline constexpr uint64_t kGpuMarginBytes = uint64_t{768} << 20;

Result<GpuInfo> FindGpu();
Result<GpuCeilings> MeasureGpu();

// Entries that the GPU's attention can read; kUnsupported names what it cannot.
Status CheckGpuLayout(const EntryLayout& layout);

// How large a hot set may be: bytes, and room for so many selections of every sequence (0: no such limit).
struct HotSetLimit {
  uint64_t bytes = 0;
  double selections = 0;
};
// Slots of each (sequence, layer, KV head) that a hot set within the limit has; 0 when they would not hold one
// selection. `options` are those of the run, without a hot set.
int64_t HotRows(const ModelConfig& config, const ExecutorOptions& options, const HotSetLimit& limit);

MemoryPlan PlanCudaMemory(const ModelConfig& config, const ExecutorOptions& options, uint64_t weights_bytes);
Result<std::unique_ptr<Executor>> MakeCudaExecutor(const ModelConfig& config, const Weights& weights,
                                                   const ExecutorOptions& options, SketchSource sketches);

}  // namespace infinigen
