// The executor of a GPU, and what a GPU is; where the build has no GPU backend, everything here says so.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "model/executor.h"

namespace infinigen {

struct GpuInfo {
  std::string name;
  uint64_t total_bytes = 0;
  uint64_t free_bytes = 0;
};
Result<GpuInfo> FindGpu();

// What its memory and the link to it give at most, measured here and now.
struct GpuCeilings {
  double device_gb_per_s = 0;
  double to_device_gb_per_s = 0;
  double to_host_gb_per_s = 0;
};
Result<GpuCeilings> MeasureGpu();

// Entries that the GPU's attention can read; kUnsupported names what it cannot.
Status CheckGpuLayout(const EntryLayout& layout);

// Places of each (sequence, layer, KV head) that a hot set of at most `bytes` has; 0 when they would not hold a
// selection.
int64_t HotRows(const ModelConfig& config, const ExecutorOptions& options, uint64_t bytes);

MemoryPlan PlanCudaMemory(const ModelConfig& config, const ExecutorOptions& options, uint64_t weights_bytes);
Result<std::unique_ptr<Executor>> MakeCudaExecutor(const ModelConfig& config, const Weights& weights,
                                                   const ExecutorOptions& options, SketchSource sketches);

}  // namespace infinigen
